"""A merged model in the store: a run with one checkpoint, which contains only weights, and its provenance.

It is opened again for export.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from ..checkpoints import (
    LoadedModel,
    SaveOptions,
    SaveTarget,
    choose_checkpoint,
    committed,
    for_saves,
    load_model,
    open_weights,
    recorded_model,
    recorded_tokenizer,
    step_key,
    write_streamed,
)
from ..config import SkytrainError, has_layers
from ..evaluation import EnsembleDefinition, ensemble_key
from ..models import Decoder
from ..runs import (
    RunRecord,
    attempt_numbers,
    claim_attempt,
    create_run,
    failures_recorded,
    load_run,
    now,
    read_failure,
    record_resume,
    save_run,
    write_outcome,
)
from ..storage import Store
from .provenance import Provenance, provenance_key, read_provenance
from .streaming import MergePlan, Progress, merged_tensors


def is_written(store: Store, run: str, made: Provenance) -> bool:
    """Return whether the run exists with exactly this merge. Raises SkytrainError if the name is of another run."""
    if not store.exists(f"runs/{run}/run.json"):
        return False
    there = read_provenance(store, run)
    if there is None:
        # A merge that was interrupted between its record and its provenance starts over.
        if load_run(store, run).merged_from == [each.source for each in made.inputs] and not committed(store, run):
            return False
        raise SkytrainError(f"there is a run {run!r} already in {store.root}\n  choose another name: run=NAME")
    if there.identity != made.identity:
        if _has_failed(store, run):
            return False
        raise SkytrainError(
            f"run {run!r} is another merge, of {', '.join(each.source for each in there.inputs)} by {there.method}\n"
            "  choose another name: run=NAME"
        )
    return bool(committed(store, run)) or store.exists(ensemble_key(run))


def _has_failed(store: Store, run: str) -> bool:
    """Return whether a merge ended with an error, so that its name is free: nothing was made."""
    attempts = attempt_numbers(store, run)
    return bool(attempts) and not committed(store, run) and read_failure(store, run, attempts[-1]) is not None


def write_merged(
    store: Store, record: RunRecord, plan: MergePlan, made: Provenance, progress: Progress
) -> tuple[str, int]:
    """Write record, provenance and checkpoint; return the run and its step. An interrupted merge starts over."""
    run = record.name
    step = record.step
    if not create_run(store, record):
        save_run(store, record)  # of a merge that was interrupted or has failed, perhaps of other models
    attempt = claim_attempt(store, run, world_size=1, merge=made.method)
    with failures_recorded(store, run, attempt):
        record_resume(store, run, attempt, step)
        store.write(provenance_key(run), made.to_bytes())
        target = SaveTarget(store=for_saves(store), key=step_key(run, step), number=1, options=SaveOptions(attempt))
        tensors = ((f"model/{name}", tensor) for name, tensor in merged_tensors(plan, progress))
        write_streamed(target, tensors, _rest(record, attempt, made))
    write_outcome(store, run, attempt, "done", step)
    save_run(store, dataclasses.replace(record, finished_at=now()))
    return run, step


def write_ensemble(store: Store, record: RunRecord, made: Provenance, definition: EnsembleDefinition) -> None:
    """Write a run that is an ensemble: it has no checkpoint, only a definition with its experts, written last."""
    run = record.name
    create_run(store, record)
    attempt = claim_attempt(store, run, world_size=1, merge=made.method)
    store.write(provenance_key(run), made.to_bytes())
    write_outcome(store, run, attempt, "done", record.step)
    store.write(ensemble_key(run), definition.to_bytes())


def _rest(record: RunRecord, attempt: int, made: Provenance) -> dict[str, Any]:
    lineage: Mapping[str, Any] = {
        "run": record.name,
        "attempt": attempt,
        "merged_from": record.merged_from,
        "skytrain": record.skytrain_version,
        "code_revision": record.code_revision,
        "model": record.config["model"],
        "tokenizer": record.tokenizer_id,
        "merge": dataclasses.asdict(made),
    }
    return {"lineage": lineage}


def open_merged(store: Store, run: str) -> LoadedModel:
    """Open a merged model for export.

    A decoder is on the meta device, with `initial_values` that read the checkpoint tensor by tensor; any other model is
    loaded.
    """
    record, step = choose_checkpoint(store, run)
    config = recorded_model(record)
    if not has_layers(config):
        return load_model(store, run)
    saved = open_weights(store, step_key(record.name, step)).weights
    with torch.device("meta"):
        model = Decoder(config)

    model.initial_values = lambda name, shape: saved.read_one(name)
    return LoadedModel(model, recorded_tokenizer(store, record), f"{record.name}@{step}", record)
