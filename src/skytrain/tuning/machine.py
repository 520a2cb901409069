"""One machine's part in a sweep: from settings and a budget to the answer.

Repeating the call continues: decisions, trials and every dollar are in the store. The functions that train a trial,
measure a step and write the report are passed in (`SweepTools`): their packages come after this one.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..aws import Ec2Instance
from ..config import EXIT_CODES, INTERRUPTED, Config, ConfigError, SkytrainError
from ..runs import Reporter, Silent, boot_clock, read_metrics, this_machine
from ..storage import Store, open_store
from ..tokens import find_training_data
from .conclusions import Conclusion, OtherAnswer, SweepMoney, conclusion_of, fitted_curves, other_answers
from .costs import DryRun, StepEstimate, known_estimates, measure, missing_estimates, priced_problem
from .driver import (
    SweepProgress,
    SweepSetup,
    TrialRunner,
    begin_sweep,
    check_budget,
    conclude,
    is_over,
    search_of,
    work,
)
from .earlier import recorded_earlier
from .hosts import BEAT_SECONDS, PRESENT_SECONDS, Heartbeats, SweepHost, TuneSession, charged_until, live_sessions
from .joint import JointFit
from .ledger import FINAL, BudgetError, Entry, HourlyPrice, Ledger
from .problem import Observation, Problem
from .setting_up import check_range, sweep_name, sweep_price, sweep_spec
from .slots import SlotTask, check_slots, measure_in_slot, run_slots, signals_interrupt
from .strategies.registry import find_strategy
from .sweep_plan import find_instance
from .sweeps import Decision, SweepState, SweepStore
from .trials import RungShape, target_shape, trial_shapes, value_overrides

TrialMetrics = dict[str, list[dict[str, Any]]]  # metrics by trial's run
WAIT_SECONDS = 10.0  # between two checks for results of other workers


@dataclass(frozen=True)
class TunedSweep:
    """A finished sweep."""

    name: str
    url: str
    problem: Problem
    history: list[Observation]
    conclusion: Conclusion
    others: list[OtherAnswer]
    final_overrides: str  # the settings of the final run that the sweep decided
    from_step: int  # step of an existing model at which the final run starts
    turns: tuple[str, ...] = ()  # a line for each turn, if several axes were tuned
    rented: bool = False  # whether the machine is rented: it is charged from its launch unless a run says otherwise


class SweepInterrupted(SkytrainError):
    """A request to stop this process; trials that were running have committed checkpoints."""

    exit_code = EXIT_CODES[INTERRUPTED]


@dataclass(frozen=True)
class SweepTools:
    """The functions that a sweep needs from packages that come after this one."""

    load: Callable[[], None]  # loads the libraries of trials, which takes seconds
    make_runner: Callable[[SweepStore, Sequence[RungShape], HourlyPrice, Reporter], TrialRunner]
    dry_run: DryRun
    work_in_slot: SlotTask  # runs trials as one slot of the machine
    measure_in_slot: SlotTask  # measures all models and saves the estimates in the sweep
    write_report: Callable[[Store, TunedSweep, JointFit | None, TrialMetrics], None]


def tune_here(config: Config, reporter: Reporter, tools: SweepTools, since: float | None = None) -> TunedSweep:
    """Run the sweep to its answer on this machine, or continue one that was interrupted.

    `since` is when this process began to work on the sweep, by the machine's clock; None means when it was started.
    """
    instance = find_instance()
    price = sweep_price(config, instance)
    check_slots(config)
    sweep = _open_sweep(config)
    began = since or _charged_from(sweep, instance, config.tune.host)
    machine = config.tune.host or (instance.id if instance is not None else None)
    session = TuneSession.here(machine, began, price, config.tune.parallel)
    host = SweepHost(sweep, session)
    host.start_seconds = _process_age() if since is None and instance is None else 0.0
    if instance is None and (over := _finished(config, sweep, host, price, reporter, tools)) is not None:
        return over
    with Heartbeats(host), signals_interrupt():
        _check_alone(host, sweep.name)
        ledger = Ledger(sweep.store, sweep.folder, config.budget.usd or 0.0)
        try:
            # After the first heartbeat, so that a process that is killed meanwhile is charged.
            tools.load()
            if host.start_seconds:
                host.start_seconds = _process_age()
            host.settle(ledger, sweep.state())
            measuring = host.clock()
            estimates = find_estimates(config, reporter, tools, session=session)
            host.measured_seconds = host.clock() - measuring
            setup = _setup(config, sweep, host, estimates, price, reporter, tools)
            ledger = setup.ledger
            table = LiveTable(reporter, setup.problem, sweep.history())
            reporter.note(f"sweep {sweep.name}: {sweep.url}")
            if names := setup.problem.priors.earlier_names():
                reporter.note(f"starts from earlier sweeps of the store: {names}")
            host.reserve(ledger, sweep.state())
            begin_sweep(setup)
            if config.tune.parallel == 1:
                work(replace(setup, tell=table.finished, announce=table.announce))
            else:
                run_slots(tools.work_in_slot, config, session, lambda: table.show_finished(sweep.state(), ledger))
            host.settle(ledger, sweep.state())
            host.count_spent(ledger, sweep.state())
            return _concluded(config, setup, tools)
        except KeyboardInterrupt:
            raise SweepInterrupted("the sweep was interrupted\n  the same command continues it") from None
        finally:
            host.leave(ledger, sweep.state())


def _finished(
    config: Config, sweep: SweepStore, host: SweepHost, price: HourlyPrice, reporter: Reporter, tools: SweepTools
) -> TunedSweep | None:
    """Return the answer of a sweep that has nothing left to buy: reading it takes no money from the final run.

    None means that there is something to do, and money to begin.
    """
    estimates = known_estimates(sweep)
    if missing_estimates([*trial_shapes(config), target_shape(config)], estimates):
        return None
    setup = _setup(config, sweep, host, estimates, price, reporter, tools)
    host.settle(setup.ledger, sweep.state())  # frees what a killed process had reserved
    if is_over(setup):
        return _concluded(config, setup, tools)
    if not live_sessions(sweep):
        _check_start(setup, host)
    return None


def _check_start(setup: SweepSetup, host: SweepHost) -> None:
    """Raise BudgetError where a sweep has less left than starting costs; refusing it here costs nothing.

    An interrupted trial has a limit above its estimate, which may pay for the start.
    """
    ledger = setup.ledger
    state = setup.sweep.state()
    usd = host.session.reserve_usd(state, host.clock())
    if not state.decisions:
        ledger.count(Entry(host.entry, usd))
        check_budget(setup.problem, setup.final_usd, ledger, host.start_usd())
        return
    left = ledger.left_usd + sum(one.most_usd - one.usd for one in state.running)
    if usd > left:
        least = math.ceil(1e4 * (ledger.budget_usd + usd - left)) / 1e4
        raise BudgetError(
            f"the sweep {setup.sweep.name} has ${max(0.0, left):.4f} left, and starting again takes "
            f"${usd:.4f} of this machine\n  the least that continues it is budget.usd={least:g}"
        )


def work_in_slot(config: Config, session: TuneSession, slot: int, tools: SweepTools) -> None:
    """Run trials in this process, as one of several slots of a machine."""
    sweep = _open_sweep(config)
    price = HourlyPrice(session.usd_per_hour, config.tune.margin)
    host = SweepHost(sweep, session, slot)
    with signals_interrupt():
        work(_setup(config, sweep, host, known_estimates(sweep), price, Silent(), tools))


def find_estimates(
    config: Config,
    reporter: Reporter,
    tools: SweepTools,
    known: Mapping[str, StepEstimate] | None = None,
    session: TuneSession | None = None,
) -> dict[str, StepEstimate]:
    """Return the sweep's estimates, measured as its trials will run where there are none yet.

    Among several machines, the first one's estimates count for all. `known` are those of another sweep on this machine.
    No model is measured once `session` has used the sweep's budget.
    """
    sweep = _open_sweep(config)
    shapes = [*trial_shapes(config), target_shape(config)]
    estimates = {**(known or {}), **known_estimates(sweep)}
    if missing_estimates(shapes, estimates) and config.tune.parallel > 1:
        reporter.note(f"measuring 20 steps of each model on one of {config.tune.parallel} slots")
        measure_in_slot(tools.measure_in_slot, config, session)
        return known_estimates(sweep)

    def dry_run(of: Config, reporter: Reporter) -> StepEstimate:
        if session is not None:
            _check_measuring(config, sweep, session)
        return tools.dry_run(of, reporter)

    estimates = measure(shapes, estimates, reporter, dry_run)
    sweep.save("estimates", {name: estimate.to_json() for name, estimate in estimates.items()})
    return estimates


def _check_measuring(config: Config, sweep: SweepStore, session: TuneSession) -> None:
    """Raise BudgetError where a session has used what the sweep has, and knows no prices of trials yet."""
    ledger = Ledger(sweep.store, sweep.folder, config.budget.usd or 0.0)
    usd = session.usd_per_hour * (boot_clock() - session.began) / 3600
    if usd >= ledger.left_usd:
        raise BudgetError(
            f"budget.usd={ledger.budget_usd:g} does not pay for measuring the models' steps: "
            f"${ledger.spent_usd + usd:.4f} are spent\n  `--dry-run` shows what a search may cost"
        )


def _open_sweep(config: Config) -> SweepStore:
    store = open_store(config.store).patient(config.store.patience)
    find_strategy(config.tune.strategy)
    prepared = find_training_data(store, config)
    if prepared.validation is None:
        raise ConfigError("data.validation_fraction", "there is no validation split to compare trials on")
    check_range(config)
    sweep = SweepStore(store, sweep_name(config))
    sweep.open(sweep_spec(config, prepared.tokenizer_id), idle=not live_sessions(sweep))
    return sweep


def _setup(
    config: Config,
    sweep: SweepStore,
    host: SweepHost,
    estimates: dict[str, StepEstimate],
    price: HourlyPrice,
    reporter: Reporter,
    tools: SweepTools,
) -> SweepSetup:
    """Return the setup of one worker. A slot costs its share of the machine; the final run has the whole machine."""
    shapes = trial_shapes(config)
    slots = host.session.slots
    slot_price = HourlyPrice(price.usd_per_hour / slots, price.margin)
    problem, _ = priced_problem(config, shapes, estimates, slot_price, recorded_earlier(sweep, config))
    final_usd = priced_problem(config, shapes, estimates, price)[1]
    assert config.budget.usd is not None
    ledger = Ledger(sweep.store, sweep.folder, config.budget.usd)

    def wait() -> bool:
        time.sleep(WAIT_SECONDS)
        return host.can_wait(ledger, sweep.state())

    return SweepSetup(
        sweep=sweep,
        ledger=ledger,
        problem=problem,
        strategy=find_strategy(config.tune.strategy),
        runner=tools.make_runner(sweep, shapes, slot_price, reporter),
        final_usd=final_usd,
        host=host,
        parallel=slots * max(1, config.tune.machines),
        wait=wait,
    )


def _concluded(config: Config, setup: SweepSetup, tools: SweepTools) -> TunedSweep:
    """Return the answer, also where another machine has given it already, and write the report."""
    sweep = setup.sweep
    problem = setup.problem
    ledger = setup.ledger
    history = sweep.state().observed
    answer = conclude(setup, history)
    final_usd = ledger.usd(FINAL) if ledger.has(FINAL) else setup.final_usd
    money = SweepMoney.of(ledger, final_usd)
    conclusion = conclusion_of(problem, history, answer, config.tune.axis, money)
    tuned = TunedSweep(
        name=sweep.name,
        url=sweep.url,
        problem=problem,
        history=history,
        conclusion=conclusion,
        others=other_answers(search_of(setup, history)),
        final_overrides=value_overrides(config, answer.rate),
        from_step=config.tune.final_from_step,
        rented=find_instance() is not None,
    )
    tools.write_report(sweep.store, tuned, fitted_curves(problem, history), _metrics(sweep.store, history))
    return tuned


def _charged_from(sweep: SweepStore, instance: Ec2Instance | None, name: str | None) -> float:
    """Return when the machine's time began to count, by its clock: this process's start, or a rented machine's launch.

    A rented machine also costs money between two sessions, so a session counts from the end of the one before it.
    """
    now = boot_clock()
    if instance is None:
        return now - _process_age()
    until = charged_until(sweep, name or instance.id)
    return now - this_machine(instance).age_seconds if until is None else min(now, until)


def _check_alone(host: SweepHost, sweep: str) -> None:
    """Raise SkytrainError where another process of this machine works on the sweep: the machine would be counted twice.

    A process elsewhere that has this machine's name shows within a minute whether it is alive.
    """
    deadline = time.monotonic() + PRESENT_SECONDS + 2 * BEAT_SECONDS
    while (twin := host.twin()) is not None:
        if twin.place != host.session.place and time.monotonic() < deadline:
            time.sleep(BEAT_SECONDS)
            continue
        host.withdraw()
        raise SkytrainError(
            f"process {twin.process.partition('-')[0]} of this machine ({twin.machine}) runs the sweep {sweep}\n"
            "  for several trials at the same time set tune.parallel; or give this process a different tune.host"
        )


def _metrics(store: Store, history: Sequence[Observation]) -> TrialMetrics:
    """Return the metrics of each trial's run."""
    return {one.trial.key: read_metrics(store, one.extra["run"]) for one in history if "run" in one.extra}


