"""Report of a merge: every model on every domain, the path between two experts, tasks and dollars."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ..checkpoints import find_run
from ..config import Composed, Config, NamedTask, SkytrainError, find_tasks
from ..evaluation import (
    EnsembleModel,
    HeldOut,
    Scorer,
    TaskEvaluator,
    TaskSources,
    WholeModel,
    evaluate_loss,
    place_model,
)
from ..merging import (
    DomainsFile,
    MergeInput,
    MergeReport,
    ModelRow,
    PathPoint,
    Provenance,
    TaskScore,
    judge,
    open_inputs,
    read_provenance,
)
from ..runs import Reporter, load_run, run_status
from ..storage import Store, open_store
from ..tokens import Tokenizer
from .evaluate import EvaluatedModel, open_held_out, token_limit
from .merge import SoupTaster

Compose = Callable[[list[str]], Composed]


@dataclass(frozen=True)
class MergeReportRequest:
    """The merge to report on, and what to compare it with."""

    run: str
    domains: DomainsFile
    dense: str | None = None  # a run of equal compute that was never branched
    points: int = 5  # of the path between the first two experts; 0: none
    max_tokens: str | None = None  # of each domain, as 100K; None: all


def report_merge(config: Config, request: MergeReportRequest, compose: Compose, reporter: Reporter) -> MergeReport:
    """Measure all models on the validation split of each domain; keep the report in the merged run's folder."""
    store = open_store(config.store)
    made = read_provenance(store, find_run(store, request.run).name)
    if made is None:
        raise SkytrainError(f"run {request.run} was trained, not merged\n  name the run that `skytrain merge` made")
    inputs = open_inputs(config, store, [each.source for each in made.inputs])
    if request.dense is not None:  # before the others are measured
        [dense] = open_inputs(config, store, [request.dense])
        if dense.tokenizer.hash != inputs[0].tokenizer.hash:
            raise SkytrainError(f"--dense {request.dense}: its tokenizer is not the experts', and losses are per token")
    texts = _open_texts(request, compose, store, inputs[0])
    measure = _Measure(config, store, texts, reporter)
    rows = list(_rows(measure, request, made))
    path = list(_path(measure, config, inputs, request.points))
    tokens = {name: text.windows * text.sequence_length for name, text in texts.items()}
    ends = [each.label for each in inputs[:2]] if path else []
    report = MergeReport(run=request.run, method=made.method, tokens=tokens, rows=rows, path=path, path_ends=ends)
    report = dataclasses.replace(report, verdicts=judge(report))
    store.write(f"runs/{request.run}/merge-report.json", (json.dumps(report.to_json(), indent=2) + "\n").encode())
    return report


@dataclass(frozen=True)
class _Measure:
    """The texts and tasks on which one model after another is measured."""

    config: Config
    store: Store
    texts: Mapping[str, HeldOut]
    reporter: Reporter

    def losses(self, model: Scorer, label: str) -> dict[str, float]:
        losses = {}
        for number, (domain, text) in enumerate(self.texts.items()):
            losses[domain] = evaluate_loss(model, text).loss
            self.reporter.progress(label, number + 1, len(self.texts), f"{domain} {losses[domain]:.4f}")
        return losses

    def place(self, source: str) -> tuple[WholeModel | EnsembleModel, Tokenizer]:
        placed = place_model(self.config, self.store, source)
        return placed.model, placed.tokenizer

    def row(self, role: str, source: str) -> ModelRow:
        model, tokenizer = self.place(source)
        return ModelRow(
            role=role,
            label=source,
            losses=self.losses(model, source),
            usd=self._usd(source),
            tasks=self.tasks(model, tokenizer),
        )

    def tasks(self, model: Scorer, tokenizer: Tokenizer) -> dict[str, TaskScore]:
        sources = TaskSources(self.store, self.reporter.note)
        scores: dict[str, TaskScore] = {}
        for task in find_tasks(self.config.evaluation):
            scores |= _score(task, tokenizer, sources, model, self.config.evaluation.limit)
        return scores

    def _usd(self, source: str) -> float | None:
        run = source.partition("@")[0]
        if not self.store.exists(f"runs/{run}/run.json") or load_run(self.store, run).merged_from:
            return None
        return run_status(self.store, run, 0).usd


def _score(
    task: NamedTask, tokenizer: Tokenizer, sources: TaskSources, model: Scorer, limit: int | None
) -> dict[str, TaskScore]:
    evaluator = TaskEvaluator(task, tokenizer, sources, limit=limit)
    evaluator.prepare()
    evaluator.run(model)
    assert evaluator.result is not None
    return {
        f"{task.name}/{scoring}": TaskScore(
            measure.value, None if math.isnan(measure.stderr) else measure.stderr, evaluator.result.items
        )
        for scoring, measure in evaluator.result.measures.items()
    }


def _open_texts(request: MergeReportRequest, compose: Compose, store: Store, first: MergeInput) -> dict[str, HeldOut]:
    """Open the validation split of each domain's data."""
    limit = token_limit(request.max_tokens)
    texts = {}
    for domain in request.domains.experts:
        config = compose(request.domains.overrides(domain)).config
        model = EvaluatedModel(first.tokenizer, int(first.model["max_length"]), first.label, None)
        texts[domain] = open_held_out(config, store, model, "validation", limit)
    return texts


def _rows(measure: _Measure, request: MergeReportRequest, made: Provenance) -> Iterator[ModelRow]:
    """Yield rows for the seed, the experts, the merged model, the ensemble of the experts and the dense run."""
    seed = made.base.source if made.base else made.ancestor
    if seed is not None:
        yield measure.row("seed", seed)
    for each in made.inputs:
        yield measure.row("expert", each.source)
    yield measure.row("merged" if made.method != "ensemble" else "ensemble", request.run)
    if made.method != "ensemble":
        placed = [measure.place(each.source) for each in made.inputs]
        experts = [model for model, _ in placed if isinstance(model, WholeModel)]
        forest = EnsembleModel(experts, [1 / len(experts)] * len(experts), updating=True)
        losses = measure.losses(forest, "ensemble")
        yield ModelRow("ensemble", "of the experts", losses, tasks=measure.tasks(forest, placed[0][1]))
    if request.dense is not None:
        yield measure.row("dense", request.dense)


def _path(measure: _Measure, config: Config, inputs: list[MergeInput], points: int) -> Iterator[PathPoint]:
    """Return the losses on the straight line between the first two experts."""
    if points < 2 or len(inputs) < 2:
        return
    taster = SoupTaster(config, inputs[:2])
    for number in range(points):
        t = number / (points - 1)
        yield PathPoint(t, measure.losses(taster.average((1 - t, t)), f"path {t:.2f}"))
