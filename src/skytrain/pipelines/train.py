"""Train: prepared tokens and a configuration in, a run with committed checkpoints out.

The same call again resumes it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ..config import EXIT_CODES, Config
from ..jobs import Ranks
from ..runs import Reporter, Start
from ..storage import open_store
from ..tokens import NotPrepared, find_training_data
from ..training import (
    AttemptResult,
    RunContext,
    TrainRequest,
    begin_attempt,
    close_attempt,
    fit,
    join_run,
    open_run,
    resolve_settings,
    start_worker,
)
from .prepare import prepare

FRESH = Start()
SYNTHETIC = "skytrain.corpus.sources.Synthetic"  # tokens that are made, not read
OUTCOME_WORDS = {
    "done": "trained",
    "stopped": "stopped as asked",
    "budget": "stopped by its budget",
    "interrupted": "interrupted",
}
HINTS = {
    "budget": "the same command with a larger budget.usd resumes",
    "interrupted": "the same command resumes",
}


@dataclass(frozen=True)
class TrainedRun:
    """The state of a run after this attempt."""

    run: str
    url: str
    step: int
    total_steps: int
    outcome: str  # done, stopped (early, as configured), budget or interrupted
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
        reached = f"{OUTCOME_WORDS[self.outcome]} at step {self.step}/{self.total_steps}"
        hint = [HINTS[self.outcome]] if self.outcome in HINTS else []
        return "\n  ".join([f"{self.run}: {reached}{numbers}", self.url, *hint])


def train(
    config: Config,
    reporter: Reporter,
    start: Start = FRESH,
    *,
    allow_changes: bool = False,
    given: Collection[str] = (),
) -> TrainedRun:
    """Train a run to its end, or as far as signals, budget and settings allow.

    Every rank of a job calls this; rank 0 writes the run's record and reports progress. `given` names the settings
    that the user has set, which parallel=auto must not change.
    """
    request = TrainRequest(start, allow_changes, frozenset(given))
    ranks = Ranks.from_environment()
    if ranks.first and config.loader.files is None and config.data.source.target == SYNTHETIC:
        _make_tokens(config, reporter)
    if ranks.world_size == 1:  # one process: its settings decide whether it joins a process group at all
        config = resolve_settings(config, request, ranks, reporter)
    with start_worker(ranks) as worker:
        with join_run(worker, config, request, reporter) as context:
            result = _train(context)
        # Signals are still handled here: one that arrives now must not hide the outcome.
        worker.report_outcome(result.outcome)
    return TrainedRun(
        run=context.run,
        url=context.url,
        step=result.step,
        total_steps=context.plan.total_steps,
        outcome=result.outcome,
        metrics=result.metrics,
    )


def _make_tokens(config: Config, reporter: Reporter) -> None:
    """Make the tokens of data=synthetic where they are missing; other ranks wait meanwhile."""
    store = open_store(config.store).patient(config.store.patience)
    try:
        find_training_data(store, config)
    except NotPrepared:
        prepare(config, reporter)


def _train(context: RunContext) -> AttemptResult:
    run = open_run(context)
    if run.has_ended:
        step = run.resume.point.step
        context.reporter.note(f"{context.run} is at step {step} already: nothing to do")
        return AttemptResult(step, context.outcome_at(step))
    with begin_attempt(context, run) as attempt:
        result = fit(attempt)
    close_attempt(attempt, result)
    return result
