"""The record of a pipeline, and its ledger: one budget for the launches that prepare, train and finish a model.

A stage costs what its machines have recorded, as for any run, and what EC2 says once all of them have ended.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass

from ..storage import NotFound, Store, is_amount, read_typed, record_of
from .meter import final_counts, read_spend


@dataclass(frozen=True)
class LaunchedStage:
    """One launch of a pipeline, as it was planned."""

    name: str  # prepare, train or finish
    run: str  # whose machines it rents
    machines: str
    hours: float
    usd: float
    most_usd: float | None  # its share of the budget


@dataclass(frozen=True)
class PipelineRecord:
    """The stages of a pipeline in order; those that were done before it are left out."""

    run: str
    budget_usd: float | None
    stages: list[LaunchedStage]


@dataclass(frozen=True)
class StageCost:
    """What the machines of a stage have cost so far."""

    stage: LaunchedStage
    machines: int
    seconds: float
    usd: float


def finish_folder(run: str, step: int) -> str:
    """Return the folder of what was made of a trained run: scores and the export of one checkpoint."""
    return f"runs/{run}/finish/step-{step:09d}"


def pipeline_key(run: str) -> str:
    """Return the object that says what a pipeline may spend, where only operators write."""
    return f"launches/{run}/pipeline.json"


def former_key(run: str) -> str:
    """Return where earlier versions wrote it."""
    return f"runs/{run}/pipeline.json"


def write_pipeline(store: Store, record: PipelineRecord) -> None:
    store.write(pipeline_key(record.run), json.dumps(asdict(record), indent=1).encode())


def read_pipeline(store: Store, run: str) -> PipelineRecord | None:
    """Return the pipeline that trains a run; None if it was launched by itself."""
    for key in (pipeline_key(run), former_key(run)):
        with contextlib.suppress(NotFound):
            record = read_typed(store, key, PipelineRecord)
            break
    else:
        return None
    with record_of(store, key):
        if record.run != run or not all(is_amount(each.usd) and is_amount(each.hours) for each in record.stages):
            raise ValueError("it is that of another run, or its stages cost less than nothing")
    return record


def pipeline_ledger(store: Store, record: PipelineRecord) -> list[StageCost]:
    """Return what each stage has cost so far."""
    return [_stage_cost(store, stage) for stage in record.stages]


def _stage_cost(store: Store, stage: LaunchedStage) -> StageCost:
    counts = final_counts(store, stage.run, read_spend(store, stage.run).counts)
    seconds = sum(count.seconds for count in counts.values())
    return StageCost(stage, len(counts), seconds, sum(count.usd for count in counts.values()))
