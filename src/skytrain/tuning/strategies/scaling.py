"""Projections: optima of several sizes, or of several horizons, continued to the target along a power law."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ..fits import fit_all
from ..problem import Answer, Problem, Rung, Search, Trial
from .base import fallback, is_compared, next_rate, outside, rates_per_rung, vertex

PER_RUNG = 4
LEAST_PER_RUNG = 2
MOST_RUNGS = 4
FIT = "power"  # the one that answers; the others are shown beside it


def ladder_of(search: Search, rungs: Sequence[Rung]) -> tuple[list[Rung], int]:
    """Return as many of the cheapest rungs as the whole budget sweeps, and how many rates each gets.

    A line needs two rungs: where the budget does not sweep two with all rates, each gets fewer.
    """
    wanted = rates_per_rung(search, PER_RUNG)
    chosen: list[Rung] = []
    for count in range(wanted, LEAST_PER_RUNG - 1, -1):
        chosen = _affordable(search, rungs, count)
        if len(chosen) > 1 or len(rungs) < 2:
            return chosen, count
    return _affordable(search, rungs, wanted), wanted


def _affordable(search: Search, rungs: Sequence[Rung], count: int) -> list[Rung]:
    chosen: list[Rung] = []
    for rung in sorted(rungs, key=lambda one: one.usd):
        if sum(one.usd for one in (*chosen, rung)) * count <= search.total_usd + 1e-9 and len(chosen) < MOST_RUNGS:
            chosen.append(rung)
    return chosen


class Projection:
    """A sweep of each rung of a ladder, and a straight line through the logarithms of optimum and size or horizon."""

    def __init__(self, name: str, about: str, rungs: Callable[[Problem], list[Rung]], axis: str) -> None:
        self.name = name
        self.about = about
        self._rungs = rungs
        self._axis = axis

    def announce(self, problem: Problem, usd: float) -> list[str]:
        """Return what the money does not buy of the rungs and rates that were asked for; nothing if it buys all."""
        search = Search(problem, (), usd, usd)
        wanted = rates_per_rung(search, PER_RUNG)
        rungs = sorted(self._rungs(problem), key=lambda one: one.usd)
        chosen, count = ladder_of(search, rungs)
        if len(chosen) == len(rungs) and count == wanted:
            return []
        paid = count * sum(one.usd for one in chosen)
        names = ", ".join(one.name for one in rungs)
        return [
            f"{wanted} rates at each of {names} cost at most ${wanted * sum(one.usd for one in rungs):,.2f}",
            f"${usd:,.2f} buys {count} at each of {', '.join(one.name for one in chosen) or 'none'}, at most ${paid:,.2f}",
        ]

    def propose(self, search: Search) -> Trial | None:
        rungs, count = ladder_of(search, self._rungs(search.problem))
        # Every rung has its rates before any is widened: money that a wide one takes would leave a single size.
        for rung in sorted(rungs, key=lambda one: len(search.of_rung(one.name)) >= count):
            trial = next_rate(search, rung, count)
            if trial is not None:
                return trial
        return None

    def answer(self, search: Search) -> Answer:
        problem = search.problem
        rungs, _ = ladder_of(search, self._rungs(problem))
        found = [(rung, vertex(search.of_rung(rung.name))) for rung in rungs]
        reached = [(rung, best) for rung, best in found if best is not None]
        points = [(float(getattr(rung, self._axis)), best) for rung, best in reached]
        if not points:
            return fallback(search, f"the budget does not buy a ladder of {self._axis}")
        if len(points) == 1:
            why = f"one rung only: its best rate for any {self._axis}"
            return Answer(rate=problem.clip(points[0][1]), why=why, own=False)  # nothing was projected
        fits = fit_all(points, float(getattr(problem.target, self._axis)))
        used = next(fit for fit in fits if fit.name == FIT)
        assert used.rate is not None, "a power law is positive everywhere"
        rate = problem.clip(used.rate)
        exponent = math.log2(used.curve(2.0) / used.curve(1.0))
        others = ", ".join(map(str, fits))
        return Answer(
            rate=rate,
            why=f"best rate ~ {self._axis}^{exponent:+.2f} over {len(points)} rungs; {others}",
            warnings=outside(search, rate),
            fits=fits,
            own=all(is_compared(search, rung) for rung, _ in reached),
        )
