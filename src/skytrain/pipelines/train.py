"""Train: prepared tokens and a configuration in, a run with committed checkpoints out. The same call again continues it."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass

import torch

from ..config import Config, ConfigError, advice, uses_process_group
from ..jobs import JoinedJob, Ranks, Supervision, node_facts, report_resume
from ..parallel import choose_layout, this_machine
from ..runs import (
    EXIT_CODES,
    Cause,
    Meter,
    Reporter,
    Silent,
    Start,
    attempt_numbers,
    failures_recorded,
    load_run,
    now,
    read_outcome,
    run_name,
    save_run,
    was_measured,
    write_outcome,
)
from ..storage import Store, open_store
from ..tokens import TokenDataModule, Tokenizer, find_training_data, open_mixture, open_tokenizer
from ..training import (
    Attempt,
    BeginAt,
    Beside,
    BudgetWatch,
    CausalLM,
    Checkpoints,
    Evaluations,
    Interruptions,
    Profile,
    RandomState,
    SettingsNow,
    Signals,
    StepLog,
    TrainingPlan,
    begin,
    beginning_model,
    beside,
    check_resume,
    choose_device,
    describe,
    device_name,
    explaining_memory,
    find_host,
    make_data,
    make_evaluations,
    make_loggers,
    make_module,
    make_step_log,
    make_trainer,
    open_run,
    plan_training,
    save_plan,
    seed_of_rank,
    spent_before,
    start_meter,
    watch_ranks,
    with_micro_batch,
    with_precision,
    with_size,
)

FRESH = Start()
WORDS = {
    "done": "trained",
    "stopped": "stopped as asked",
    "budget": "stopped by its budget",
    "interrupted": "interrupted",
}
HINTS = {
    "budget": "the same command with a larger budget.usd continues",
    "interrupted": "the same command continues",
}


@dataclass(frozen=True)
class Ended:
    """The step that an attempt reached, and why it ended there."""

    step: int
    outcome: str
    cause: Cause | None = None


@dataclass(frozen=True)
class Trained:
    """How a run stands after this attempt."""

    run: str
    url: str
    step: int
    total_steps: int
    outcome: str  # done, stopped (early, as asked), budget or interrupted
    metrics: dict[str, float]

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.outcome]

    def summary(self) -> str:
        numbers = "".join(
            f" | {name} {self.metrics[name]:.4f}" for name in ("train/loss", "val/loss") if name in self.metrics
        )
        if "cost/usd" in self.metrics:
            numbers += f" | ${self.metrics['cost/usd']:.2f}"
        lines = [f"{self.run}: {WORDS[self.outcome]} at step {self.step}/{self.total_steps}{numbers}", self.url]
        return "\n  ".join([*lines, *([HINTS[self.outcome]] if self.outcome in HINTS else [])])


def train(
    config: Config,
    reporter: Reporter,
    start: Start = FRESH,
    *,
    allow_changes: bool = False,
    given: Collection[str] = (),
) -> Trained:
    """On every rank of a job alike; the first one keeps the record and speaks. `given`: settings that parallel=auto must keep."""
    ranks = Ranks.from_environment()
    if ranks.world_size == 1:
        config = _with_precision(config, start)
        config = _settle(config, ranks, reporter, given, start)
    supervision = Supervision.from_environment()
    with Signals(supervised=supervision is not None) as signals:
        if supervision is not None:
            supervision.arrive(ranks.local_rank)
        if not uses_process_group(config):
            job, plan = JoinedJob(), plan_training(config, ranks)
            trained = _train(config, plan, ranks, job, signals, reporter, start, allow_changes)
        else:
            # The ranks meet before anything is decided: what one of them cannot do, all must hear of.
            facts = node_facts(config) if ranks.world_size > 1 else {}
            with ranks.joined(choose_device(config), timeout_seconds=config.parallel.timeout, facts=facts) as job:
                voice = reporter if ranks.first else Silent()
                config = ranks.first_does(lambda: _with_precision(config, start))
                config = _settle(config, ranks, voice, given, start)
                plan = plan_training(config, ranks)
                trained = _train(config, plan, ranks, job, signals, voice, start, allow_changes)
        # While signals are still taken: one that comes now must not hide how it ended.
        if supervision is not None and ranks.local_rank == 0:
            supervision.report_outcome(trained.outcome)
        return trained


def _with_precision(config: Config, start: Start) -> Config:
    """With trainer.precision=auto: what the run has computed in so far; for a new run, what this device computes best.

    The run's name stays that of the settings as they were given, so that it is found again on other hardware.
    """
    if config.trainer.precision != "auto":
        return config
    store, name = open_store(config.store), run_name(config, start)
    known = load_run(store, name) if store.exists(f"runs/{name}/run.json") else None
    before = known.config["trainer"]["precision"] if known else None
    return dataclasses.replace(with_precision(config, before), run=name)


def _settle(config: Config, ranks: Ranks, reporter: Reporter, given: Collection[str], start: Start) -> Config:
    """With parallel=auto, the layout that the first rank chooses for all of them; then a micro-batch where it is to be found."""
    if config.parallel.name == "auto":
        device, kept = choose_device(config), frozenset(given)
        chosen, why = ranks.first_does(lambda: choose_layout(config, ranks, this_machine(ranks, device), kept))
        reporter.note(why)
        return chosen
    if config.trainer.micro_batch is not None:
        return config
    if ranks.world_size > 1:
        raise ConfigError(
            "trainer.micro_batch", "auto measures on one device", hint="with several processes, try parallel=auto"
        )
    device = choose_device(config)
    if size := _micro_batch_before(config, start, device):
        reporter.note(f"micro-batch: {size}, as before")
        return with_size(config, size)
    return with_micro_batch(config, device, reporter.note)


def _micro_batch_before(config: Config, start: Start, device: str) -> int | None:
    """Of the run that is continued, where it was last on such a device: found anew it might be another, and the last bits with it."""
    store, name = open_store(config.store).patient(config.store.patience), run_name(config, start)
    if not store.exists(f"runs/{name}/run.json"):
        return None
    record = load_run(store, name)
    size: int = record.config["trainer"]["micro_batch"]
    return size if record.hardware["device"] == device_name(device) else None


def _train(
    config: Config,
    plan: TrainingPlan,
    ranks: Ranks,
    job: JoinedJob,
    signals: Signals,
    reporter: Reporter,
    start: Start,
    allow_changes: bool,
) -> Trained:
    store, name = open_store(config.store).patient(config.store.patience), run_name(config, start)
    prepared = ranks.first_does(lambda: find_training_data(store, config))
    tokenizer = open_tokenizer(config.tokenizer, store, prepared.tokenizer_id)
    mixture = open_mixture(store, config.loader, prepared.tokenizer_id)
    data = make_data(config, plan, store, prepared, mixture, tokenizer)
    sources = [prepared, *mixture.values()]
    check = ranks.first_does(lambda: check_resume(config, plan, store, start, sources, allow_changes))
    beginning = check.beginning
    torch.manual_seed(config.seed if ranks.first else seed_of_rank(str(config.seed).encode(), ranks.rank))
    model = beginning_model(config, store, beginning)
    record = ranks.first_does(lambda: open_run(config, store, sources, model, plan, start))
    if beginning.step >= plan.stop_step and ranks.first_does(lambda: _has_ended(store, name)):
        reporter.note(f"{name} is at step {beginning.step} already: nothing to do")
        outcome = _reached(plan, beginning.step)
        return Trained(name, store.url(f"runs/{name}"), beginning.step, plan.total_steps, outcome, {})
    host = find_host(ranks, reporter)
    spent = ranks.first_does(lambda: spent_before(store, name, beginning.key if beginning.own else None))
    meter = start_meter(config, ranks, host, spent, reporter)
    attempt = ranks.first_does(lambda: begin(config, plan, store, start, record, check, allow_changes))
    report_resume(ranks.local_rank, attempt.beginning.step)
    with (
        failures_recorded(store, name, attempt.number),
        beside(config, store, name, attempt.number, ranks, host.metadata, reporter) as side,
    ):
        side.reporter.table(
            f"run {name}", describe(config, plan, attempt.record, prepared, data, model, job, attempt.beginning.label)
        )
        network = job.network.warnings if job.network else []
        for line in [*advice(plan.mesh, ranks.local_size), *network, *attempt.beginning.warnings]:
            side.reporter.note(f"warning: {line}")
        for line in attempt.changes:
            side.reporter.note(line)
        module = make_module(config, plan, model, side.reporter.note)
        log = make_step_log(config, plan, model, side, meter)
        ended = _fit(config, plan, job, signals, store, attempt, module, data, tokenizer, side, log, meter)
    if ranks.first:
        write_outcome(store, name, attempt.number, ended.outcome, ended.step, ended.cause)
        seconds = (attempt.record.train_seconds or 0.0) + module.clock.seconds()
        finished_at = now() if ended.outcome == "done" else None
        save_run(
            store, dataclasses.replace(attempt.record, finished_at=finished_at, train_seconds=seconds, step=ended.step)
        )
    return Trained(name, store.url(f"runs/{name}"), ended.step, plan.total_steps, ended.outcome, dict(log.last))


def _fit(
    config: Config,
    plan: TrainingPlan,
    job: JoinedJob,
    signals: Signals,
    store: Store,
    attempt: Attempt,
    module: CausalLM,
    data: TokenDataModule,
    tokenizer: Tokenizer,
    side: Beside,
    log: StepLog,
    meter: Meter,
) -> Ended:
    ranks, beginning = plan.ranks, attempt.beginning
    side.beat(lambda: {"step": max(beginning.step, module.global_step), **meter.record()})
    if ranks.any(ranks.first and _spent(config, meter)):
        side.reporter.note(f"budget: ${meter.usd():.2f} of ${config.budget.usd:g} spent already: nothing is trained")
        return Ended(beginning.step, "budget", Cause("budget.usd was spent before this attempt"))
    missed = ranks.first_does(lambda: _missed_validation(config, plan, store, attempt)) and bool(
        data.validation_windows
    )
    if beginning.step >= plan.stop_step:
        # The attempt before saved its last checkpoint, and came no further.
        if missed:
            trainer = make_trainer(config, plan, store, [], [])
            trainer.limit_val_batches = 1.0  # Lightning's own loop: there is no step at which ours would run
            trainer.validate(module, datamodule=data, ckpt_path=beginning.key, weights_only=True, verbose=False)
            _note_validation(beginning.step, module, side, log)
        return Ended(beginning.step, _reached(plan, beginning.step))
    saves = save_plan(config, store, attempt.record, attempt.number, beginning.label, meter, side.sync.flush_for_commit)
    checkpoints = Checkpoints(store, attempt.run, ranks, saves, side.reporter.note)
    interruptions = Interruptions(
        side.reporter,
        ranks,
        signals,
        notices=side.notices,
        budget=_budget(config, ranks, meter),
        taken_over=lambda: side.takeover.found,
        save_soon=checkpoints.save_soon,
    )
    callbacks = [
        interruptions,
        log,
        *watch_ranks(config, ranks, log, side.reporter, job.watchdog),
        *([Profile(store, attempt.run, side.reporter)] if config.trainer.profile and ranks.first else []),
        *([BeginAt(beginning.step)] if beginning.step and beginning.key is None else []),
        *([SettingsNow()] if attempt.changes else []),
        RandomState(ranks),
        checkpoints,
        # Behind the checkpoints: weights are safe before time is spent on measuring them.
        Evaluations(
            make_evaluations(config, data, tokenizer, side.reporter, missed_validation=missed),
            [log.evaluated, checkpoints.evaluated],
        ),
    ]
    loggers = make_loggers(config, attempt.run, side.tensorboard) if ranks.first else []
    trainer = make_trainer(config, plan, store, list(callbacks), loggers)
    with explaining_memory(config, plan, module):
        trainer.fit(module, datamodule=data, ckpt_path=beginning.key, weights_only=True)
    if trainer.global_step >= plan.stop_step:
        return Ended(trainer.global_step, _reached(plan, trainer.global_step))
    assert interruptions.outcome is not None, "training ended early, and nobody knows why"
    return Ended(trainer.global_step, interruptions.outcome, interruptions.cause)


def _note_validation(step: int, module: CausalLM, side: Beside, log: StepLog) -> None:
    assert module.val_loss is not None
    log.last["val/loss"] = module.val_loss
    side.metrics.write(step, {"val/loss": module.val_loss})


def _reached(plan: TrainingPlan, step: int) -> str:
    return "done" if step >= plan.total_steps else "stopped"


def _has_ended(store: Store, run: str) -> bool:
    """Whether the newest attempt has said how it ended."""
    return read_outcome(store, run, attempt_numbers(store, run)[-1]) is not None


def _missed_validation(config: Config, plan: TrainingPlan, store: Store, attempt: Attempt) -> bool:
    """Whether the run was cut off after a checkpoint's commit and before the validation at the same step."""
    step, every = attempt.beginning.step, config.trainer.validate_every
    due = bool(every and step % every == 0) or step >= plan.stop_step
    if not step or not due or not attempt.beginning.own:
        return False
    return not was_measured(store, attempt.run, "val/loss", step)


def _spent(config: Config, meter: Meter) -> bool:
    limit = config.budget.usd
    return limit is not None and meter.usd_per_hour is not None and meter.usd(in_seconds=config.budget.margin) >= limit


def _budget(config: Config, ranks: Ranks, meter: Meter) -> BudgetWatch | None:
    if config.budget.usd is None or meter.usd_per_hour is None or not ranks.first:
        return None
    return BudgetWatch(meter, config.budget.usd, config.budget.margin)
