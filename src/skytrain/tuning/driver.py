"""A sweep from its first trial to its answer: propose, reserve, run, charge, observe, repeat."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from ..config import EXIT_CODES, STOPPED, SkytrainError
from .hosts import SweepHost
from .ledger import FINAL, BudgetError, Entry, Ledger
from .problem import Answer, Observation, Problem, Rung, Search, Trial
from .rehearsal import believed
from .strategies.base import Strategy
from .sweeps import Claim, Decision, SweepState, SweepStore

MOST_TRIALS = 500
AT_THE_EDGE = 0.1  # ln: about one step between neighbouring rates
TRIAL = "trial-"  # prefix of trials' entries in the ledger
OVERRUN = 2.0  # the most that a trial may cost, as a multiple of its estimate


@dataclass(frozen=True)
class TrialResult:
    """The end of a trial. A trial that was stopped by its limit has no loss and did not diverge."""

    loss: float | None  # None if stopped by its limit
    usd: float
    seconds: float
    extra: dict[str, object]
    session_usd: float | None = None  # the part that this session spent on a trial that others began


class SweepStopped(SkytrainError):
    """A stop that was requested by `skytrain stop`: not a failure, and not to be retried automatically."""

    exit_code = EXIT_CODES[STOPPED]


class TrialTaken(Exception):
    """A trial that another worker has taken over, so that this one must not finish it."""


class TrialRunner(Protocol):
    """Something that runs trials: a GPU, a cluster, a table of published runs or a simulation."""

    def run(self, number: int, trial: Trial, limit_usd: float) -> TrialResult:
        """Run or resume the trial. It must stop by itself before it has cost more than `limit_usd` in all."""
        ...


@dataclass(frozen=True)
class SweepProgress:
    """The progress of a sweep, shown after each trial."""

    number: int
    decision: Decision
    observation: Observation
    left_usd: float


class WorkerHost(Protocol):
    """The machine that a worker runs on, and what it knows about others."""

    @property
    def worker(self) -> str: ...
    def clock(self) -> float: ...
    def is_alive(self, worker: str) -> bool: ...
    def cushion_usd(self) -> float: ...
    def recorded_usd(self, number: int) -> float:
        """Return what a trial has cost so far, as recorded by those who ran it."""
        ...

    def start_usd(self) -> float:
        """Return what starting again would cost."""
        ...

    def reserve(self, ledger: Ledger, state: SweepState) -> None:
        """Reserve what the machine costs in addition to its trials."""

    def settle(self, ledger: Ledger, state: SweepState) -> None:
        """Charge lost machines for what they had cost in addition to their trials."""


class OnlyWorker:
    """A worker without others, on a machine that costs nothing extra: a table of runs, or a simulation."""

    worker = ""

    def clock(self) -> float:
        return 0.0

    def is_alive(self, worker: str) -> bool:
        return False

    def cushion_usd(self) -> float:
        return 0.0

    def recorded_usd(self, number: int) -> float:
        return 0.0

    def start_usd(self) -> float:
        return 0.0

    def reserve(self, ledger: Ledger, state: SweepState) -> None:
        return

    def settle(self, ledger: Ledger, state: SweepState) -> None:
        return


@dataclass(frozen=True)
class SweepSetup:
    """Everything that a sweep needs."""

    sweep: SweepStore
    ledger: Ledger
    problem: Problem
    strategy: Strategy
    runner: TrialRunner
    final_usd: float  # the most that the final run costs
    tell: Callable[[SweepProgress], None] = lambda progress: None
    announce: Callable[[Decision], None] = lambda decision: None
    host: WorkerHost = field(default_factory=OnlyWorker)
    parallel: int = 1  # trials that may run at the same time
    wait: Callable[[], bool] = lambda: False  # waits for results of other workers; False if this worker should leave


class OthersRun:
    """The answer that nothing can be decided until another worker's trial has ended."""


OTHERS_RUN = OthersRun()


def run_sweep(setup: SweepSetup) -> Answer:
    """Run trials until the strategy or the money ends, and return the answer. A second call continues."""
    begin_sweep(setup)
    work(setup)
    return conclude(setup, setup.sweep.state().observed)


def begin_sweep(setup: SweepSetup) -> None:
    """Reserve the final run, and put the ledger in order after a kill."""
    sweep = setup.sweep
    ledger = setup.ledger
    check_budget(setup.problem, setup.final_usd, ledger, setup.host.start_usd())
    ledger.reserve(FINAL, setup.final_usd)
    ledger.refresh()  # read before the decisions, which are written before ledger entries
    state = sweep.state()
    decided = {trial_entry(one.number) for one in state.decisions}
    for entry in ledger.entries:
        if entry.what.startswith(TRIAL) and entry.what not in decided:
            ledger.release(entry.what)
    for number, result in state.history.items():
        if ledger.entry(trial_entry(number)).charged_usd is None:  # killed between the two writes of a trial's end
            ledger.charge(trial_entry(number), result.usd)


