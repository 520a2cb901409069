"""Greedy doubling: twice the rate until training diverges or clearly worsens, then fractions of the last good step."""

from __future__ import annotations

from ..problem import Answer, Rung, Search, Trial
from .base import best_observed, fallback, horizon_rungs, proxy, smaller_rungs

START = 0.25  # first rate, as a share of the expected rate
WORSE_NATS = 0.05  # a loss this far above the best counts as diverged
FRACTIONS = (1.5, 0.75, 1.25, 0.625)  # multiples of the best rate, between its neighbours in the doubling


class Greedy:
    name = "greedy"
    about = "double the rate until it diverges, then fractions around the best"

    def propose(self, search: Search) -> Trial | None:
        rung = self._rung(search)
        if rung is None or not search.affordable(rung):
            return None
        problem = search.problem
        best = search.best(rung.name)
        seen = search.of_rung(rung.name)
        if not seen:
            return Trial(rung.name, problem.place(rung, START * problem.expected_rate(rung)))
        top = max(seen, key=lambda one: one.trial.rate)
        rising = best is not None and not top.diverged and top.loss < best.loss + WORSE_NATS
        rates = [top.trial.rate * 2] if rising and top.trial.rate < problem.highest else []
        if best is None:  # the very first rate diverged
            rates = [min(one.trial.rate for one in seen) / 4]
        rates += [best.trial.rate * fraction for fraction in FRACTIONS] if best else []
        trials = [Trial(rung.name, problem.place(rung, rate)) for rate in rates]
        return next((one for one in trials if not search.tried(one)), None)

    def answer(self, search: Search) -> Answer:
        rung = self._rung(search)
        return best_observed(search, rung, "greedy doubling") if rung else fallback(search, "the budget buys no trials")

    def _rung(self, search: Search) -> Rung | None:
        same_model = horizon_rungs(search.problem)
        return proxy(search, same_model) or proxy(search, smaller_rungs(search.problem))


STRATEGY = Greedy()
