"""Fitting: from the resume point of an attempt to its last step, through Lightning's trainer."""

from __future__ import annotations

import dataclasses

import lightning.pytorch as pl

from ..checkpoints import find_commit
from ..evaluation import Evaluator, ValidationLoss
from ..planning import Budget
from ..runs import Cause
from .attempts import Attempt, AttemptResult
from .callbacks import StepLog
from .checkpointing import Checkpoints
from .components import (
    is_task_missing,
    is_validation_missing,
    make_callbacks,
    make_evaluation_callback,
    make_interruptions,
    make_save_policy,
    make_step_log,
    make_task_evaluators,
)
from .evaluation_limits import EvaluationLimits
from .evaluations import EvaluateRestored
from .factory import make_loggers, make_module, make_trainer
from .interruptions import Interruptions
from .micro_batch import explaining_memory
from .module import CausalLM


def fit(attempt: Attempt) -> AttemptResult:
    """Trains to the last step, or until there is a reason to stop earlier. All ranks call this together."""
    context, services, step = attempt.context, attempt.services, attempt.resume.step
    run = attempt.run
    module = make_module(context.config, context.plan, run.model, services.reporter.note, run.tokenizer.eot)
    log = make_step_log(attempt)
    _note_resumed(attempt)
    services.start_heartbeat(lambda: {"step": max(step, module.global_step), **services.meter.record()})
    budget, spending = Budget.of(context.config.budget), services.meter.spending()
    if context.ranks.any(context.ranks.first and budget.is_spent(spending)):
        services.reporter.note(f"budget: {budget.spent_text(spending)} spent already: nothing is trained")
        result = AttemptResult(step=step, outcome="budget", cause=Cause("budget.usd was spent before this attempt"))
    elif step >= context.plan.stop_step:
        # The attempt before this one was killed after it saved its last checkpoint.
        result = _evaluate_last_checkpoint(attempt, module, log)
    else:
        result = _train(attempt, module, log)
    return dataclasses.replace(result, metrics=dict(log.last), train_seconds=module.clock.seconds())


def _note_resumed(attempt: Attempt) -> None:
    """Tells Prometheus how old the checkpoint is that the attempt resumes from."""
    page, point, store = attempt.services.page, attempt.resume, attempt.context.store
    if page is None or point.key is None or not point.own:
        return
    marker = store.stat(find_commit(store, point.key).marker_key)
    if marker is not None:
        page.committed(point.step, marker.modified)


def _train(attempt: Attempt, module: CausalLM, log: StepLog) -> AttemptResult:
    context, services = attempt.context, attempt.services
    config, plan, store = context.config, context.plan, context.store
    checkpoints = Checkpoints(store, context.run, context.ranks, make_save_policy(attempt), services.reporter.note)
    interruptions = make_interruptions(attempt, checkpoints.save_soon)
    evaluations = make_evaluation_callback(attempt, log, interruptions, checkpoints)
    callbacks = make_callbacks(attempt, log, interruptions, checkpoints, evaluations)
    loggers = make_loggers(config, context.run, services.tensorboard) if context.ranks.first else []
    trainer = make_trainer(config, plan, store, callbacks, loggers)
    attempt.run.data.branches_off = not attempt.resume.own
    with explaining_memory(config, plan, module):
        trainer.fit(module, datamodule=attempt.run.data, ckpt_path=attempt.resume.key, weights_only=True)
    step = trainer.global_step
    return _result_at(attempt, step, interruptions, evaluations.stopped)


def _result_at(attempt: Attempt, step: int, interruptions: Interruptions, evaluation_stopped: bool) -> AttemptResult:
    context = attempt.context
    # After the last step a signal leaves an evaluation to the next attempt. Where no dollars are left, none will follow.
    resumes = evaluation_stopped and interruptions.outcome == "interrupted"
    if step >= context.plan.stop_step and not resumes:
        return AttemptResult(step=step, outcome=context.outcome_at(step))
    assert interruptions.outcome is not None, "training ended early without a reason"
    return AttemptResult(step=step, outcome=interruptions.outcome, cause=interruptions.cause)


def _evaluate_last_checkpoint(attempt: Attempt, module: CausalLM, log: StepLog) -> AttemptResult:
    """Makes up for the evaluations that a killed attempt did not get to."""
    context, data, point = attempt.context, attempt.run.data, attempt.resume
    missing: list[Evaluator] = [ValidationLoss(data.val_dataloader)] if is_validation_missing(attempt) else []
    missing += [task for task in make_task_evaluators(attempt) if is_task_missing(attempt, task)]
    if not missing:
        return AttemptResult(step=point.step, outcome=context.outcome_at(point.step))
    interruptions, stopped = make_interruptions(attempt, lambda: None), []

    def end(trainer: pl.Trainer, module: CausalLM) -> None:
        interruptions.at_step(trainer, module, point.step)
        stopped.append(True)

    limits = EvaluationLimits(context.ranks, interruptions, attempt.services.reporter.note)
    evaluation = EvaluateRestored(
        missing, lambda trainer, metrics: log.evaluated(trainer, point.step, metrics), limits, end
    )
    trainer = make_trainer(context.config, context.plan, context.store, [evaluation], [])
    trainer.limit_val_batches = 1  # Lightning calls no hook of a loop that has no batch at all
    trainer.validate(module, datamodule=data, ckpt_path=point.key, weights_only=True, verbose=False)
    return _result_at(attempt, point.step, interruptions, bool(stopped))