def work(setup: SweepSetup) -> None:
    """Run trials, one after another, until there is nothing left for this worker."""
    while (taken := take(setup)) is not None:
        if isinstance(taken, OthersRun):
            if not setup.wait():
                return
        else:
            with suppress(TrialTaken):
                finish(setup, taken, run_trial(setup, taken))


def take(setup: SweepSetup) -> Decision | OthersRun | None:
    """Claim the next trial for this worker; None when the sweep has no more."""
    while True:
        if setup.sweep.is_asked_to_stop(setup.host.worker):
            raise SweepStopped("the sweep was stopped as asked\n  the same command continues it")
        state = read_state(setup)
        left = [one for one in state.running if not setup.host.is_alive(state.claim_of(one.number).worker)]
        if left:
            setup.host.settle(setup.ledger, state)
        for decision in left:  # its worker was killed, or its machine was lost
            turn = state.claim_of(decision.number).turn + 1
            claim = Claim(
                number=decision.number,
                turn=turn,
                worker=setup.host.worker,
                at=setup.host.clock(),
                earlier_usd=setup.host.recorded_usd(decision.number),
            )
            if setup.sweep.claim(claim) and not setup.sweep.is_finished(decision.number):
                setup.host.reserve(
                    setup.ledger, setup.sweep.state()
                )  # for idle slots during the trial, and this machine's start
                return decision
        if left:
            continue  # another worker was faster
        proposed = propose(setup, state)
        if proposed is None:
            return OTHERS_RUN if state.running else None
        if setup.sweep.decide(proposed):
            setup.ledger.replace(Entry(trial_entry(proposed.number), proposed.most_usd))
            setup.host.reserve(setup.ledger, setup.sweep.state())
            return proposed


def read_state(setup: SweepSetup) -> SweepState:
    """Return the sweep and its money as of now: a running trial counts with its limit, even before its worker says so."""
    setup.ledger.refresh()
    state = setup.sweep.state()
    for one in state.running:
        if not setup.ledger.has(trial_entry(one.number)):
            setup.ledger.count(Entry(trial_entry(one.number), one.most_usd))
    for number, result in state.history.items():
        setup.ledger.count(Entry(trial_entry(number), result.usd, result.usd))
    setup.ledger.replace(Entry(FINAL, revised_final_usd(setup, state)))
    setup.host.reserve(setup.ledger, state)
    return state


def is_over(setup: SweepSetup) -> bool:
    """Return whether the sweep has trials, none of them is running, and no more can be bought."""
    setup.ledger.refresh()
    state = setup.sweep.state()
    return bool(state.history) and not state.running and propose(setup, state) is None


def search_of(setup: SweepSetup, history: Sequence[Observation], open_usd: float = 0.0) -> Search:
    # The total excludes overheads and revisions: it must not change during a sweep, or strategies would change course.
    total = setup.ledger.budget_usd - setup.final_usd
    return Search(setup.problem, tuple(history), setup.ledger.left_usd + open_usd, total)


def revised_final_usd(setup: SweepSetup, state: SweepState) -> float:
    """Return what the final run needs, if it exceeds its estimate as trials have exceeded theirs.

    Twenty measured steps may be faster than a whole run; without this the final run would find out at its own 20th
    step that its budget is too small.
    """
    ratios = []
    for one in state.observed:
        rung = setup.problem.rung(one.trial.rung)
        # A trial of mostly start-up says nothing about the final run's steps.
        if one.finite and rung.steps_usd is not None and rung.steps_usd > rung.around_usd:
            ratios.append(one.usd / rung.probable_usd)
    return setup.final_usd * max(1.0, statistics.median(ratios)) if ratios else setup.final_usd


def propose(setup: SweepSetup, state: SweepState) -> Decision | None:
    """Return the strategy's next trial if its worst case can be paid; None when it has enough or money is short.

    Running trials are assumed to end as the prior says, so that the next one is chosen to complement them.
    """
    number = max((one.number for one in state.decisions), default=0) + 1
    if number > MOST_TRIALS:
        return None
    seen = dict(state.history)
    for one in state.running:
        seen[one.number] = believed(setup.problem, state.observed, one.trial)
    # A running trial reserves more than its estimate. The strategy may plan with what it will probably give back.
    spare = sum(one.most_usd - one.usd for one in state.running)
    history = [seen[each] for each in sorted(seen)]
    search = search_of(setup, history, spare)
    trial = setup.strategy.propose(search)
    if trial is None:
        return None
    usd = search.reserve_usd(setup.problem.rung(trial.rung))
    # A busy machine may be slower than its dry run, which should not end the trial while money is left.
    left = setup.ledger.left_usd - setup.host.cushion_usd()
    most = min(OVERRUN * usd, usd + max(0.0, left - usd) / setup.parallel)
    for limit in (most, usd):
        worker = setup.host.worker
        at = setup.host.clock()
        decision = Decision(
            number=number, trial=trial, usd=usd, why=setup.strategy.name, limit_usd=limit, worker=worker, at=at
        )
        if limit + _more_overhead(setup, state, decision) <= left + 1e-9:
            return decision
    return None


