"""Tune: a configuration and a budget in, the best learning rate that it can buy out.

The same call again continues: decisions, trials and every dollar are in the store.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..config import Config, ConfigError, total_steps
from ..planning import PlanRequest, find_offers, load_catalog, workload_of
from ..report import SweepReport, sweep_html, sweep_plots
from ..runs import Ec2Instance, Reporter, find_metadata, read_metrics
from ..storage import Store, open_store
from ..tokens import find_training_data
from ..tuning import (
    Conclusion,
    Decision,
    HourlyPrice,
    Ledger,
    Observation,
    OtherAnswer,
    Problem,
    RungShape,
    StepEstimate,
    SweepProgress,
    SweepSetup,
    SweepStore,
    check_budget,
    conclusion_of,
    find_strategy,
    fitted_curves,
    make_problem,
    other_answers,
    rehearse,
    run_sweep,
    search_of,
    sweep_name,
    sweep_price,
    sweep_spec,
    target_shape,
    trial_shapes,
    value_words,
)
from .tune_runner import LocalRunner, dry_run

CONTINGENCY = 0.05  # of the final run, on top of the margin


@dataclass(frozen=True)
class Schedule:
    """What a sweep would buy, before anything is spent."""

    problem: Problem
    trials: list[Observation]
    final_usd: float
    budget_usd: float
    source: str  # of the step times


@dataclass(frozen=True)
class TunedSweep:
    """A finished sweep."""

    name: str
    url: str
    problem: Problem
    history: list[Observation]
    conclusion: Conclusion
    others: list[OtherAnswer]
    final_words: str  # the settings of the final run that the sweep decided
    from_step: int  # of a model that exists, at which the final run starts


def plan_sweep(config: Config, reporter: Reporter) -> Schedule:
    """The trials that the strategy would buy if published laws held, with their worst-case dollars."""
    shapes, target = trial_shapes(config), target_shape(config)
    if config.tune.instance is None:
        price = sweep_price(config, _instance())
        estimates, source = _measure([*shapes, target], {}, reporter), "measured on this machine"
    else:
        price, estimates = _predict(config, [*shapes, target])
        source = f"predicted for {config.tune.instance}"
    problem, final_usd = _problem(config, shapes, estimates, price)
    assert config.budget.usd is not None
    left = config.budget.usd - final_usd
    if left < min(rung.usd for rung in problem.rungs):
        store = SweepStore(open_store(config.store), sweep_name(config))
        check_budget(problem, final_usd, Ledger(store.store, store.folder, config.budget.usd))
    trials = rehearse(problem, find_strategy(config.tune.strategy), left)
    return Schedule(problem, trials, final_usd, config.budget.usd, source)


def tune(config: Config, reporter: Reporter) -> TunedSweep:
    """Runs the sweep to its answer, or continues one that was interrupted."""
    began = time.monotonic() - _process_age()
    strategy = find_strategy(config.tune.strategy)
    price = sweep_price(config, _instance())
    store = open_store(config.store).patient(config.store.patience)
    prepared = find_training_data(store, config)
    if prepared.validation is None:
        raise ConfigError("data.validation_fraction", "there is no validation split to compare trials on")
    shapes, target = trial_shapes(config), target_shape(config)
    sweep = SweepStore(store, sweep_name(config))
    sweep.open(sweep_spec(config, prepared.tokenizer_id))
    assert config.budget.usd is not None
    ledger = Ledger(store, sweep.folder, config.budget.usd)
    session = f"overhead-{sum(entry.what.startswith('overhead') for entry in ledger.entries) + 1:03d}"
    estimates = _measure([*shapes, target], _known(sweep), reporter)
    sweep.save("estimates", {name: estimate.to_json() for name, estimate in estimates.items()})
    problem, final_usd = _problem(config, shapes, estimates, price)
    runner = LocalRunner(sweep.name, store, shapes, price, reporter)

    def charge_overhead() -> None:
        ledger.charge(session, price.charged(time.monotonic() - began - runner.trial_seconds))

    charge_overhead()
    table = LiveTable(reporter, problem)

    def tell(progress: SweepProgress) -> None:
        charge_overhead()
        table.finished(progress)

    setup = SweepSetup(sweep, ledger, problem, strategy, runner, final_usd, tell, table.announce)
    reporter.note(f"sweep {sweep.name}: {sweep.url}")
    answer = run_sweep(setup)
    history = list(sweep.history().values())
    conclusion = conclusion_of(problem, history, answer, config.tune.axis, (ledger.spent_usd, final_usd))
    others = other_answers(search_of(problem, history, ledger))
    words = value_words(config, answer.rate)
    _save_page(
        store,
        SweepReport(
            sweep.name, problem, history, conclusion, others, fitted_curves(problem, history), _curves(store, history)
        ),
    )
    from_step = config.tune.final_from_step
    return TunedSweep(sweep.name, sweep.url, problem, history, conclusion, others, words, from_step)


def _save_page(store: Store, report: SweepReport) -> None:
    """The page and its plots beside the sweep's other objects."""
    folder = f"sweeps/{report.name}/report"
    store.write(f"{folder}/report.html", sweep_html(report).encode())
    for name, svg in sweep_plots(report).items():
        store.write(f"{folder}/{name}.svg", svg.encode())


