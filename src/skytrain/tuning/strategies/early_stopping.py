"""Early stopping at a fixed number of tokens: the target's own model on a short but complete schedule.

A run that is cut off inside the target's schedule is still in its warm-up or has not begun to decay, and would rank
rates by that. So every trial has a complete shorter schedule, with the same shares of warm-up and decay.
"""

from __future__ import annotations

from ..problem import Answer, Search, Trial
from .base import best_observed, fallback, horizon_rungs, next_rate, proxy


class EarlyStopping:
    name = "early-stopping"
    about = "the target's model for fewer tokens; its best rate is taken as it is"

    def propose(self, search: Search) -> Trial | None:
        rung = proxy(search, horizon_rungs(search.problem))
        return next_rate(search, rung) if rung else None

    def answer(self, search: Search) -> Answer:
        rung = proxy(search, horizon_rungs(search.problem))
        if rung is None:
            return fallback(search, "the budget does not buy enough short runs of the target's model")
        return best_observed(search, rung, "early stopping")


STRATEGY = EarlyStopping()