def _more_overhead(setup: SweepSetup, state: SweepState, decision: Decision) -> float:
    """Return what this machine's idle slots would cost in addition while the trial runs."""
    if not isinstance(setup.host, SweepHost):
        return 0.0
    session = setup.host.session
    now = setup.host.clock()
    return session.reserve_usd(state.with_decision(decision), now) - setup.ledger.usd(setup.host.entry)


def run_trial(setup: SweepSetup, decision: Decision) -> TrialResult:
    setup.announce(decision)
    return setup.runner.run(decision.number, decision.trial, limit_of(setup, decision))


def limit_of(setup: SweepSetup, decision: Decision) -> float:
    """Return the most that a trial may cost.

    Restarts after kills may have cost more than was left: the limit includes that.
    """
    return max(0.0, decision.most_usd + min(0.0, setup.ledger.left_usd))


def finish(setup: SweepSetup, decision: Decision, result: TrialResult) -> None:
    """Save a trial's result and charge what it cost."""
    number = decision.number
    loss = math.nan if result.loss is None else result.loss
    here = result.usd if result.session_usd is None else result.session_usd
    extra = {**result.extra, "worker": setup.host.worker, "session_usd": here}
    observation = Observation(trial=decision.trial, loss=loss, usd=result.usd, seconds=result.seconds, extra=extra)
    if not setup.sweep.finish(number, observation):
        return  # another worker has finished it; what was spent here is this machine's overhead
    setup.ledger.charge(trial_entry(number), result.usd)
    setup.tell(SweepProgress(number, decision, observation, setup.ledger.left_usd))


def trial_entry(number: int) -> str:
    return f"{TRIAL}{number:03d}"


def check_budget(problem: Problem, final_usd: float, ledger: Ledger, again_usd: float = 0.0) -> None:
    """Raise BudgetError, with the least that works, if the final run and one trial do not fit.

    What has been spent stays spent, so the next command also needs `again_usd` for its start.
    """
    cheapest = min((rung.usd for rung in problem.rungs), default=0.0)
    needed = final_usd + cheapest + ledger.spent_usd
    if needed <= ledger.budget_usd + 1e-9 or any(entry.what.startswith(TRIAL) for entry in ledger.entries):
        return
    least = math.ceil(100 * (needed + again_usd)) / 100
    parts = [f"the final run may cost {_dollars(final_usd)}", f"the cheapest trial {_dollars(cheapest)}"]
    if ledger.spent_usd > 0:
        parts.append(f"{_dollars(ledger.spent_usd)} are spent or reserved")
    if again_usd > 0:
        parts.append(f"starting again takes {_dollars(again_usd)}")
    raise BudgetError(
        f"budget.usd={ledger.budget_usd:g} does not buy a search: {', '.join(parts)}\n"
        f"  the least that works is budget.usd={least:.2f}; or shorten the target, or add smaller trials (tune.sizes, "
        "tune.horizons)"
    )


def _dollars(usd: float) -> str:
    return f"${usd:.2f}" if usd >= 0.1 else f"${usd:.4f}"


def conclude(setup: SweepSetup, history: Sequence[Observation]) -> Answer:
    """Return the strategy's answer, with warnings about what it rests on; saved in the sweep."""
    search = search_of(setup, history)
    if history and not any(one.finite or one.diverged for one in history):
        raise BudgetError(
            f"all {len(history)} trials took twice their estimate and were stopped: there is no answer\n"
            "  use a machine that does nothing else, and choose another tune.name; the trials are kept"
        )
    if history and not any(one.finite for one in history):
        lowest = min(one.trial.rate for one in history)
        raise BudgetError(
            f"all {len(history)} trials diverged, down to {lowest:.3g}: there is no answer\n"
            f"  set tune.lowest below {lowest / 4:.2g} and choose another tune.name; the trials are kept"
        )
    answer = setup.strategy.answer(search)
    setup.sweep.save_answer(answer)
    return answer


def edge_warnings(problem: Problem, history: Sequence[Observation]) -> tuple[str, ...]:
    """Return a line for each rung whose best rate is the lowest or highest allowed."""
    warnings = []
    for rung in _rungs_of(problem, history):
        best = Search(problem, history, 0.0, 0.0).best(rung.name)
        for limit, key in ((problem.lowest, "tune.lowest"), (problem.highest, "tune.highest")):
            if best is not None and abs(math.log(best.trial.rate / limit)) < AT_THE_EDGE:
                warnings.append(f"{rung.name}: the best rate {best.trial.rate:.3g} is at the edge of what {key} allows")
    return tuple(warnings)


def _rungs_of(problem: Problem, history: Sequence[Observation]) -> list[Rung]:
    return [problem.rung(name) for name in dict.fromkeys(one.trial.rung for one in history)]
