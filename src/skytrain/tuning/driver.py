"""A sweep from its first trial to its answer: propose, reserve, run, charge, observe, and again."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from .ledger import FINAL, BudgetError, Ledger
from .problem import Answer, Observation, Problem, Rung, Search, Trial
from .strategies.base import Strategy
from .sweeps import Decision, SweepStore

MOST_TRIALS = 500
AT_THE_EDGE = 0.1  # ln: about one step between neighbouring rates
OVERRUN = 2.0  # most that a trial may cost, in estimates


@dataclass(frozen=True)
class TrialResult:
    """How a trial ended. A trial that its own limit stopped has no loss and did not diverge."""

    loss: float | None  # None: stopped by its limit
    usd: float
    seconds: float
    extra: dict[str, object]


class TrialRunner(Protocol):
    """Runs trials: a GPU, a cluster, a table of published runs or a simulation."""

    def run(self, number: int, trial: Trial, limit_usd: float) -> TrialResult:
        """Runs or resumes the trial. It must stop by itself before it has cost more than `limit_usd` in all."""
        ...


@dataclass(frozen=True)
class SweepProgress:
    """What is shown after each trial."""

    number: int
    decision: Decision
    observation: Observation
    left_usd: float


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


def run_sweep(setup: SweepSetup) -> Answer:
    """Runs trials until the strategy or the money ends, and answers. Calling it again continues."""
    sweep, ledger = setup.sweep, setup.ledger
    check_budget(setup.problem, setup.final_usd, ledger)
    ledger.reserve(FINAL, setup.final_usd)
    history = sweep.history()
    for number in sorted(history):  # killed between the two writes of a trial's end
        ledger.charge(trial_entry(number), history[number].usd)
    decided = sweep.decisions()
    known = {FINAL, *map(trial_entry, history), *(trial_entry(one.number) for one in decided)}
    for entry in ledger.entries:  # killed between a reserve and its decision
        if entry.charged_usd is None and entry.what not in known:
            ledger.release(entry.what)
    for pending in decided:
        if pending.number not in history:
            history[pending.number] = _run(setup, pending)
    while (decision := _next(setup, history)) is not None:
        history[decision.number] = _run(setup, decision)
    return conclude(setup, [history[number] for number in sorted(history)])


def search_of(problem: Problem, history: Sequence[Observation], ledger: Ledger) -> Search:
    # The total leaves overheads out: it must not change in the course of a sweep, or strategies would change course.
    return Search(problem, tuple(history), ledger.left_usd, ledger.budget_usd - ledger.usd(FINAL))


def _next(setup: SweepSetup, history: dict[int, Observation]) -> Decision | None:
    """Decides on the next trial and reserves its money; None when the strategy has enough or money is short."""
    sweep, ledger = setup.sweep, setup.ledger
    number = max(history, default=0) + 1
    done = [history[each] for each in sorted(history)]
    trial = setup.strategy.propose(search_of(setup.problem, done, ledger)) if number <= MOST_TRIALS else None
    if trial is None:
        return None
    usd = repriced(setup.problem, done).rung(trial.rung).usd
    try:
        ledger.reserve(trial_entry(number), usd)
    except BudgetError:
        return None  # trials of this model have cost more than estimated
    decision = Decision(number, trial, usd, setup.strategy.name)
    sweep.decide(decision)
    return decision


def repriced(problem: Problem, history: Sequence[Observation]) -> Problem:
    """The rungs with dearer estimates where trials of the same model have cost more than estimated."""
    slower: dict[tuple[float, int, int], float] = {}
    for one in history:
        rung = problem.rung(one.trial.rung)
        key = (rung.parameters, rung.layers, rung.width)
        if not one.diverged:  # a diverged trial ended early
            slower[key] = max(slower.get(key, 1.0), one.usd / rung.usd)
    rungs = [
        replace(rung, usd=rung.usd * slower.get((rung.parameters, rung.layers, rung.width), 1.0))
        for rung in problem.rungs
    ]
    return replace(problem, rungs=tuple(rungs))


def _run(setup: SweepSetup, decision: Decision) -> Observation:
    ledger, number = setup.ledger, decision.number
    ledger.reserve(trial_entry(number), decision.usd)
    setup.announce(decision)
    # A busy machine may be slower than its dry run. That is no reason to lose the trial while money is left.
    limit = min(OVERRUN * decision.usd, decision.usd + max(0.0, ledger.left_usd))
    result = setup.runner.run(number, decision.trial, limit)
    loss = math.nan if result.loss is None else result.loss
    observation = Observation(decision.trial, loss, result.usd, result.seconds, result.extra)
    setup.sweep.finish(number, observation)
    ledger.charge(trial_entry(number), result.usd)
    setup.tell(SweepProgress(number, decision, observation, ledger.left_usd))
    return observation


def trial_entry(number: int) -> str:
    return f"trial-{number:03d}"


def check_budget(problem: Problem, final_usd: float, ledger: Ledger) -> None:
    """Raises BudgetError with the least that works where the final run and one trial do not fit."""
    cheapest = min((rung.usd for rung in problem.rungs), default=0.0)
    if ledger.spent_usd or final_usd + cheapest <= ledger.budget_usd + 1e-9:
        return
    least = math.ceil(100 * (final_usd + cheapest)) / 100
    raise BudgetError(
        f"budget.usd={ledger.budget_usd:g} buys no search: the final run may cost ${final_usd:.2f} "
        f"and the cheapest trial ${cheapest:.2f}\n"
        f"  the least that works is budget.usd={least:.2f}; or shorten the target, or add smaller trials (tune.sizes, "
        "tune.horizons)"
    )


def conclude(setup: SweepSetup, history: Sequence[Observation]) -> Answer:
    """The strategy's answer, with warnings about what it rests on; saved in the sweep."""
    search = search_of(setup.problem, history, setup.ledger)
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
    """A line for each rung whose best rate is the lowest or highest that is allowed."""
    found = []
    for rung in _rungs_of(problem, history):
        best = Search(problem, history, 0.0, 0.0).best(rung.name)
        for limit, key in ((problem.lowest, "tune.lowest"), (problem.highest, "tune.highest")):
            if best is not None and abs(math.log(best.trial.rate / limit)) < AT_THE_EDGE:
                found.append(f"{rung.name}: the best rate {best.trial.rate:.3g} is at the edge of what {key} allows")
    return tuple(found)


def _rungs_of(problem: Problem, history: Sequence[Observation]) -> list[Rung]:
    return [problem.rung(name) for name in dict.fromkeys(one.trial.rung for one in history)]
