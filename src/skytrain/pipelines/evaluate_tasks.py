"""Evaluate tasks: models and downstream tasks in, a result for each pair out."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..checkpoints import committed_steps, find_run
from ..config import Config, MissingExtra, NamedTask, SkytrainError, find_tasks
from ..evaluation import (
    ModelResults,
    PairedDifference,
    PlacedModel,
    TaskEvaluator,
    TaskResult,
    TaskSources,
    compare,
    place_model,
)
from ..runs import Reporter
from ..storage import Store, open_store

EVERY_CHECKPOINT = "@all"


@dataclass(frozen=True)
class TasksRequest:
    """Which models to evaluate: runs, RUN@STEP, RUN@all, folders; none: the newest run."""

    sources: tuple[str, ...] = ()
    precision: str | None = None
    compared: bool = False  # as a pair


def evaluate_tasks(config: Config, request: TasksRequest, reporter: Reporter) -> Iterator[ModelResults]:
    """Yields the results of one model after another. Tasks and sources are checked before the first is loaded."""
    store, tasks = open_store(config.store), find_tasks(config.evaluation)
    if not tasks:
        raise SkytrainError("no task is named\n  add tasks=[hellaswag]")
    sources = [each for source in request.sources or (None,) for each in _expand(store, source)]
    if request.compared and len(sources) != 2:
        raise SkytrainError(f"--compare takes two models, and {len(sources)} were given\n  add --from A --from B")

    def results() -> Iterator[ModelResults]:
        for source in sources:
            yield _evaluate(config, place_model(config, store, source, request.precision), tasks, reporter)

    return results()


def _expand(store: Store, source: str | None) -> list[str | None]:
    """RUN@all as all checkpoints of the run."""
    if source is None or not source.endswith(EVERY_CHECKPOINT):
        return [source]
    run = find_run(store, source.removesuffix(EVERY_CHECKPOINT)).name
    steps = committed_steps(store, run)
    if not steps:
        raise SkytrainError(f"run {run} has no committed checkpoint yet")
    return [f"{run}@{step}" for step in steps]


def _evaluate(config: Config, placed: PlacedModel, tasks: Sequence[NamedTask], reporter: Reporter) -> ModelResults:
    sources = TaskSources(open_store(config.store), reporter.note)
    results = []
    began = time.monotonic()
    for task in tasks:
        evaluator = TaskEvaluator(task, placed.tokenizer, sources, limit=config.evaluation.limit)
        evaluator.prepare()
        stage = f"{placed.label}: {task.name}"
        evaluator.progress = lambda done, total, stage=stage: reporter.progress(stage, done, total)
        evaluator.run(placed.model)
        assert evaluator.result is not None
        results.append(evaluator.result)
    step = placed.label.rpartition("@")[2] if placed.run else ""
    return ModelResults(placed.label, int(step) if step.isdigit() else None, tuple(results), time.monotonic() - began)


def evaluate_harness(
    config: Config, source: str | None, precision: str | None, tasks: Sequence[str], reporter: Reporter
) -> tuple[str, dict[str, Any]]:
    """The model's label, and what lm-evaluation-harness found with its own tasks."""
    try:
        from ..evaluation import HarnessRequest, run_harness
    except ImportError as error:
        if (error.name or "").startswith("lm_eval"):
            raise MissingExtra("lm_eval", "harness") from None
        raise
    placed = place_model(config, open_store(config.store), source, precision)
    request = HarnessRequest(tuple(tasks), config.evaluation.limit, config.evaluation.folder)
    try:
        found = run_harness(
            placed.model, placed.tokenizer, request, lambda done, total: reporter.progress("harness", done, total)
        )
    except (KeyError, ValueError, OSError) as error:  # its way to say that a task or its data cannot be found
        problem = str(error).strip().partition("\n")[0]
        raise SkytrainError(
            f"lm-evaluation-harness: {type(error).__name__}: {problem}\n"
            "  `lm_eval ls tasks` lists its tasks; their data comes from the Hugging Face hub, or a YAML in evaluation.folder"
        ) from error
    return placed.label, found


def compare_models(first: ModelResults, second: ModelResults) -> list[PairedDifference]:
    """The second model against the first, on each task's items."""
    return [
        difference for one, two in zip(first.results, second.results, strict=True) for difference in compare(one, two)
    ]


def results_as_json(models: Sequence[ModelResults], differences: Sequence[PairedDifference]) -> Any:
    """Return one object for a model, a list of them for several; with a comparison, both under their names."""
    described = [
        {
            "model": each.model,
            "step": each.step,
            "seconds": round(each.seconds, 3),
            "tasks": {result.task: _result_as_json(result) for result in each.results},
        }
        for each in models
    ]
    if differences:
        pairs = [
            {**{name: finite(value) for name, value in vars(each).items()}, "verdict": each.verdict}
            for each in differences
        ]
        return {"models": described, "comparison": pairs}
    return described[0] if len(described) == 1 else described


def _result_as_json(result: TaskResult) -> dict[str, Any]:
    return {
        "items": result.items,
        "available": result.available,
        "truncated": result.truncated,
        "metrics": {
            scoring: {"value": finite(measure.value), "stderr": finite(measure.stderr)}
            for scoring, measure in result.measures.items()
        },
    }


def finite(value: Any) -> Any:
    """Return the value, or None where JSON has none: infinity and NaN."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_answers(models: Sequence[ModelResults], path: Path) -> None:
    """Write each item's answer as one JSON object a line."""
    with path.open("w", encoding="utf-8") as file:
        for each in models:
            for result in each.results:
                for answer in result.answers:
                    file.write(json.dumps({"model": each.model, "task": result.task, **answer}) + "\n")
