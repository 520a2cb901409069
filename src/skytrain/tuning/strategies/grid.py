"""A grid of rates, a factor of two apart, on the most expensive rung of which the budget buys five trials."""

from __future__ import annotations

from ..problem import Answer, Search, Trial
from .base import best_observed, fallback, next_rate, proxy, smaller_rungs


class Grid:
    name = "grid"
    about = "a grid of rates on one smaller setting; its best rate is taken as it is"

    def propose(self, search: Search) -> Trial | None:
        rung = proxy(search, smaller_rungs(search.problem))
        return next_rate(search, rung) if rung else None

    def answer(self, search: Search) -> Answer:
        rung = proxy(search, smaller_rungs(search.problem))
        return best_observed(search, rung, "grid") if rung else fallback(search, "the budget buys no grid")


STRATEGY = Grid()