def _curves(store: Store, history: Sequence[Observation]) -> dict[str, list[dict[str, Any]]]:
    """The metrics of each trial's run."""
    return {one.trial.key: read_metrics(store, one.extra["run"]) for one in history if "run" in one.extra}


class LiveTable:
    """A line for each finished trial."""

    def __init__(self, reporter: Reporter, problem: Problem) -> None:
        self._reporter, self._problem, self._began = reporter, problem, False

    def announce(self, decision: Decision) -> None:
        if not self._began:
            self._began = True
            self._reporter.note(f"{'':>5} {'rung':<14} {'value':>9} {'loss':>9} {'hours':>8} {'cost':>9} {'left':>9}")

    def finished(self, progress: SweepProgress) -> None:
        one = progress.observation
        loss = f"{one.loss:.4f}" if one.finite else ("diverged" if one.diverged else "stopped")
        self._reporter.note(
            f"{progress.number:>5} {one.trial.rung:<14} {one.trial.rate:>9.3g} {loss:>9} {one.seconds / 3600:>8.3f} "
            f"{f'${one.usd:.4f}':>9} {f'${progress.left_usd:.4f}':>9}"
        )


def _problem(
    config: Config, shapes: Sequence[RungShape], estimates: dict[str, StepEstimate], price: HourlyPrice
) -> tuple[Problem, float]:
    """The search with its prices, and what the final run may cost."""

    def usd(shape: RungShape) -> float:
        return estimates[_key(shape)].usd(shape.config, shape.parameters, price)

    target = target_shape(config)
    steps = total_steps(config)
    if config.tune.final_from_step >= steps:
        raise ConfigError("tune.final_from_step", f"{config.tune.final_from_step} is not below the run's {steps} steps")
    final = usd(target) * (1 + CONTINGENCY) * (1 - config.tune.final_from_step / steps)
    rungs = [shape.rung(usd(shape)) for shape in shapes]
    return make_problem(config, target.rung(final), rungs), final if config.tune.final else 0.0


def _measure(
    shapes: Sequence[RungShape], known: dict[str, StepEstimate], reporter: Reporter
) -> dict[str, StepEstimate]:
    """A dry run for each model; horizons share one."""
    found = dict(known)
    for shape in shapes:
        if _key(shape) not in found:
            reporter.note(f"measuring 20 steps of {_key(shape)}")
            found[_key(shape)] = dry_run(shape.config, _Quiet(reporter))
    return found


def _predict(config: Config, shapes: Sequence[RungShape]) -> tuple[HourlyPrice, dict[str, StepEstimate]]:
    """The planner's step times on an instance type, and its price."""
    catalog, found = load_catalog(), {}
    request = PlanRequest(instance=config.tune.instance, nodes=1)
    usd = config.tune.usd_per_hour or config.budget.usd_per_hour
    for shape in shapes:
        if _key(shape) in found:
            continue
        offers = find_offers(workload_of(shape.config), catalog, request)
        placed = next((one for one in offers if one.placement is not None), None)
        if placed is None or placed.placement is None:
            problem = offers[0].problem if offers else "it is not in the catalogue"
            raise ConfigError("tune.instance", f"{config.tune.instance}: {problem}")
        if usd is None and placed.price is not None:
            usd = placed.price.usd_per_hour_max
        seconds = placed.placement.prediction.seconds
        found[_key(shape)] = StepEstimate(seconds, first_seconds=20.0, start_seconds=30.0)
    return sweep_price(replace(config, tune=replace(config.tune, usd_per_hour=usd)), None), found


def _key(shape: RungShape) -> str:
    """What decides the time of a step."""
    return f"{shape.config.model.name}-{shape.config.trainer.batch_tokens}"


def _known(sweep: SweepStore) -> dict[str, StepEstimate]:
    return {name: StepEstimate(**fields) for name, fields in (sweep.load("estimates") or {}).items()}


def _instance() -> Ec2Instance | None:
    metadata = find_metadata()
    try:
        return metadata.instance() if metadata is not None else None
    except OSError:
        return None


def _process_age() -> float:
    """Seconds since this process started: its imports are paid for too."""
    try:
        with open("/proc/self/stat", encoding="ascii") as file:  # noqa: PTH123
            ticks = int(file.read().rpartition(")")[2].split()[19])
    except OSError:  # not on Linux
        return 0.0
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))


class _Quiet:
    """Progress of dry runs only."""

    def __init__(self, reporter: Reporter) -> None:
        self.progress = reporter.progress

    def note(self, text: str) -> None:
        return

    def table(self, title: str, rows: Sequence[tuple[str, str]]) -> None:
        return
