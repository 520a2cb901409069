"""Evaluate: a model in; its loss on held-out text or its results on downstream tasks out."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

from ..checkpoints import committed_steps, find_run
from ..config import (
    Config,
    MissingExtra,
    NamedTask,
    SkytrainError,
    TokenFilesConfig,
    build,
    check_named,
    find_tasks,
    parse_count,
)
from ..evaluation import (
    HeldOut,
    LossReport,
    ModelResults,
    PairedDifference,
    PlacedModel,
    TaskEvaluator,
    TaskResult,
    TaskSources,
    compare,
    evaluate_loss,
    place_model,
)
from ..runs import Reporter, RunRecord
from ..storage import Store, is_whole, maybe, open_store, record_of
from ..tokens import PackedSplit, Split, Tokenizer, TokenSplit, find_prepared_for, open_file_split

AUTO_BATCH_TOKENS = 8192  # at a time, where trainer.micro_batch=auto names no size
EVERY_CHECKPOINT = "@all"


@dataclass(frozen=True)
class LossRequest:
    """The model to evaluate, and the text to evaluate it on."""

    source: str | None = None  # a run, RUN@STEP or an exported folder; None: the newest run
    split: str = "validation"
    max_tokens: str | None = None  # as 100K; None: the whole split
    precision: str | None = None


def evaluate(config: Config, request: LossRequest, reporter: Reporter) -> tuple[str, LossReport]:
    """Return the model's label and its loss on a split."""
    if request.split not in get_args(Split):
        raise SkytrainError(f"--split {request.split}: must be train or validation")
    limit = token_limit(request.max_tokens)
    store = open_store(config.store)
    placed = place_model(config, store, request.source, request.precision)
    evaluated = EvaluatedModel(placed.tokenizer, placed.model.window, placed.label, placed.run)
    held_out = open_held_out(config, store, evaluated, cast(Split, request.split), limit)
    report = evaluate_loss(placed.model, held_out, lambda done, total: reporter.progress("evaluate", done, total))
    return placed.label, report


@dataclass(frozen=True)
class EvaluatedModel:
    """The facts that decide which text a model is evaluated on."""

    tokenizer: Tokenizer
    window: int
    label: str
    run: RunRecord | None  # None: the configured data, whatever the model was trained on


def open_held_out(config: Config, store: Store, model: EvaluatedModel, split: Split, limit: int | None) -> HeldOut:
    """Open the data that the model's run was trained on; the configured data for a model without a run."""
    tokenizer = model.tokenizer
    run = model.run
    if run is None:
        files = config.loader.files
        length = min(config.trainer.sequence_length, model.window)
        batch = config.trainer.micro_batch
        separate = config.loader.separate_documents
    else:
        with record_of(store, f"runs/{run.name}/run.json"):
            named = run.config["loader"].get("files")
            files = build(TokenFilesConfig, named, "loader.files") if named else None
            length = run.config["trainer"]["sequence_length"]
            batch = run.config["trainer"]["micro_batch"]
            separate = bool(run.config["loader"]["separate_documents"])
            if not is_whole(length) or length < 1 or not maybe(is_whole)(batch):
                raise TypeError(f"trainer.sequence_length={length!r:.40} and trainer.micro_batch={batch!r:.40}")
        if files is not None and getattr(files, split) is not None:
            check_named([(f"loader.files.{split}", getattr(files, split))], f"run {run.name}")
    if files is not None:
        tokens = open_file_split(files, split, tokenizer)
    else:
        prefix = (
            _prefix_of_run(run, split)
            if run
            else find_prepared_for(store, config.data, tokenizer, model.label).prefix(split)
        )
        tokens = TokenSplit.open(store, prefix, expect_tokenizer_hash=tokenizer.hash, vocab_size=tokenizer.vocab_size)
        if tokens.manifest.masked:
            tokens = PackedSplit.of(tokens)
    return HeldOut(
        split=tokens,
        tokenizer=tokenizer,
        sequence_length=length,
        batch=batch or max(1, AUTO_BATCH_TOKENS // length),
        max_tokens=limit,
        separate_documents=separate,
    )


def _prefix_of_run(run: RunRecord, split: str) -> str:
    for prefix in run.data:
        if prefix.endswith(f"/{split}"):
            return prefix
    raise SkytrainError(f"the data of run {run.name} has no {split} split")


def token_limit(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        limit = parse_count(text)
    except ValueError as error:
        raise SkytrainError(f"--tokens {text}: {error}") from None
    if limit < 1:
        raise SkytrainError(f"--tokens {text}: must be at least 1")
    return limit


@dataclass(frozen=True)
class TasksRequest:
    """The models to evaluate: runs, RUN@STEP, RUN@all or folders; none means the newest run."""

    sources: tuple[str, ...] = ()
    precision: str | None = None
    compared: bool = False  # as a pair


def evaluate_tasks(config: Config, request: TasksRequest, reporter: Reporter) -> Iterator[ModelResults]:
    """Yield the results of one model after another. Tasks and sources are checked before any model is loaded."""
    store = open_store(config.store)
    tasks = find_tasks(config.evaluation)
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
    """Return every checkpoint of the run for RUN@all; otherwise the source itself."""
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
    return ModelResults(placed.label, int(step) if step.isdecimal() else None, tuple(results), time.monotonic() - began)


def evaluate_harness(
    config: Config, source: str | None, precision: str | None, tasks: Sequence[str], reporter: Reporter
) -> tuple[str, dict[str, Any]]:
    """Return the model's label and the results of lm-evaluation-harness on its own tasks."""
    try:
        from ..evaluation import HarnessRequest, run_harness
    except ImportError as error:
        if (error.name or "").startswith("lm_eval"):
            raise MissingExtra("lm_eval", "harness") from None
        raise
    placed = place_model(config, open_store(config.store), source, precision)
    request = HarnessRequest(tuple(tasks), config.evaluation.limit, config.evaluation.folder)
    try:
        measured = run_harness(
            placed.model, placed.tokenizer, request, lambda done, total: reporter.progress("harness", done, total)
        )
    except (KeyError, ValueError, OSError) as error:  # its way to say that a task or its data cannot be found
        problem = str(error).strip().partition("\n")[0]
        raise SkytrainError(
            f"lm-evaluation-harness: {type(error).__name__}: {problem}\n"
            "  `lm_eval ls tasks` lists its tasks; their data comes from the Hugging Face hub, or a YAML in evaluation.folder"
        ) from error
    return placed.label, measured


def compare_models(first: ModelResults, second: ModelResults) -> list[PairedDifference]:
    """Compare the second model with the first on each task's items."""
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
