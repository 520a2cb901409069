"""Random rates, log-uniform within a factor of four of the expected one, on the most expensive rung that allows five trials."""

from __future__ import annotations

import math

import numpy as np

from ..problem import Answer, Search, Trial
from .base import best_observed, fallback, proxy, smaller_rungs

SPREAD = math.log(4.0)


class Random:
    name = "random"
    about = "random rates on one smaller setting; the best is taken as it is"

    def propose(self, search: Search) -> Trial | None:
        rung = proxy(search, smaller_rungs(search.problem))
        if rung is None or not search.affordable(rung):
            return None
        rng = np.random.default_rng(search.problem.seed)
        centre = search.problem.expected_rate(rung)
        for _ in range(200):  # a rate that was tried already is drawn again
            trial = Trial(rung.name, search.problem.place(rung, centre * math.exp(rng.uniform(-SPREAD, SPREAD))))
            if not search.tried(trial):
                return trial
        return None

    def answer(self, search: Search) -> Answer:
        rung = proxy(search, smaller_rungs(search.problem))
        return best_observed(search, rung, "random search") if rung else fallback(search, "the budget buys no trials")


STRATEGY = Random()
