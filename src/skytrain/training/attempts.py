"""An attempt at a run: claimed in the store, served by its services while it lasts, and closed with an outcome."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ..config import advice
from ..jobs import ClaimedAttempt, JoinedGeneration, Supervision, check_generation, report_attempt
from ..runs import Cause, claim_attempt, create_run, failures_recorded, now, record_resume, save_run, write_outcome
from .context import RunContext
from .opening import OpenedRun
from .resume import ResumePoint, fetch_checkpoint, find_changes, find_lost_metrics, find_resume_point
from .services import RunServices, find_host, run_services
from .spending import spent_before, start_meter
from .summary import describe_run


@dataclass(frozen=True)
class AttemptClaim:
    """The facts that rank 0 settles for all ranks: the attempt's number, and where it resumes."""

    number: int
    resume: ResumePoint
    changes: list[str]  # a line for each setting that differs from before


@dataclass(frozen=True)
class Attempt:
    """An attempt at a run, on this rank."""

    context: RunContext
    run: OpenedRun
    claim: AttemptClaim
    services: RunServices

    @property
    def resume(self) -> ResumePoint:
        return self.claim.resume


@dataclass(frozen=True)
class AttemptResult:
    """The step that an attempt reached, and why it ended there."""

    step: int
    outcome: str  # done, stopped (early, as configured), budget or interrupted
    cause: Cause | None = None
    metrics: dict[str, float] = field(default_factory=dict)  # the last value of each metric
    train_seconds: float = 0.0


@contextmanager
def begin_attempt(context: RunContext, run: OpenedRun) -> Iterator[Attempt]:
    """Claim the next attempt and run its services.

    All ranks call this together; an error is recorded in the store.
    """
    ranks = context.ranks
    store = context.store
    point = run.resume.point
    host = find_host(ranks, context.reporter)
    spent = ranks.first_does(lambda: spent_before(store, context.run, point.key if point.own else None))
    meter = start_meter(context, host, spent)
    claim = ranks.first_does(lambda: _claim(context, run))
    report_attempt(ranks.local_rank, ClaimedAttempt(context.run, claim.number, claim.resume.step))
    with (
        failures_recorded(store, context.run, claim.number),
        run_services(context, claim.number, host, meter) as services,
    ):
        attempt = Attempt(context, run, claim, services)
        _announce(attempt)
        yield attempt


def _claim(context: RunContext, run: OpenedRun) -> AttemptClaim:
    """Claim the attempt, and only then find where to resume.

    What an older attempt commits from here on does not count.
    """
    store = context.store
    record = run.record
    plan = context.plan
    if not create_run(store, record):
        # Another process may have created it a moment ago with other settings: its attempt must not be taken over.
        find_changes(context, record.data)
    supervision = Supervision.from_environment()
    if supervision is not None:
        supervision.check()
    changes = run.resume.changes
    joined = JoinedGeneration.from_environment()
    facts: dict[str, Any] = {
        "world_size": plan.ranks.world_size,
        "ranks_per_node": plan.ranks.local_size,
        "mesh": str(plan.mesh),
        "changes": changes,
    }
    if joined is None:
        number = claim_attempt(store, record.name, **facts)
    else:
        number = claim_attempt(
            store,
            record.name,
            lambda: check_generation(store, record.name, joined.number),
            generation=joined.number,
            **facts,
        )
    point = find_resume_point(context, run.resume.point)
    record_resume(store, record.name, number, point.step)
    save_run(store, record)
    lost = find_lost_metrics(store, record.name, point, context.config.trainer.log_every)
    point = dataclasses.replace(point, warnings=(*point.warnings, *lost))
    return AttemptClaim(number, fetch_checkpoint(store, record.name, point), [*changes, *point.changes])


def _announce(attempt: Attempt) -> None:
    """Print the table of settings, warnings and changes."""
    context = attempt.context
    point = attempt.resume
    reporter = attempt.services.reporter
    rows = describe_run(context, attempt.run)
    if point.label:
        rows.append(("resumes", f"from {point.label}"))
    reporter.table(f"run {context.run}", rows)
    network = context.job.network.warnings if context.job.network else []
    for line in [*advice(context.plan.mesh, context.ranks.local_size), *network, *point.warnings]:
        reporter.note(f"warning: {line}")
    for line in attempt.claim.changes:
        reporter.note(line)


def close_attempt(attempt: Attempt, result: AttemptResult) -> None:
    """Write the attempt's outcome and the run's record, on rank 0."""
    context = attempt.context
    record = attempt.run.record
    if not context.ranks.first:
        return
    write_outcome(context.store, context.run, attempt.claim.number, result.outcome, result.step, result.cause)
    finished_at = now() if result.outcome == "done" else None
    seconds = (record.train_seconds or 0.0) + result.train_seconds
    save_run(
        context.store,
        dataclasses.replace(record, finished_at=finished_at, train_seconds=seconds, step=result.step),
    )
