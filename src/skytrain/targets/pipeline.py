"""The whole job as one launch: prepare the data, train, then evaluate, export and report; one budget for all of it.

Each stage is a launch of its own on machines that fit it. All of them are created at once; those that wait have no
machines, and the last act of a stage starts the next one. So nothing here has to stay awake. What is done already is
left out: the same command continues a pipeline that was interrupted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..aws import PREVIEW_NOTE, is_preview
from ..checkpoints import committed
from ..config import Composed, Config, SkytrainError, finish_settings
from ..planning import Budget, BudgetTooSmall
from ..runs import (
    LaunchedStage,
    NoRuns,
    PipelineRecord,
    Reporter,
    finish_folder,
    pipeline_ledger,
    read_pipeline,
    run_name,
    spent_usd,
    write_pipeline,
)
from ..storage import Store, open_store
from ..tokens import find_training_data
from .base import LaunchRequest, ReadyJob
from .inputs import MissingInput, find_inputs, weights_to_stage
from .jobs import assumed_text, finish_name, job_name, plan_finishing, plan_preparation
from .plans import PlannedJob, plan_words, planned_job
from .registry import find_target
from .run_status import find_status

STAGES = ("prepare", "train", "finish")
CENT = 0.01


@dataclass(frozen=True)
class _Stage:
    """A stage that is not done yet. `plan` is given its `budget.usd`."""

    name: str
    run: str
    plan: Callable[[float | None], PlannedJob]


def prepare_pipeline(request: LaunchRequest) -> ReadyJob:
    """Return the stages that are not done, checked and chained. Raises SkytrainError for the first problem."""
    if request.keep or request.keep_seconds:
        raise SkytrainError(
            "--keep and --keep-on-failure: the machines of a stage end before the next one\n  leave them out"
        )
    if request.smoke is not None:
        raise SkytrainError(
            "--smoke: a pipeline has no smoke run\n  try its training first: skytrain launch train --smoke"
        )
    words = [*plan_words(request.plan, request.folders, request.overrides), *request.overrides]
    composed = request.compose(words)
    config = composed.config
    target = find_target(config.cloud.target)
    store = open_store(config.store)
    preview = is_preview(config.cloud)
    run = run_name(config)
    stages = [
        stage for stage in _stages(request, composed, run) if preview or not _is_done(stage.name, config, store, run)
    ]
    if not stages:
        raise SkytrainError(
            f"{run}: everything is done\n  its page: {store.url(f'runs/{run}/report.html')}; to do it anew: run=NAME"
        )
    earlier = None if preview else read_pipeline(store, run)
    jobs = _shared(stages, config, store, earlier)
    ready = target.prepare_stages(jobs, request.files(), request.tell)
    missing = (
        [*weights_to_stage(config), PREVIEW_NOTE] if preview else _check_inputs(stages, config, words, request.dry_run)
    )
    notes = [*ready.notes, *_assumed(stages, config), *missing]
    record = _record(config, stages, jobs, earlier, run)

    def start(reporter: Reporter) -> Sequence[str]:
        write_pipeline(store, record)
        return ready.start(reporter)

    return replace(
        ready,
        summary=[
            *ready.summary,
            *_last_stages(config, stages),
            *_total(config, record),
            ("store", store.root),
            *_left_out(stages, run),
        ],
        notes=notes,
        start=start,
        question="Launch the pipeline?",
        conclude=lambda: (ledger_rows(store, run), f"page: {store.url(f'runs/{run}/report.html')}"),
    )


def _stages(request: LaunchRequest, composed: Composed, run: str) -> list[_Stage]:
    prepared = _settings(composed, None, composed.config.budget.usd).config

    def prepare(usd: float | None) -> PlannedJob:
        settings = _settings(composed, None, usd)
        return PlannedJob(settings, plan_preparation(settings))

    def train(usd: float | None) -> PlannedJob:
        share = [] if usd is None else [f"budget.usd={usd:.4f}"]
        words = [*request.overrides, f"run={run}", *share]
        return PlannedJob(*planned_job(replace(request, job="train", overrides=words)))

    def finish(usd: float | None) -> PlannedJob:
        settings = _settings(composed, run, usd)
        return PlannedJob(settings, plan_finishing(settings))

    return [
        _Stage("prepare", job_name(prepared, "prepare"), prepare),
        _Stage("train", run, train),
        _Stage("finish", finish_name(run), finish),
    ]


def _settings(composed: Composed, run: str | None, usd: float | None) -> Composed:
    """Return the configuration with another run and budget: to compose it anew takes half a second."""
    words = [word for word in composed.overrides if not word.startswith(("run=", "budget.usd="))]
    given = [*([f"run={run}"] if run is not None else []), *([f"budget.usd={usd:.4f}"] if usd is not None else [])]
    config = composed.config
    return replace(
        composed,
        config=replace(config, run=run, budget=replace(config.budget, usd=usd)),
        values={**composed.values, "run": run, "budget": {**composed.values["budget"], "usd": usd}},
        overrides=(*words, *given),
    )


def _is_done(stage: str, config: Config, store: Store, run: str) -> bool:
    if stage == "prepare":
        return config.loader.files is not None or _has_tokens(config, store)
    if stage == "train":
        return _state(store, run) == "done"
    newest = max((commit.step for commit in committed(store, run)), default=0)
    return _state(store, run) == "done" and store.exists(f"{finish_folder(run, newest)}/report.json")


def _has_tokens(config: Config, store: Store) -> bool:
    try:
        find_training_data(store, config)
    except SkytrainError as error:
        if error.exit_code != 2:  # the store could not be asked
            raise
        return False
    return True


def _state(store: Store, run: str) -> str | None:
    try:
        return find_status(store, run).state
    except (NoRuns, SkytrainError) as error:
        if error.exit_code != 2:
            raise
        return None


def _shared(stages: Sequence[_Stage], config: Config, store: Store, earlier: PipelineRecord | None) -> list[PlannedJob]:
    """Return the stages with their shares of the budget.

    Those besides training get what they can cost until their kill times; training gets the rest. `budget.usd` of a run
    is for all its launches, so what it has cost already is added to its share.
    """
    total = config.budget.usd
    if total is None:
        return [stage.plan(None) for stage in stages]
    names = {stage.run for stage in stages} | {stage.run for stage in (earlier.stages if earlier else [])}
    spent = {run: spent_usd(store, run) for run in names}
    left = Budget(total).after(sum(spent.values())).usd or 0.0
    jobs: dict[str, PlannedJob] = {}
    kept = 0.0
    for stage in stages:
        if stage.name != "train":
            most = _most_usd(stage.plan(left))
            kept += most
            jobs[stage.name] = stage.plan(spent[stage.run] + most)
    for stage in stages:
        if stage.name == "train":
            share = left - kept
            try:
                jobs[stage.name] = stage.plan(spent[stage.run] + max(share, CENT))
            except BudgetTooSmall as error:
                others = sum(_most_usd(other.plan(None)) for other in stages if other is not stage)
                least = total - left + others + error.least_usd - spent[stage.run]
                raise SkytrainError(
                    f"budget.usd={total:g} is too small: training costs up to ${error.least_usd:,.2f} ({error.offer}), "
                    f"${others:.2f} is kept for the other stages, and ${total - left:.2f} is spent\n"
                    f"  try: budget.usd={math.ceil(least)}, or fewer tokens: with --how-many-tokens, plan says how many it buys"
                ) from None
            if share <= 0:
                raise SkytrainError(
                    f"budget.usd={total:g}: ${total - left:.2f} is spent, and ${kept:.2f} is kept for the other stages: "
                    "nothing is left to train with\n  raise budget.usd"
                )
    return [jobs[stage.name] for stage in stages]


def _most_usd(job: PlannedJob) -> float:
    """Return what a stage can cost until its latest kill time."""
    return max(offer.nodes * offer.max_usd_per_hour_each * offer.kill_after_seconds / 3600 for offer in job.plan.offers)


def _check_inputs(stages: Sequence[_Stage], config: Config, overrides: Sequence[str], dry_run: bool) -> list[str]:
    """Raise for an input that the machines of a stage would not find; a dry run only says so."""
    names = [stage.name for stage in stages]
    try:
        if "prepare" in names and config.loader.mixture:
            raise MissingInput(
                "loader.mixture: a pipeline prepares one data set, and a mixture has several\n"
                "  prepare each of them first: skytrain launch prepare data=NAME"
            )
        if "train" in names:
            find_inputs(config, "train", overrides, prepared="prepare" not in names)
        if "prepare" in names:
            find_inputs(config, "prepare", overrides)
        find_inputs(config, "finish", overrides, prepared="train" not in names)
    except SkytrainError as error:
        if not dry_run:
            raise
        return [f"a launch would be refused: {error}"]
    return []


def _record(
    config: Config, stages: Sequence[_Stage], jobs: Sequence[PlannedJob], earlier: PipelineRecord | None, run: str
) -> PipelineRecord:
    """Return the record of the pipeline; stages of an earlier launch that are done keep their place in it."""
    now = {}
    for stage, job in zip(stages, jobs, strict=True):
        offer = job.plan.choice
        now[stage.name] = LaunchedStage(
            name=stage.name,
            run=stage.run,
            machines=f"{offer.nodes} x {offer.instance_type} ({offer.market})",
            hours=offer.cost.hours,
            usd=offer.cost.usd,
            most_usd=job.composed.config.budget.usd,
        )
    before = {stage.name: stage for stage in (earlier.stages if earlier else [])}
    known = {**before, **now}
    return PipelineRecord(run, config.budget.usd, [known[name] for name in STAGES if name in known])


def _assumed(stages: Sequence[_Stage], config: Config) -> list[str]:
    """Return what the plan of the first stage does not know."""
    assumed = assumed_text(config) if stages[0].name == "prepare" else None
    return [] if assumed is None else [assumed]


def _last_stages(config: Config, stages: Sequence[_Stage]) -> list[tuple[str, str]]:
    """Return what the machine of the last stages does."""
    tasks = ", ".join(finish_settings(config).evaluation.tasks)
    return [("", f"evaluates {tasks}, exports, reports")] if stages[-1].name == "finish" else []


def _total(config: Config, record: PipelineRecord) -> list[tuple[str, str]]:
    hours = sum(stage.hours for stage in record.stages)
    usd = sum(stage.usd for stage in record.stages)
    budget = f" of ${config.budget.usd:.2f}" if config.budget.usd is not None else ""
    return [("together", f"{hours:.1f} h, ${usd:.2f}{budget}")]


def _left_out(stages: Sequence[_Stage], run: str) -> list[tuple[str, str]]:
    names = [stage.name for stage in stages]
    return [("done before", name) for name in STAGES if name not in names]


def ledger_rows(store: Store, run: str) -> list[tuple[str, ...]]:
    """Return what each stage of a run's pipeline was planned to cost and has cost, header first; none without one."""
    record = read_pipeline(store, run)
    if record is None:
        return []
    rows: list[tuple[str, ...]] = [("STAGE", "RUN", "MACHINES", "HOURS", "PLANNED", "DOLLARS", "AT MOST")]
    costs = pipeline_ledger(store, record)
    for cost in costs:
        stage = cost.stage
        most = "" if stage.most_usd is None else f"{stage.most_usd:.2f}"
        hours = f"{cost.seconds / 3600:.2f}"
        rows.append((stage.name, stage.run, stage.machines, hours, f"{stage.usd:.2f}", f"{cost.usd:.2f}", most))
    planned = sum(cost.stage.usd for cost in costs)
    seconds = sum(cost.seconds for cost in costs)
    usd = sum(cost.usd for cost in costs)
    budget = "" if record.budget_usd is None else f"{record.budget_usd:.2f}"
    return [*rows, ("all", "", "", f"{seconds / 3600:.2f}", f"{planned:.2f}", f"{usd:.2f}", budget)]
