"""The budgeted ladder: cheap rungs that differ from the target in size or horizon, joined by one fit.

Each next trial is the one that saves most expected regret at the target per dollar. A rung's best rate must lie
between two others before the search leaves it. The answer minimises the expected loss, with the cost of diverging.
"""

from __future__ import annotations

import math

from ..design import Information, best_candidate
from ..joint import fit_jointly
from ..problem import Answer, Search, Trial
from .base import FACTOR, bracket_problem, smaller_rungs

WORTHWHILE = 0.03  # of the expected regret: a bundle of trials that saves less is not bought
BRACKET_AFTER = 2  # trials on a rung


class Ladder:
    name = "ladder"
    about = "rungs of size and horizon, one joint fit, next trial by regret saved per dollar (default)"

    def propose(self, search: Search) -> Trial | None:
        rungs = [rung for rung in smaller_rungs(search.problem) if search.affordable(rung)]
        if not rungs:
            return None
        outward = self._bracketing(search)
        if outward is not None:
            return outward
        information = Information.of(search, rungs)
        candidate = best_candidate(search, information, rungs)
        if candidate is None or candidate.saved_nats < WORTHWHILE * information.expected_regret:
            return None
        return candidate.trial

    def _bracketing(self, search: Search) -> Trial | None:
        """A rate beyond the edge, where the newest rung's best is at the edge of what was tried there."""
        if not search.history:
            return None
        rung = search.problem.rung(search.history[-1].trial.rung)
        seen = search.of_rung(rung.name)
        if len(seen) < BRACKET_AFTER or not search.affordable(rung) or (edge := bracket_problem(search, rung)) is None:
            return None
        extreme = (min if edge == "low" else max)(one.trial.rate for one in seen)
        rate = search.problem.place(rung, extreme * (1 / FACTOR if edge == "low" else FACTOR))
        trial = Trial(rung.name, rate)
        return None if search.tried(trial) else trial

    def answer(self, search: Search) -> Answer:
        fit = fit_jointly(search.problem, search.history)
        rate = fit.best_rate()
        low, high = fit.interval()
        place = math.log(rate)
        rungs = len(fit.curves)
        why = f"joint fit of {len(search.history)} trials on {rungs} rungs" if rungs else "prior only"
        return Answer(rate, low, high, fit.regret(place), fit.divergence(place), why)


STRATEGY = Ladder()
