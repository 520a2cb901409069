"""The parts that Lightning's trainer runs: log, save policy, interruptions, evaluations and callbacks of an attempt."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping

import lightning.pytorch as pl
import torch

from .. import __version__
from ..checkpoints import Keep
from ..config import Interval, find_tasks
from ..evaluation import Samples, Sampling, TaskEvaluator, TaskSources, ValidationLoss, plugged_in_evaluator
from ..models import flops_per_token
from ..planning import Budget, device_peak
from ..runs import plain, was_measured
from .attempts import Attempt
from .callbacks import DivergenceWatch, Profile, StepLog, StepSize
from .checkpointing import Checkpoints, SavePolicy, seconds_between_interruptions
from .evaluation_limits import EvaluationLimits
from .evaluations import Evaluations, Scheduled
from .interruptions import BudgetWatch, Interruptions, StopSources
from .module import CausalLM
from .overrun import OverrunWatch
from .random_state import RandomState
from .restoring import ApplyOptimizerSettings, StartAtStep
from .straggler import watch_ranks


def make_step_log(attempt: Attempt) -> StepLog:
    context, services = attempt.context, attempt.services
    trainer, plan = context.config.trainer, context.plan
    peak = device_peak(torch.cuda.get_device_name()) if plan.device == "cuda" else None

    def write(step: int, record: Mapping[str, float]) -> None:
        services.metrics.write(step, record)
        if services.page is not None:
            services.page.record(step, record)
        if services.cloudwatch is not None:
            services.cloudwatch.metrics(step, record)

    size = StepSize(
        batch_tokens=plan.batch_tokens,
        micro_batches=plan.micro_batches,
        flops_per_token=flops_per_token(attempt.run.model, trainer.sequence_length),
        peak_flops=peak * plan.ranks.world_size if peak else None,
    )
    return StepLog(services.reporter, write, services.meter, size, every=trainer.log_every)


def make_callbacks(
    attempt: Attempt, log: StepLog, interruptions: Interruptions, checkpoints: Checkpoints, evaluations: Evaluations
) -> list[pl.Callback]:
    """In the order in which they act after a step."""
    context, services, point = attempt.context, attempt.services, attempt.resume
    config, ranks = context.config, context.ranks
    callbacks: list[pl.Callback] = [interruptions, log]
    callbacks += watch_ranks(config, ranks, log, services.reporter, context.job.watchdog)
    if config.trainer.diverged_nats is not None:
        callbacks.append(DivergenceWatch(log, config.trainer.diverged_nats))
    if config.trainer.profile and ranks.first:
        callbacks.append(Profile(context.store, context.run, services.reporter))
    if point.step and point.key is None:
        callbacks.append(StartAtStep(point.step))
    if attempt.claim.changes:
        callbacks.append(ApplyOptimizerSettings())
    # Evaluations come after the checkpoints: weights are safe before time is spent on measuring them.
    return [*callbacks, RandomState(ranks), checkpoints, evaluations]


def make_evaluation_callback(
    attempt: Attempt, log: StepLog, interruptions: Interruptions, checkpoints: Checkpoints
) -> Evaluations:
    def end(trainer: pl.Trainer, module: CausalLM, step: int) -> None:
        """Stops here, and saves the step if that was not due: the evaluation belongs to it."""
        interruptions.at_step(trainer, module, step)
        if step != attempt.resume.step:
            checkpoints.save_last(trainer, module, step)

    limits = EvaluationLimits(attempt.context.ranks, interruptions, attempt.services.reporter.note)
    return Evaluations(make_evaluations(attempt), [log.evaluated, checkpoints.evaluated], limits, end)


def make_evaluations(attempt: Attempt) -> list[Scheduled]:
    """What is measured during training, and when. A run with a validation split ends with a validation loss."""
    config, data, scheduled = attempt.context.config, attempt.run.data, []
    trainer = config.trainer
    if data.validation_windows:
        loss, missed = ValidationLoss(data.val_dataloader), is_validation_missing(attempt)
        # A token costs less than in training: there is no backward pass.
        steps = data.validation_windows * trainer.sequence_length / attempt.context.plan.batch_tokens
        scheduled.append(
            Scheduled(evaluator=loss, every=trainer.validate_every, at_end=True, at_start=missed, steps=steps)
        )
    if trainer.sample_every:
        sampling = Sampling(temperature=0.8, top_k=50, seed=config.seed)
        note = attempt.services.reporter.note
        samples = Samples(attempt.run.tokenizer, trainer.sample_prompt, sampling, trainer.sample_tokens, note)
        scheduled.append(Scheduled(evaluator=samples, every=trainer.sample_every))
    for task in make_task_evaluators(attempt):
        missed = is_task_missing(attempt, task)
        # It stops itself after any pass, which has fewer tokens than a step.
        scheduled.append(
            Scheduled(evaluator=task, every=config.evaluation.every, at_end=True, at_start=missed, steps=1.0)
        )
    for each in trainer.evaluators:
        scheduled.append(Scheduled(evaluator=plugged_in_evaluator(each, attempt.run.tokenizer), every=each.every))
    return scheduled


def make_task_evaluators(attempt: Attempt) -> list[TaskEvaluator]:
    """The downstream tasks that are scored in training. Rank 0 fetches data that the store lacks."""
    context, evaluation = attempt.context, attempt.context.config.evaluation
    if evaluation.every is None:
        return []
    sources = TaskSources(context.store, attempt.services.reporter.note, context.ranks.first_does)
    # Some meshes compute sequences of this length alone; so that all find the same, none sees more.
    limits = {"limit": evaluation.limit, "longest": context.config.trainer.sequence_length}
    return [TaskEvaluator(task, attempt.run.tokenizer, sources, **limits) for task in find_tasks(evaluation)]


def is_validation_missing(attempt: Attempt) -> bool:
    """Whether the validation due at the step that the attempt resumes from is missing. All ranks call this together."""
    every = attempt.context.config.trainer.validate_every
    return bool(attempt.run.data.validation_windows) and _is_missing(attempt, "val/loss", every)


def is_task_missing(attempt: Attempt, task: TaskEvaluator) -> bool:
    """The same for a downstream task."""
    return _is_missing(attempt, f"eval/{task.name}/items", attempt.context.config.evaluation.every)


def _is_missing(attempt: Attempt, metric: str, every: int | None) -> bool:
    """Whether the run was killed after it committed the checkpoint, and before what was due at the same step."""
    context, point = attempt.context, attempt.resume
    due = bool(every and point.step % every == 0) or point.step >= context.plan.stop_step
    if not (point.step and point.own and due):
        return False
    return not context.ranks.first_does(lambda: was_measured(context.store, context.run, metric, point.step))


def make_save_policy(attempt: Attempt) -> SavePolicy:
    """When the run saves and what it keeps, by its configuration; and what is recorded with each checkpoint."""
    context, meter, services = attempt.context, attempt.services.meter, attempt.services
    trainer, budget = context.config.trainer, Budget.of(context.config.budget)
    between = None
    if trainer.checkpoint_every == Interval():  # adaptive
        between = context.ranks.first_does(lambda: seconds_between_interruptions(context.store, context.run))
    return SavePolicy(
        every=trainer.checkpoint_every,
        keep=Keep(trainer.keep_checkpoints, trainer.keep_every, trainer.keep_best),
        attempt=attempt.claim.number,
        lineage=_lineage(attempt),
        spend=meter.record,
        note_save=meter.note_save,
        note_commit=services.page.committed if services.page is not None else lambda step: None,
        affordable=lambda: budget.can_afford_save(meter.spending()),
        seconds_between_interruptions=between or trainer.interrupted_every,
        before_commit=services.sync.flush_for_commit,
        patience_seconds=context.config.store.patience,
    )


def _lineage(attempt: Attempt) -> dict[str, object]:
    """Where a checkpoint of this attempt comes from."""
    record, settings = attempt.run.record, plain(attempt.context.config)
    return {
        "run": record.name,
        "attempt": attempt.claim.number,
        "resumed_from": attempt.resume.label or None,
        "skytrain": __version__,
        "code_revision": record.code_revision,
        "config_sha256": hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest(),
        "model": settings["model"],
        "tokenizer": record.tokenizer_id,
        "data": record.data,
    }


def make_interruptions(attempt: Attempt, save_soon: Callable[[], None]) -> Interruptions:
    context, services = attempt.context, attempt.services
    budget, overrun = None, None
    limits, plan = context.config.budget, context.plan
    if services.meter.usd_per_hour is not None and context.ranks.first:
        settle = torch.cuda.synchronize if plan.device == "cuda" else lambda: None
        overrun = OverrunWatch(services.meter, limits, plan.stop_step, settle)
        if limits.usd is not None:
            budget = BudgetWatch(services.meter, Budget.of(limits))
    sources = StopSources(
        signals=context.signals,
        notices=services.notices,
        budget=budget,
        taken_over=lambda: services.takeover.found,
        stop_asked=lambda: services.stop.found,
        overrun=overrun,
    )
    return Interruptions(services.reporter, context.ranks, sources, save_soon)
