"""plan.json: the chosen offer, with everything that `launch` needs to follow it and a reader needs to check it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from skytrain.config import SkytrainError

from .catalog import Catalog
from .costs import ASSUMPTIONS
from .memory import TrainingJob, path_of
from .mesh import DIMENSIONS, overrides
from .offers import Offer, PlanRequest
from .tokens import Purchase

FORMAT = 2


def plan_dict(
    values: Mapping[str, Any], request: PlanRequest, choice: Offer, why: str, catalog: Catalog, made_on: str
) -> dict[str, Any]:
    """Return the plan. `values` is the composed configuration; the plan's own decisions are under `settings`."""
    assert choice.placement and choice.estimate and choice.price
    placement, price = choice.placement, choice.price
    job, mesh = placement.job, placement.mesh
    return {
        "format": FORMAT,
        "made_on": made_on,
        "why": why,
        "request": asdict(request),
        "where": {
            "region": choice.region,
            "instance_type": choice.instance.type,
            "nodes": choice.nodes,
            "market": choice.market,
            "gpu": choice.instance.gpu,
            "gpus_per_node": choice.instance.gpus,
            "quota": {"code": choice.instance.quota_code(choice.market), "vcpus": choice.quota_vcpus},
        },
        "price": {
            "usd_per_hour_each": [price.usd_per_hour_min, price.usd_per_hour_max],
            "date": price.date,
            "source": f"{catalog.origin} catalogue: {price.source}",
        },
        "settings": {
            "mesh": {name: getattr(mesh, name) for name in DIMENSIONS},
            "preset": mesh.preset,
            "micro_batch": job.micro_batch,
            "accumulation": job.accumulation,
            "activation_checkpointing": recomputation(job),
            "reduce_once": job.reduce_once,
            "fp8": job.fp8,
            "precision": job.precision,
            "compile": job.compiled,
            "kernels": path_of(job, mesh),
        },
        "train": train_overrides(choice),
        "prediction": {
            "step_seconds": placement.prediction.seconds,
            "tokens_per_s": placement.tokens_per_s,
            "source": placement.prediction.source,
            "because": placement.prediction.because,
            "step_parts_seconds": asdict(placement.prediction.step),
        },
        "memory_bytes_per_gpu": asdict(placement.memory) | {"total": placement.memory.total},
        "estimate": asdict(choice.estimate),
        "assumptions": ASSUMPTIONS,
        "config": dict(values),
    }


def train_overrides(choice: Offer) -> list[str]:
    """Return the overrides that `train` needs to run the plan."""
    assert choice.placement
    job = choice.placement.job
    kinds = ["trainer.activation_checkpointing=full"] if job.checkpointing else []
    if not job.reduce_once:
        kinds.append("parallel.reduce_once=false")
    return [*overrides(choice.placement.mesh), *kinds, f"trainer.micro_batch={job.micro_batch}"]


def recomputation(job: TrainingJob) -> str:
    """Return the job's value of `trainer.activation_checkpointing`."""
    return "full" if job.checkpointing else "selective" if job.selective else "none"


def write_plan(plan: Mapping[str, Any], path: Path) -> None:
    try:
        path.write_text(json.dumps(plan, indent=1, sort_keys=True) + "\n")
    except OSError as error:
        raise SkytrainError(f"the plan cannot be written to {path}: {error.strerror}") from None


def read_plan(path: Path) -> dict[str, Any]:
    """Read a plan. Raises SkytrainError if the file is not a valid plan."""
    try:
        plan = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise SkytrainError(f"{path} is not a plan ({error})\n  make one: skytrain plan --out {path}") from None
    if not isinstance(plan, dict) or plan.get("format") != FORMAT:
        raise SkytrainError(f"{path} is not a plan of format {FORMAT}\n  make one: skytrain plan --out {path}")
    return plan


def purchase_rows(bought: Sequence[Purchase]) -> list[dict[str, Any]]:
    """Return what a budget buys on each offer, as JSON rows."""
    return [
        {
            "region": one.offer.region,
            "instance_type": one.offer.instance.type,
            "nodes": one.offer.nodes,
            "market": one.offer.market,
            "tokens": one.tokens,
            "hours": one.estimate.hours,
            "usd": [one.estimate.usd_p10, one.estimate.usd, one.estimate.usd_p90],
        }
        for one in bought
    ]


def offer_rows(found: Sequence[Offer]) -> list[dict[str, Any]]:
    """Return the table of offers as JSON rows."""
    rows = []
    for offer in found:
        placement, estimate, price = offer.placement, offer.estimate, offer.price
        rows.append({
            "region": offer.region,
            "instance_type": offer.instance.type,
            "nodes": offer.nodes,
            "market": offer.market,
            "usd_per_hour": [price.usd_per_hour_min, price.usd_per_hour_max] if price else None,
            "mesh": str(placement.mesh) if placement else None,
            "micro_batch": placement.job.micro_batch if placement else None,
            "activation_checkpointing": recomputation(placement.job) if placement else None,
            "tokens_per_s": placement.tokens_per_s if placement else None,
            "source": placement.prediction.source if placement else None,
            "memory_bytes": placement.memory.total if placement else None,
            "hours": estimate.hours if estimate else None,
            "interruptions": estimate.interruptions if estimate else None,
            "usd": [estimate.usd_p10, estimate.usd, estimate.usd_p90] if estimate else None,
            "quota": {"code": offer.instance.quota_code(offer.market), "vcpus": offer.quota_vcpus},
            "problem": offer.problem,
        })  # fmt: skip
    return rows