class LiveTable:
    """A table with a line for each finished trial, and the running trials."""

    def __init__(self, reporter: Reporter, problem: Problem, earlier: Mapping[int, Observation]) -> None:
        self._reporter = reporter
        self._problem = problem
        self._shown = set(earlier)
        self._began = False
        self._running = ""

    def announce(self, decision: Decision) -> None:
        if not self._began:
            self._began = True
            self._reporter.note(f"{'':>5} {'rung':<14} {'value':>9} {'loss':>9} {'hours':>8} {'cost':>9} {'left':>9}")

    def finished(self, progress: SweepProgress) -> None:
        self._shown.add(progress.number)
        one = progress.observation
        loss = f"{one.loss:.4f}" if one.finite else ("diverged" if one.diverged else "stopped")
        self._reporter.note(
            f"{progress.number:>5} {one.trial.rung:<14} {one.trial.rate:>9.3g} {loss:>9} {one.seconds / 3600:>8.3f} "
            f"{f'${one.usd:.4f}':>9} {f'${progress.left_usd:.4f}':>9}"
        )

    def show_finished(self, state: SweepState, ledger: Ledger) -> None:
        """Show what other processes have finished since."""
        for decision in state.decisions:
            if decision.number in state.history and decision.number not in self._shown:
                self.announce(decision)
                ledger.refresh()
                result = state.history[decision.number]
                self.finished(SweepProgress(decision.number, decision, result, ledger.left_usd))
        running = ", ".join(one.trial.key for one in state.running)
        if running and running != self._running:
            self._running = running
            self._reporter.progress("trials", len(state.history), None, f"running {running}")


def _process_age() -> float:
    """Return the seconds since this process started: its imports are paid for too."""
    try:
        with open("/proc/self/stat", encoding="ascii") as file:  # noqa: PTH123
            ticks = int(file.read().rpartition(")")[2].split()[19])
    except OSError:  # not on Linux
        return 0.0
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))
