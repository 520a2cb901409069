"""plan.json: the offer that was chosen, whole enough for `launch` to follow it exactly and for a reader to check it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from skytrain.config import SkytrainError

from .catalog import Catalog
from .costs import ASSUMPTIONS
from .memory import path_of
from .mesh import DIMENSIONS, overrides
from .offers import Offer, Wish

FORMAT = 1


def plan_dict(
    values: Mapping[str, Any], wish: Wish, choice: Offer, why: str, catalog: Catalog, made_on: str
) -> dict[str, Any]:
    """`values` is the composed configuration; what the plan decides beyond it is under `settings`."""
    assert choice.placement and choice.estimate and choice.price
    placement, price = choice.placement, choice.price
    job, mesh = placement.job, placement.mesh
    return {
        "format": FORMAT,
        "made_on": made_on,
        "why": why,
        "runs_today": placement.runnable,
        "runs_today_note": None if placement.runnable else _cannot(choice),
        "wish": asdict(wish),
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
            "activation_checkpointing": job.checkpointing,
            "reduce_once": job.reduce_once,
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
    """What `train` must be told beyond the configuration to do what the plan says."""
    assert choice.placement
    job = choice.placement.job
    return [
        *overrides(choice.placement.mesh, job.checkpointing, job.reduce_once),
        f"trainer.micro_batch={job.micro_batch}",
    ]


def write_plan(plan: Mapping[str, Any], path: Path) -> None:
    try:
        path.write_text(json.dumps(plan, indent=1, sort_keys=True) + "\n")
    except OSError as error:
        raise SkytrainError(f"the plan cannot be written to {path}: {error.strerror}") from None


def read_plan(path: Path) -> dict[str, Any]:
    """A plan as it was written; raises SkytrainError for anything else."""
    try:
        plan = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise SkytrainError(f"{path} is not a plan ({error})\n  make one: skytrain plan --out {path}") from None
    if not isinstance(plan, dict) or plan.get("format") != FORMAT:
        raise SkytrainError(f"{path} is not a plan of format {FORMAT}\n  make one: skytrain plan --out {path}")
    return plan


def _cannot(choice: Offer) -> str:
    assert choice.placement
    return f"`skytrain train` does not have the mesh {choice.placement.mesh} yet: this plan is on paper"


def offer_rows(found: Sequence[Offer]) -> list[dict[str, Any]]:
    """The table of offers, for programs."""
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
            "activation_checkpointing": placement.job.checkpointing if placement else None,
            "runs_today": placement.runnable if placement else None,
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
