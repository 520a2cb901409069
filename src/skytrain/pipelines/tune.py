"""Tune: a configuration and a budget in, the best learning rate that it can buy out.

`tuning` decides which trials are bought. Here a trial is a run in this process, so torch is loaded once and kernels
are compiled once, and the answer becomes a page with plots.

What needs torch is imported where it is used: loading it takes seconds, and a session has its first heartbeat before.
"""

from __future__ import annotations

import dataclasses
import gc
import math
import time
from collections.abc import Sequence

from ..config import INTERRUPTED, Config
from ..report import SweepReport, png_of, sweep_html, sweep_plots
from ..runs import (
    Cause,
    Reporter,
    Silent,
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
from ..tuning import (
    HourlyPrice,
    JointFit,
    RungShape,
    StepEstimate,
    SweepInterrupted,
    SweepStopped,
    SweepStore,
    SweepTools,
    Trial,
    TrialMetrics,
    TrialResult,
    TrialTaken,
    TunedSweep,
    TuneSession,
    decay_start,
    find_estimates,
    shape_named,
    trial_config,
    trial_run,
    trunk_of,
    tune_axes,
    tune_here,
    work_in_slot,
)

STOP_SHARE = 0.03  # of a trial's limit that its own budget keeps back


def tune(config: Config, reporter: Reporter, since: float | None = None) -> TunedSweep:
    """Run a sweep to its answer, one after another for each of `tune.axes`. The same call again continues.

    `since` is when this process began to work on the sweep, by the machine's clock; None means when it was started.
    """
    if config.tune.axes:
        return tune_axes(config, reporter, sweep_tools(), since)
    return tune_here(config, reporter, sweep_tools(), since)


def sweep_tools() -> SweepTools:
    """Return what a sweep needs of this package: how trials are run, steps measured and answers reported."""
    return SweepTools(
        load=load_training,
        make_runner=LocalRunner,
        dry_run=dry_run,
        work_in_slot=_work_in_slot,
        measure_in_slot=_measure_in_slot,
        write_report=write_sweep_report,
    )


def load_training() -> None:
    """Load torch and Lightning."""
    from . import train  # noqa: F401


def _work_in_slot(config: Config, session: TuneSession | None, slot: int) -> None:
    assert session is not None
    work_in_slot(config, session, slot, sweep_tools())


def _measure_in_slot(config: Config, session: TuneSession | None, slot: int) -> None:
    find_estimates(config, Silent(), sweep_tools(), session=session)


def write_sweep_report(store: Store, tuned: TunedSweep, fit: JointFit | None, metrics: TrialMetrics) -> None:
    """Write the page of a sweep and its plots to the sweep's folder."""
    report = SweepReport(
        name=tuned.name,
        problem=tuned.problem,
        history=tuned.history,
        conclusion=tuned.conclusion,
        others=tuned.others,
        fit=fit,
        curves=metrics,
    )
    folder = f"sweeps/{report.name}/report"
    store.write(f"{folder}/report.html", sweep_html(report).encode())
    for name, svg in sweep_plots(report).items():
        store.write(f"{folder}/{name}.svg", svg.encode())
        store.write(f"{folder}/{name}.png", png_of(svg))


class TrialReporter:
    """A reporter that shows a trial's progress under its number, without the notes and tables of an ordinary run."""

    def __init__(self, reporter: Reporter, number: int) -> None:
        self._reporter = reporter
        self._stage = f"trial {number}"

    def note(self, text: str) -> None:
        if text.startswith(("warning", "budget")):
            # Without the advice that follows: a sweep gives each trial its budget, and does not repeat it.
            self._reporter.note(f"{self._stage}: {text.splitlines()[0]}")

    def table(self, title: str, rows: Sequence[tuple[str, str]]) -> None:
        return

    def progress(
        self, stage: str, done: float, total: float | None, detail: str = "", seconds_left: float | None = None
    ) -> None:
        if stage == "train":
            self._reporter.progress(self._stage, done, total, detail, seconds_left)


class LocalRunner:
    """A runner of one sweep's trials in this process, one after another."""

    def __init__(self, sweep: SweepStore, shapes: Sequence[RungShape], price: HourlyPrice, reporter: Reporter) -> None:
        self._sweep = sweep
        self._store = sweep.store
        self._shapes = shapes
        self._price = price
        self._reporter = reporter

    def run(self, number: int, trial: Trial, limit_usd: float) -> TrialResult:
        from ..training import Diverged
        from .train import train

        run = trial_run(self._sweep.name, number)
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
        """Return a trial's start: from scratch, or after the constant part of a shorter trial at the same value."""
        assert config.run is not None
        if not config.tune.trunk:
            return Start()
        if self._store.exists(f"runs/{config.run}/run.json"):  # it was killed: as it began
            return Start(load_run(self._store, config.run).started_from)
        from ..checkpoints import committed_steps

        others = {}
        for one in self._sweep.decisions():
            run = trial_run(self._sweep.name, one.number)
            shape = shape_named(self._shapes, one.trial.rung)
            other = trial_config(shape, one.trial, run)
            if decay_start(other) in committed_steps(self._store, run):
                others[run] = other
        return Start(trunk_of(config, others))

    def _limited(self, config: Config, limit_usd: float) -> Config:
        """Return the configuration with a budget, so that the run stops before it has used its reserve."""
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
        """Close an attempt that was killed with this sweep's earlier process.

        The time until now is then not charged, unless the machine is rented.
        """
        numbers = attempt_numbers(self._store, run)
        if numbers and read_outcome(self._store, run, numbers[-1]) is None:
            step = last_metrics(self._store, run).get("step", 0)
            write_outcome(self._store, run, numbers[-1], INTERRUPTED, step, Cause("the sweep's process was killed"))


def dry_run(config: Config, reporter: Reporter) -> StepEstimate:
    """Run twenty steps of a configuration on this machine."""
    from ..bench import time_steps

    began = time.monotonic()
    seconds = time_steps(config, reporter)
    estimate = StepEstimate.of(seconds, time.monotonic() - began)
    _free_memory()
    return estimate


def _free_memory() -> None:
    """Free a trial's model before the next one is built."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
