"""Hyperband (Li et al. 2018): several brackets of successive halving, from many short trials to few long ones.

With R the longest horizon over the shortest and eta = 3, bracket s starts n = ceil((s_max+1)/(s+1) eta^s) rates at
R eta^-s. The rungs are horizons with complete schedules, so R eta^-s is the nearest one that exists.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..problem import Answer, Rung, Search, Trial
from .base import best_observed, fallback, horizon_rungs, smaller_rungs
from .halving import ETA, bracket_usd, counts, first_rates, promote


@dataclass(frozen=True)
class Bracket:
    """One row of Hyperband's table."""

    rungs: tuple[Rung, ...]
    sizes: tuple[int, ...]

    @property
    def usd(self) -> float:
        return bracket_usd(self.rungs, self.sizes)


def table(rungs: list[Rung], eta: int = ETA) -> list[Bracket]:
    """Return the brackets over rungs that are sorted from short to long, the widest first."""
    most = len(rungs) - 1
    brackets = []
    for s in range(most, -1, -1):
        first = math.ceil((most + 1) / (s + 1) * eta**s)
        brackets.append(Bracket(tuple(rungs[most - s :]), tuple(counts(first, s + 1, eta))))
    return brackets


def affordable_table(total_usd: float, rungs: list[Rung]) -> list[Bracket]:
    """Return the table over as many rungs as the budget buys completely, or its widest affordable brackets."""
    for depth in range(len(rungs), 0, -1):
        brackets = table(rungs[:depth])
        if sum(one.usd for one in brackets) <= total_usd + 1e-9:
            return brackets
    affordable: list[Bracket] = []
    for one in table(rungs[:2]):
        if sum(each.usd for each in (*affordable, one)) <= total_usd + 1e-9:
            affordable.append(one)
    return affordable


class Hyperband:
    name = "hyperband"
    about = "Hyperband's table of brackets over horizons, each a complete schedule"

    def propose(self, search: Search) -> Trial | None:
        for number, bracket in enumerate(self._table(search)):
            # Later brackets start from other rates: half a step away from those of the bracket before.
            rung = bracket.rungs[0]
            rates = first_rates(search, rung, bracket.sizes[0])
            rates = [search.problem.place(rung, rate * 2 ** (number / 4)) for rate in rates]
            trial = promote(search, bracket.rungs, bracket.sizes, rates)
            if trial is not None:
                return trial
        return None

    def answer(self, search: Search) -> Answer:
        rungs = {rung.name: rung for bracket in self._table(search) for rung in bracket.rungs}
        reached = [rung for rung in rungs.values() if search.best(rung.name) is not None]
        if not reached:
            return fallback(search, "the budget buys no bracket")
        return best_observed(search, max(reached, key=lambda one: one.tokens), "Hyperband")

    def _table(self, search: Search) -> list[Bracket]:
        brackets = affordable_table(search.total_usd, horizon_rungs(search.problem))
        return brackets or affordable_table(search.total_usd, smaller_rungs(search.problem)[:1])


STRATEGY = Hyperband()
