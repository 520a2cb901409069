"""Successive halving: many rates on the shortest horizon, the best third on the next, and so on.

Each horizon has its own complete schedule. Losses inside one long schedule favour low rates early in the decay
and high rates in the warm-up, so they are never compared.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..problem import Answer, Rung, Search, Trial
from .base import best_observed, fallback, horizon_rungs, smaller_rungs

ETA = 3


def counts(first: int, rungs: int, eta: int = ETA) -> list[int]:
    """Return how many trials each rung gets: the top 1/eta of the one before."""
    return [max(1, first // eta**level) for level in range(rungs)]


def bracket_usd(rungs: Sequence[Rung], sizes: Sequence[int]) -> float:
    return sum(size * rung.usd for rung, size in zip(rungs, sizes, strict=True))


def plan(total_usd: float, rungs: Sequence[Rung]) -> tuple[list[Rung], list[int]]:
    """Return the bracket with the most rungs that the budget buys, with at least eta rates on its first."""
    for depth in range(len(rungs), 0, -1):
        chosen = list(rungs[:depth])
        first = max((n for n in range(ETA, 28) if bracket_usd(chosen, counts(n, depth)) <= total_usd + 1e-9), default=0)
        if first >= ETA ** (depth - 1) and first >= ETA:
            return chosen, counts(first, depth)
    return [], []


def first_rates(search: Search, rung: Rung, count: int) -> list[float]:
    """Return `count` rates around the expected one, sqrt(2) apart."""
    problem = search.problem
    rates = list[float]()
    centre = problem.expected_rate(rung)
    for step in (side * k for k in range(60) for side in (1, -1)):
        rate = problem.place(rung, centre * 2 ** (step / 2))
        if rate not in rates:
            rates.append(rate)
        if len(rates) == count:
            break
    return rates


def promote(search: Search, chosen: Sequence[Rung], sizes: Sequence[int], rates: Sequence[float]) -> Trial | None:
    """Return the next trial of one bracket that starts with `rates`."""
    for level, (rung, size) in enumerate(zip(chosen, sizes, strict=True)):
        if level:
            wanted = {chosen[level - 1].snap(rate) for rate in rates}
            before = [one for one in search.of_rung(chosen[level - 1].name) if one.trial.rate in wanted]
            rates = [one.trial.rate for one in sorted(before, key=lambda one: one.loss)][:size]
        for rate in rates[:size]:
            trial = Trial(rung.name, rung.snap(rate))
            if not search.tried(trial):
                return trial if search.affordable(rung) else None
    return None


class Halving:
    name = "halving"
    about = "successive halving over horizons, each a complete schedule"

    def propose(self, search: Search) -> Trial | None:
        chosen, sizes = self._bracket(search)
        return promote(search, chosen, sizes, first_rates(search, chosen[0], sizes[0])) if chosen else None

    def answer(self, search: Search) -> Answer:
        chosen, _ = self._bracket(search)
        reached = [rung for rung in chosen if search.best(rung.name) is not None]
        if not reached:
            return fallback(search, "the budget buys no bracket")
        return best_observed(search, reached[-1], "successive halving", reached)

    def _bracket(self, search: Search) -> tuple[list[Rung], list[int]]:
        rungs = horizon_rungs(search.problem)
        chosen, sizes = plan(search.total_usd, rungs)
        return (chosen, sizes) if chosen else plan(search.total_usd, smaller_rungs(search.problem)[:1])


STRATEGY = Halving()
