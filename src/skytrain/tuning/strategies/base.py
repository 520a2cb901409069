"""The interface of strategies, and the steps that several share: choose a rung, sweep it, read off its best rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from ..joint import fit_jointly
from ..problem import Answer, Observation, Problem, Rung, Search, Trial

POINTS = 5  # rates on a rung before its optimum is trusted
FACTOR = 2.0  # between neighbouring rates


class Strategy(Protocol):
    """A way to choose trials until it can answer. It is a pure function of the search, so a search can be continued.

    It may also have `weighs_prices`, true if it leaves out a trial that is not worth its price, and `announce(problem, usd)`,
    which returns lines on what it would buy.
    """

    name: str
    about: str  # one line for `--help` and reports

    def propose(self, search: Search) -> Trial | None:
        """Return the next trial, or None when nothing more is worth its money."""
        ...

    def answer(self, search: Search) -> Answer: ...


def horizon_rungs(problem: Problem) -> list[Rung]:
    """Return the rungs with the target's model and batch and fewer tokens, shortest first."""
    target = problem.target
    shorter = [one for one in problem.rungs if one.parameters == target.parameters and one.tokens < target.tokens]
    return sorted(_nearest_batch(shorter, target), key=lambda one: one.tokens)


def size_rungs(problem: Problem) -> list[Rung]:
    """Return one rung for each smaller model, with the horizon nearest to the target's, smallest first."""
    target = problem.target
    smaller = [one for one in problem.rungs if one.parameters < target.parameters]
    smaller = _nearest_batch(smaller, target)
    by_size: dict[float, Rung] = {}
    for one in smaller:
        known = by_size.get(one.parameters)
        if known is None or abs(math.log(one.tokens / target.tokens)) < abs(math.log(known.tokens / target.tokens)):
            by_size[one.parameters] = one
    return [by_size[size] for size in sorted(by_size)]


def smaller_rungs(problem: Problem) -> list[Rung]:
    """Return every rung with the target's batch but the target itself, cheapest first."""
    others = [one for one in problem.rungs if one.name != problem.target.name]
    return sorted(_nearest_batch(others, problem.target), key=lambda one: one.usd)


def _nearest_batch(rungs: Sequence[Rung], target: Rung) -> list[Rung]:
    """Return the rungs at the target's batch; if a model and horizon lack it, those at the nearest batch."""
    groups: dict[tuple[float, float], Rung] = {}
    for one in rungs:
        key = (one.parameters, one.tokens)
        if key not in groups or _batch_gap(one, target) < _batch_gap(groups[key], target):
            groups[key] = one
    return list(groups.values())


def _batch_gap(rung: Rung, target: Rung) -> float:
    return abs(math.log(rung.batch_tokens / target.batch_tokens))


def rates_per_rung(search: Search, usual: int = POINTS) -> int:
    """Return how many rates a rung's sweep has: tune.trials_per_rung, or as many as are usual."""
    return search.problem.trials_per_rung or usual


def proxy(search: Search, rungs: Sequence[Rung], points: int | None = None) -> Rung | None:
    """Return the most expensive of `rungs` (so the nearest to the target) of which the whole budget buys `points`
    trials.
    """
    points = points or rates_per_rung(search)
    fitting = [one for one in rungs if search.total_usd >= points * one.usd - 1e-9]
    return max(fitting, key=lambda one: one.usd) if fitting else None


def next_rate(search: Search, rung: Rung, points: int | None = None) -> Trial | None:
    """Return the next rate of a rung's sweep: `points` around the expected one, then outwards until the best is
    bracketed.
    """
    points = points or rates_per_rung(search)
    problem = search.problem
    seen = search.of_rung(rung.name)
    if not search.affordable(rung):
        return None
    if len(seen) >= points and (edge := bracket_problem(search, rung)) is None:
        return None
    centre = problem.expected_rate(rung)
    if len(seen) < points:
        steps = [0, 1, -1, 2, -2, *(side * k for k in range(3, 12) for side in (1, -1))]
        rates = [problem.place(rung, centre * FACTOR**step) for step in steps]
    else:
        extreme = (min if edge == "low" else max)(one.trial.rate for one in seen)
        rates = [problem.place(rung, extreme * (1 / FACTOR if edge == "low" else FACTOR))]
    fresh = [Trial(rung.name, rate) for rate in rates if not search.tried(Trial(rung.name, rate))]
    return fresh[0] if fresh else None


def bracket_problem(search: Search, rung: Rung) -> str | None:
    """Return `low` or `high` if the best rate of a rung is the lowest or highest tried, else None."""
    best = search.best(rung.name)
    seen = search.of_rung(rung.name)
    if best is None:
        return "low"
    if all(one.trial.rate >= best.trial.rate for one in seen):
        return "low"
    return "high" if all(one.trial.rate <= best.trial.rate for one in seen) else None


def vertex(seen: Sequence[Observation]) -> float | None:
    """Return the minimum of the parabola through the best rate and its neighbours, over the logarithm of the rate."""
    finite = sorted((one for one in seen if one.finite), key=lambda one: one.trial.rate)
    if not finite:
        return None
    number = min(range(len(finite)), key=lambda one: finite[one].loss)
    if number in (0, len(finite) - 1):
        return finite[number].trial.rate
    x = np.log([one.trial.rate for one in finite[number - 1 : number + 2]])
    a, b, _ = np.polyfit(x - x[1], [one.loss for one in finite[number - 1 : number + 2]], 2)
    return float(np.exp(x[1] - b / (2 * a))) if a > 0 else finite[number].trial.rate


def fallback(search: Search, why: str) -> Answer:
    """Return the rate that is expected without trials, for when there is nothing better."""
    problem = search.problem
    low, high = fit_jointly(problem, ()).interval()
    return Answer(rate=problem.expected_rate(problem.target), low=low, high=high, why=why, own=False)


def outside(search: Search, rate: float) -> tuple[str, ...]:
    """Return a warning if a rate lies beyond all that were tried."""
    tried = [one.trial.rate for one in search.history if one.finite]
    if not tried or min(tried) <= rate <= max(tried):
        return ()
    side = "below" if rate < min(tried) else "above"
    span = f"{min(tried):.3g} to {max(tried):.3g}"
    return (f"{rate:.3g} is {side} every rate that was tried ({span}): it is an extrapolation",)


def is_compared(search: Search, rung: Rung) -> bool:
    """Return whether a rung has two rates: the only one that was tried is no minimum, whatever its loss."""
    return len({one.trial.rate for one in search.of_rung(rung.name) if one.finite or one.diverged}) > 1


def best_observed(search: Search, rung: Rung, words: str, before: Sequence[Rung] = ()) -> Answer:
    """Return the best rate of a rung, unchanged. It is an answer if it was chosen there or on a rung `before`."""
    best = search.best(rung.name)
    if best is None:
        return fallback(search, f"no trial on {rung.name} has a finite loss; this is the published law's rate")
    return Answer(
        rate=search.problem.clip(best.trial.rate),
        why=f"{words}: the best of {rung.name}, loss {best.loss:.4f}",
        own=any(is_compared(search, one) for one in (rung, *before)),
    )
