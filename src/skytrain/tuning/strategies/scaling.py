"""Projections: optima of several sizes, or of several horizons, continued to the target along a power law."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ..problem import Answer, Problem, Rung, Search, Trial
from .base import fallback, next_rate, outside, vertex

PER_RUNG = 4
MOST_RUNGS = 4


def ladder_of(search: Search, rungs: Sequence[Rung]) -> list[Rung]:
    """Return as many of the cheapest rungs as the whole budget sweeps with four rates each, at least two."""
    chosen: list[Rung] = []
    for rung in sorted(rungs, key=lambda one: one.usd):
        if sum(one.usd for one in (*chosen, rung)) * PER_RUNG <= search.total_usd + 1e-9 and len(chosen) < MOST_RUNGS:
            chosen.append(rung)
    return chosen


class Projection:
    """A sweep of each rung of a ladder, and a straight line through the logarithms of optimum and size or horizon."""

    def __init__(self, name: str, about: str, rungs: Callable[[Problem], list[Rung]], axis: str) -> None:
        self.name = name
        self.about = about
        self._rungs = rungs
        self._axis = axis

    def propose(self, search: Search) -> Trial | None:
        for rung in ladder_of(search, self._rungs(search.problem)):
            trial = next_rate(search, rung, PER_RUNG)
            if trial is not None:
                return trial
        return None

    def answer(self, search: Search) -> Answer:
        problem = search.problem
        optima = [(rung, vertex(search.of_rung(rung.name))) for rung in ladder_of(search, self._rungs(problem))]
        points = [(math.log(getattr(rung, self._axis)), math.log(best)) for rung, best in optima if best is not None]
        if not points:
            return fallback(search, f"the budget does not buy a ladder of {self._axis}")
        if len(points) == 1:
            return Answer(
                rate=problem.clip(math.exp(points[0][1])), why=f"one rung only: its best rate for any {self._axis}"
            )
        x, y = np.array(points).T
        slope, start = np.polyfit(x, y, 1)
        rate = math.exp(start + slope * math.log(getattr(problem.target, self._axis)))
        words = f"best rate ~ {self._axis}^{slope:+.2f} over {len(points)} rungs"
        rate = problem.clip(rate)
        return Answer(rate=rate, why=words, warnings=outside(search, rate))
