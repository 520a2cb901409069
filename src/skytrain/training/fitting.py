"""Fitting: from the resume point of an attempt to its last step, through Lightning's trainer.

`fit` decides whether there is anything to train, `_train` builds the callbacks and runs the trainer. What one step
does, function by function, is in `step.py`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping

import lightning.pytorch as pl
import torch

from .. import __version__
from ..checkpoints import Keep, find_commit
from ..config import Interval, find_tasks
from ..evaluation import (
    Evaluator,
    Samples,
    Sampling,
    TaskEvaluator,
    TaskSources,
    ValidationLoss,
    plugged_in_evaluator,
)
from ..models import flops_per_token
from ..planning import Budget, device_peak
from ..runs import Cause, plain, was_measured
from .attempts import Attempt, AttemptResult
from .callbacks import DivergenceWatch, Profile, StepLog, StepSize
from .checkpointing import Checkpoints, SavePolicy, seconds_between_interruptions
from .evaluation_limits import EvaluationLimits
from .evaluations import EvaluateRestored, Evaluations, Scheduled
from .factory import make_loggers, make_module, make_own_callbacks, make_trainer
from .interruptions import Interruptions, StopSources
from .micro_batch import explaining_memory
from .random_state import RandomState
from .restoring import ApplyOptimizerSettings, StartAtStep
from .spending import BudgetWatch, OverrunWatch
from .step import CausalLM
from .straggler import watch_ranks


def fit(attempt: Attempt) -> AttemptResult:
    """Train to the last step, or until there is a reason to stop earlier. All ranks call this together."""
    context = attempt.context
    services = attempt.services
    step = attempt.resume.step
    run = attempt.run
    module = make_module(context.config, context.plan, run.model, services.reporter.note)
    log = _step_log(attempt)
    _note_resumed(attempt)
    services.start_heartbeat(lambda: {"step": max(step, module.global_step), **services.meter.record()})
    budget = Budget.of(context.config.budget)
    spending = services.meter.spending()
    if context.ranks.any(context.ranks.first and budget.is_spent(spending)):
        services.reporter.note(f"budget: {budget.spent_text(spending)} spent already: nothing is trained")
        result = AttemptResult(step=step, outcome="budget", cause=Cause("budget.usd was spent before this attempt"))
    elif step >= context.plan.stop_step:
        # The attempt before this one was killed after it saved its last checkpoint.
        result = _evaluate_last_checkpoint(attempt, module, log)
    else:
        result = _train(attempt, module, log)
    return dataclasses.replace(result, metrics=dict(log.last), train_seconds=module.clock.seconds())


def _train(attempt: Attempt, module: CausalLM, log: StepLog) -> AttemptResult:
    context = attempt.context
    services = attempt.services
    point = attempt.resume
    config = context.config
    plan = context.plan
    store = context.store
    ranks = context.ranks
    checkpoints = Checkpoints(store, context.run, ranks, _save_policy(attempt), services.reporter.note, services)
    interruptions = _interruptions(attempt, checkpoints.save_soon)

    def end(trainer: pl.Trainer, module: CausalLM, step: int) -> None:
        """Stop here, and save the step if that was not due: the evaluation that was cut short belongs to it."""
        interruptions.at_step(trainer, module, step)
        if step != point.step:
            checkpoints.save_last(trainer, module, step)

    limits = EvaluationLimits(ranks, interruptions, services.reporter.note)
    evaluations = Evaluations(_scheduled(attempt), [log.evaluated, checkpoints.evaluated], limits, end)

    # Callbacks act after a step in this order.
    callbacks: list[pl.Callback] = [interruptions, log]
    callbacks += watch_ranks(config, ranks, log, services.reporter, context.job.watchdog)
    if config.trainer.diverged_nats is not None:
        callbacks.append(DivergenceWatch(log, config.trainer.diverged_nats))
    if config.trainer.profile and ranks.first:
        callbacks.append(Profile(store, context.run, services.reporter))
    if point.step and point.key is None:
        callbacks.append(StartAtStep(point.step))
    if attempt.claim.changes:
        callbacks.append(ApplyOptimizerSettings())
    # Own callbacks come before the checkpoints: what they do in a step, and what they draw for it, is saved with it.
    # Evaluations come after the checkpoints: weights are safe before time is spent on measuring them.
    callbacks += [*make_own_callbacks(config), RandomState(ranks), checkpoints, evaluations]

    loggers = make_loggers(config, context.run, services.tensorboard) if ranks.first else []
    trainer = make_trainer(config, plan, store, callbacks, loggers)
    attempt.run.data.branches_off = not point.own
    with explaining_memory(config, plan, module):
        trainer.fit(module, datamodule=attempt.run.data, ckpt_path=point.key, weights_only=True)
    return _result_at(attempt, trainer.global_step, interruptions, evaluations.stopped)


def _evaluate_last_checkpoint(attempt: Attempt, module: CausalLM, log: StepLog) -> AttemptResult:
    """Make up for the evaluations that a killed attempt did not get to."""
    context = attempt.context
    data = attempt.run.data
    point = attempt.resume
    missing: list[Evaluator] = [ValidationLoss(data.val_dataloader)] if _is_validation_missing(attempt) else []
    missing += [task for task in _task_evaluators(attempt) if _is_task_missing(attempt, task)]
    if not missing:
        return AttemptResult(step=point.step, outcome=context.outcome_at(point.step))
    interruptions = _interruptions(attempt, lambda: None)
    stopped = []

    def end(trainer: pl.Trainer, module: CausalLM) -> None:
        interruptions.at_step(trainer, module, point.step)
        stopped.append(True)

    limits = EvaluationLimits(context.ranks, interruptions, attempt.services.reporter.note)
    evaluation = EvaluateRestored(
        missing, lambda trainer, metrics: log.evaluated(trainer, point.step, metrics), limits, end
    )
    trainer = make_trainer(context.config, context.plan, context.store, [evaluation], [])
    trainer.limit_val_batches = 1  # Lightning calls no hooks of a loop without batches
    trainer.validate(module, datamodule=data, ckpt_path=point.key, weights_only=True, verbose=False)
    return _result_at(attempt, point.step, interruptions, bool(stopped))


def _result_at(attempt: Attempt, step: int, interruptions: Interruptions, evaluation_stopped: bool) -> AttemptResult:
    context = attempt.context
    # After the last step a signal leaves an evaluation to the next attempt. Where no dollars are left, none will follow.
    resumes = evaluation_stopped and interruptions.outcome == "interrupted"
    if step >= context.plan.stop_step and not resumes:
        return AttemptResult(step=step, outcome=context.outcome_at(step))
    assert interruptions.outcome is not None, "training ended early without a reason"
    return AttemptResult(step=step, outcome=interruptions.outcome, cause=interruptions.cause)


def _step_log(attempt: Attempt) -> StepLog:
    context = attempt.context
    services = attempt.services
    trainer = context.config.trainer
    plan = context.plan
    peak = device_peak(torch.cuda.get_device_name()) if plan.device == "cuda" else None

    def write(step: int, record: Mapping[str, float]) -> None:
        services.metrics.write(step, record)
        if services.page is not None:
            services.page.record(step, record)
        if services.cloudwatch is not None:
            services.cloudwatch.metrics(step, record)

    size = StepSize(
        batches=plan.batches,
        flops_per_token=flops_per_token(attempt.run.model, trainer.sequence_length),
        peak_flops=peak * plan.ranks.world_size if peak else None,
    )
    return StepLog(services.reporter, write, services.meter, size, every=trainer.log_every)


def _note_resumed(attempt: Attempt) -> None:
    """Tell Prometheus how old the checkpoint is that the attempt resumes from."""
    page = attempt.services.page
    point = attempt.resume
    store = attempt.context.store
    if page is None or point.key is None or not point.own:
        return
    marker = store.stat(find_commit(store, point.key).marker_key)
    if marker is not None:
        page.committed(point.step, marker.modified)


def _save_policy(attempt: Attempt) -> SavePolicy:
    """Return when the run saves, what it keeps, and what is recorded with each checkpoint."""
    context = attempt.context
    trainer = context.config.trainer
    between = None
    if trainer.checkpoint_every == Interval():  # adaptive
        between = context.ranks.first_does(lambda: seconds_between_interruptions(context.store, context.run))
    return SavePolicy(
        every=trainer.checkpoint_every,
        keep=Keep(trainer.keep_checkpoints, trainer.keep_every, trainer.keep_best),
        attempt=attempt.claim.number,
        lineage=_lineage(attempt),
        seconds_between_interruptions=between or trainer.interrupted_every,
        patience_seconds=context.config.store.patience,
        budget=Budget.of(context.config.budget),
    )


def _lineage(attempt: Attempt) -> dict[str, object]:
    """Return where a checkpoint of this attempt comes from."""
    record = attempt.run.record
    settings = plain(attempt.context.config)
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


def _interruptions(attempt: Attempt, save_soon: Callable[[], None]) -> Interruptions:
    context = attempt.context
    services = attempt.services
    budget = None
    overrun = None
    limits = context.config.budget
    plan = context.plan
    if services.meter.usd_per_hour is not None and context.ranks.first:
        settle = torch.cuda.synchronize if plan.device == "cuda" else lambda: None
        overrun = OverrunWatch(services.meter, limits, plan.stop_step, plan.batches, settle)
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


def _scheduled(attempt: Attempt) -> list[Scheduled]:
    """Return what is measured during training, and when. A run with a validation split ends with a validation loss."""
    config = attempt.context.config
    data = attempt.run.data
    scheduled = []
    trainer = config.trainer
    if data.validation_windows:
        loss = ValidationLoss(data.val_dataloader)
        missed = _is_validation_missing(attempt)
        # A token costs less than in training: there is no backward pass.
        plan = attempt.context.plan
        smallest = min(plan.batches.sizes(plan.total_steps))
        steps = data.validation_windows * trainer.sequence_length / smallest
        scheduled.append(
            Scheduled(evaluator=loss, every=trainer.validate_every, at_end=True, at_start=missed, steps=steps)
        )
    if trainer.sample_every:
        sampling = Sampling(temperature=0.8, top_k=50, seed=config.seed)
        note = attempt.services.reporter.note
        samples = Samples(attempt.run.tokenizer, trainer.sample_prompt, sampling, trainer.sample_tokens, note)
        scheduled.append(Scheduled(evaluator=samples, every=trainer.sample_every))
    for task in _task_evaluators(attempt):
        missed = _is_task_missing(attempt, task)
        # It stops itself after any pass, which has fewer tokens than a step.
        scheduled.append(
            Scheduled(evaluator=task, every=config.evaluation.every, at_end=True, at_start=missed, steps=1.0)
        )
    for each in trainer.evaluators:
        scheduled.append(Scheduled(evaluator=plugged_in_evaluator(each, attempt.run.tokenizer), every=each.every))
    return scheduled


def _task_evaluators(attempt: Attempt) -> list[TaskEvaluator]:
    """Return the downstream tasks that are scored in training. Rank 0 fetches data that the store lacks."""
    context = attempt.context
    evaluation = attempt.context.config.evaluation
    if evaluation.every is None:
        return []
    sources = TaskSources(context.store, attempt.services.reporter.note, context.ranks.first_does)
    # Some meshes compute only sequences of this length; so that all meshes find the same, none sees more.
    limits = {"limit": evaluation.limit, "longest": context.config.trainer.sequence_length}
    return [TaskEvaluator(task, attempt.run.tokenizer, sources, **limits) for task in find_tasks(evaluation)]


def _is_validation_missing(attempt: Attempt) -> bool:
    """Return whether the validation due at the step that the attempt resumes from is missing.

    All ranks call this together.
    """
    every = attempt.context.config.trainer.validate_every
    return bool(attempt.run.data.validation_windows) and _is_missing(attempt, "val/loss", every)


def _is_task_missing(attempt: Attempt, task: TaskEvaluator) -> bool:
    """Return whether a downstream task due at the step that the attempt resumes from is missing."""
    return _is_missing(attempt, f"eval/{task.name}/items", attempt.context.config.evaluation.every)


def _is_missing(attempt: Attempt, metric: str, every: int | None) -> bool:
    """Return whether the run was killed after it committed the checkpoint, before it measured what was due there."""
    context = attempt.context
    point = attempt.resume
    due = bool(every and point.step % every == 0) or point.step >= context.plan.stop_step
    if not (point.step and point.own and due):
        return False
    return not context.ranks.first_does(lambda: was_measured(context.store, context.run, metric, point.step))
