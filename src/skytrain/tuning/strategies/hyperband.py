"""Hyperband (Li et al. 2018): several brackets of successive halving, from many short trials to few long ones.

With R the longest horizon over the shortest and eta = 3, bracket s starts n = ceil((s_max+1)/(s+1) eta^s) rates at
R eta^-s. The rungs are horizons with complete schedules, so R eta^-s is the nearest one that exists: R = 555 and the
steps 2, 7, 21, 62, 185 and 555 are six brackets with 611 runs of 415 rates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..problem import Answer, Problem, Rung, Search, Trial
from .base import best_observed, fallback, horizon_rungs, smaller_rungs
from .halving import ETA, bracket_usd, counts


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


def bracket_rates(search: Search, brackets: list[Bracket], number: int) -> list[float]:
    """Return the rates that a bracket starts with: around the expected one, a factor of sqrt(2) apart or nearer.

    Hyperband draws them at random. These are points of van der Corput's sequence, which fill a range evenly however
    many of them are used, so the rates of a later bracket fall between those before it.
    """
    problem = search.problem
    rung = brackets[number].rungs[0]
    count = brackets[number].sizes[0]
    before = sum(one.sizes[0] for one in brackets[:number])
    centre = problem.expected_rate(rung)
    low, high = (problem.clip(centre * 2 ** (side * count / 4)) for side in (-1, 1))
    places = [_van_der_corput(1 + before + n) for n in range(count)]
    rates = [low * (high / low) ** place for place in places]
    return [rung.snap(rate) if rung.rates else float(f"{rate:.4g}") for rate in rates]


def _van_der_corput(number: int) -> float:
    """Return the number's binary digits behind the point, in reverse order."""
    place = 0.5
    value = 0.0
    while number:
        value += place * (number & 1)
        number >>= 1
        place /= 2
    return value


class Hyperband:
    name = "hyperband"
    about = "Hyperband's table of brackets over horizons, each a complete schedule"

    def propose(self, search: Search) -> Trial | None:
        brackets = self._table(search)
        for number, bracket in enumerate(brackets):
            trial = self._promote(search, bracket, bracket_rates(search, brackets, number))
            if trial is not None:
                return trial
        return None

    def announce(self, problem: Problem, usd: float) -> list[str]:
        """Return the whole table and its price, and what of it the money buys."""
        rungs = horizon_rungs(problem)
        whole = table(rungs)
        bought = self._table(Search(problem, (), usd, usd))
        cost = sum(one.usd for one in whole)
        lines = [f"Hyperband's table over {_steps(rungs)} (eta {ETA}): {_count(whole)}, at most ${cost:,.2f}"]
        if bought != whole:
            paid = sum(one.usd for one in bought)
            over = _steps([rung for one in bought for rung in one.rungs])
            lines.append(f"${usd:,.2f} buys {_count(bought)} over {over}, at most ${paid:,.2f}")
        return lines

    def answer(self, search: Search) -> Answer:
        rungs = {rung.name: rung for bracket in self._table(search) for rung in bracket.rungs}
        reached = [rung for rung in rungs.values() if search.best(rung.name) is not None]
        if not reached:
            return fallback(search, "the budget buys no bracket")
        return best_observed(search, max(reached, key=lambda one: one.tokens), "Hyperband", reached)

    def _promote(self, search: Search, bracket: Bracket, rates: list[float]) -> Trial | None:
        """Return the next trial of one bracket: the best of a rung go on to the next."""
        for level, (rung, size) in enumerate(zip(bracket.rungs, bracket.sizes, strict=True)):
            if level:
                before = [one for one in search.of_rung(bracket.rungs[level - 1].name) if one.trial.rate in rates]
                rates = [one.trial.rate for one in sorted(before, key=lambda one: one.loss)][:size]
            for rate in rates[:size]:
                trial = Trial(rung.name, rung.snap(rate) if rung.rates else rate)
                if not search.tried(trial):
                    return trial if search.affordable(rung) else None
        return None

    def _table(self, search: Search) -> list[Bracket]:
        brackets = affordable_table(search.total_usd, horizon_rungs(search.problem))
        return brackets or affordable_table(search.total_usd, smaller_rungs(search.problem)[:1])


def _count(brackets: list[Bracket]) -> str:
    rates = sum(one.sizes[0] for one in brackets)
    return f"{len(brackets)} brackets, {sum(sum(one.sizes) for one in brackets)} runs of {rates} rates"


def _steps(rungs: Sequence[Rung]) -> str:
    lengths = sorted({round(rung.tokens / rung.batch_tokens) for rung in rungs})
    return f"{', '.join(map(str, lengths))} steps"


STRATEGY = Hyperband()
