"""Trials of a sweep as runs in this process: torch is loaded once, and kernels are compiled once."""

from __future__ import annotations

import dataclasses
import gc
import math
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ..bench import time_steps
from ..checkpoints import committed_steps
from ..config import EXIT_CODES, INTERRUPTED, Config, SkytrainError
from ..jobs import handled_signals
from ..runs import (
    Cause,
    Reporter,
    Start,
    Superseded,
    attempt_numbers,
    last_metrics,
    load_run,
    read_outcome,
    read_spend,
    write_outcome,
)
from ..storage import Store
from ..training import Diverged
from ..tuning import (
    HourlyPrice,
    RungShape,
    StepEstimate,
    SweepStopped,
    SweepStore,
    Trial,
    TrialResult,
    TrialTaken,
    decay_start,
    shape_named,
    trial_config,
    trunk_of,
)
from .train import FRESH, train

STOP_SHARE = 0.03  # of a trial's limit that its own budget keeps back


class SweepInterrupted(SkytrainError):
    """The process was asked to stop; the trial has committed a checkpoint."""

    exit_code = EXIT_CODES[INTERRUPTED]


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """Every signal that stops a job raises KeyboardInterrupt; a trial handles them itself, and commits first."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = {number: signal.signal(number, signal.default_int_handler) for number in handled_signals()}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


class TrialReporter:
    """Shows the progress of a trial under its number, without the notes and tables of an ordinary run."""

    def __init__(self, reporter: Reporter, number: int) -> None:
        self._reporter = reporter
        self._stage = f"trial {number}"

    def note(self, text: str) -> None:
        if text.startswith(("warning", "budget")):
            self._reporter.note(f"{self._stage}: {text}")

    def table(self, title: str, rows: Sequence[tuple[str, str]]) -> None:
        return

    def progress(
        self, stage: str, done: float, total: float | None, detail: str = "", seconds_left: float | None = None
    ) -> None:
        if stage == "train":
            self._reporter.progress(self._stage, done, total, detail, seconds_left)


class LocalRunner:
    """Runs trials of one sweep in this process, one after another."""

    def __init__(
        self, sweep: str, store: Store, shapes: Sequence[RungShape], price: HourlyPrice, reporter: Reporter
    ) -> None:
        self._sweep = sweep
        self._store = store
        self._shapes = shapes
        self._price = price
        self._reporter = reporter

    def run(self, number: int, trial: Trial, limit_usd: float) -> TrialResult:
        run = f"{self._sweep}-{number:03d}"
        self._record_kill(run)
        earlier = sum(count.usd for count in read_spend(self._store, run).counts.values())
        config = self._limited(trial_config(shape_named(self._shapes, trial.rung), trial, run), limit_usd)
        began = time.monotonic()
        outcome = "done"
        try:
            outcome = train(config, TrialReporter(self._reporter, number), self._start(config)).outcome
        except Diverged:
            outcome = "diverged"
        except Superseded as error:
            raise TrialTaken(str(error)) from None
        finally:
            seconds = time.monotonic() - began
            _free_memory()
        if outcome == "stopped":
            raise SweepStopped("the sweep was stopped as asked\n  the same command continues it")
        if outcome == "interrupted":
            raise SweepInterrupted(f"trial {number} was interrupted\n  the same command continues the sweep")
        usd = earlier + self._price.charged(seconds)
        metrics = last_metrics(self._store, run)
        # Without a validation there is nothing to compare: the training loss is that of one batch.
        loss = {"diverged": math.inf, "budget": None}.get(outcome, metrics.get("val/loss"))
        shown = {name: value for name, value in metrics.items() if name.startswith(("train/loss", "eval/"))}
        extra = {"run": run, "outcome": outcome, **shown}
        return TrialResult(
            loss=loss,
            usd=usd,
            seconds=usd / self._price.charged(1.0),
            extra=extra,
            session_usd=self._price.charged(seconds),
        )

    def _start(self, config: Config) -> Start:
        """From scratch, or where the constant part of a shorter trial at the same value has ended."""
        assert config.run is not None
        if not config.tune.trunk:
            return FRESH
        if self._store.exists(f"runs/{config.run}/run.json"):  # it was killed: as it began
            return Start(load_run(self._store, config.run).started_from)
        others = {}
        sweep = SweepStore(self._store, self._sweep)
        for one in sweep.decisions():
            run = f"{self._sweep}-{one.number:03d}"
            shape = shape_named(self._shapes, one.trial.rung)
            other = trial_config(shape, one.trial, run)
            if decay_start(other) in committed_steps(self._store, run):
                others[run] = other
        return Start(trunk_of(config, others))

    def _limited(self, config: Config, limit_usd: float) -> Config:
        """The run stops by itself before it has used its reserve."""
        seconds = limit_usd / self._price.charged(1.0)
        budget = dataclasses.replace(
            config.budget,
            usd=limit_usd,
            usd_per_hour=self._price.usd_per_hour,
            margin=STOP_SHARE * seconds,
            overrun="stop",
            whole_machine=False,
            planned_usd=None,
            planned_step_seconds=None,
        )
        return dataclasses.replace(config, budget=budget)

    def _record_kill(self, run: str) -> None:
        """Closes an attempt that was killed with this sweep's earlier process.

        The time until now is then not charged, unless the machine is rented.
        """
        numbers = attempt_numbers(self._store, run)
        if numbers and read_outcome(self._store, run, numbers[-1]) is None:
            step = last_metrics(self._store, run).get("step", 0)
            write_outcome(self._store, run, numbers[-1], INTERRUPTED, step, Cause("the sweep's process was killed"))


def dry_run(config: Config, reporter: Reporter) -> StepEstimate:
    """Twenty steps of a configuration on this machine."""
    began = time.monotonic()
    seconds = time_steps(config, reporter)
    estimate = StepEstimate.of(seconds, time.monotonic() - began)
    _free_memory()
    return estimate


def _free_memory() -> None:
    """A trial's model must not stay beside the next one's."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
