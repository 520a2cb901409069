"""The budgeted ladder: cheap rungs that differ from the target in size or horizon, joined by one fit.

Each next trial is the first of the plan that leaves the least expected regret at the target for the remaining money.
A rung that was begun gets three rates, and its best must lie between two others before the search leaves it. The
answer minimises the expected loss, with the cost of diverging, and warns where the evidence is thin.
"""

from __future__ import annotations

import math

from ...config import plural
from ..design import Information, best_plan
from ..joint import fit_jointly
from ..problem import Answer, Rung, Search, Trial
from .base import FACTOR, bracket_problem, fallback, smaller_rungs

WORTHWHILE = 0.05  # share of the expected regret that a plan must save to be begun
BRACKET_AFTER = 3  # trials on a rung before its best rate must be bracketed
VAGUE = 4.0  # an interval wider than this factor is worth a warning
POINTS = 3  # rates that a rung gets once it was begun


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
        begun = self._begun(search)
        information = Information.of(search, rungs)
        if begun in rungs and (rest := best_plan(search, information, [begun])) is not None:
            return rest.first
        # Two rates on a rung leave its optimum open to both sides.
        whole = [rung for rung in rungs if search.buys(rung) + len(search.of_rung(rung.name)) >= POINTS]
        plan = best_plan(search, information, whole or rungs)
        if plan is None or plan.saved < WORTHWHILE * information.variance:
            return None
        return plan.first

    def _begun(self, search: Search) -> Rung | None:
        """Return the newest rung while it has too few rates for an optimum."""
        if not search.history:
            return None
        rung = search.problem.rung(search.history[-1].trial.rung)
        return rung if sum(one.finite for one in search.of_rung(rung.name)) < POINTS else None

    def _bracketing(self, search: Search) -> Trial | None:
        """Return a rate beyond the edge if the newest rung's best is at the edge of what was tried there."""
        if not search.history:
            return None
        rung = search.problem.rung(search.history[-1].trial.rung)
        seen = search.of_rung(rung.name)
        if len(seen) < BRACKET_AFTER or not search.affordable(rung) or (edge := bracket_problem(search, rung)) is None:
            return None
        extreme = (min if edge == "low" else max)(one.trial.rate for one in seen)
        stride = FACTOR if len(seen) <= POINTS else FACTOR**2  # the optimum is far away: take larger steps
        rate = search.problem.place(rung, extreme * (1 / stride if edge == "low" else stride))
        trial = Trial(rung.name, rate)
        return None if search.tried(trial) else trial

    def answer(self, search: Search) -> Answer:
        if not any(one.finite or one.diverged for one in search.history):
            return fallback(search, "no trial was bought; this is the rate expected without trials")
        fit = fit_jointly(search.problem, search.history)
        rate = fit.best_rate()
        low, high = fit.interval()
        place = math.log(rate)
        why = f"joint fit of {plural(len(search.history), 'trial')} on {plural(len(fit.curves), 'rung')}"
        return Answer(
            rate=rate,
            low=low,
            high=high,
            regret_nats=fit.regret(place),
            divergence=fit.divergence(place),
            why=why,
            warnings=doubts(search, rate, (low, high)),
        )


def doubts(search: Search, rate: float, interval: tuple[float, float]) -> tuple[str, ...]:
    """Return what a reader must know before trusting the answer."""
    tried = [one.trial.rate for one in search.history if one.finite]
    if not tried:
        return ()
    warnings = []
    if not min(tried) <= rate <= max(tried):
        side = "below" if rate < min(tried) else "above"
        warnings.append(
            f"{rate:.3g} is {side} every rate that was tried ({min(tried):.3g} to {max(tried):.3g}): it is an extrapolation"
        )
    names = dict.fromkeys(one.trial.rung for one in search.history)
    for rung in map(search.problem.rung, names):
        edge = bracket_problem(search, rung)
        if edge is not None and search.best(rung.name) is not None:
            word = "lowest" if edge == "low" else "highest"
            warnings.append(f"{rung.name}: its best rate is the {word} that was tried, so its optimum may lie beyond")
    if interval[1] > VAGUE * interval[0]:
        warnings.append(f"the trials leave the optimum open by a factor of {interval[1] / interval[0]:.0f}")
    return tuple(warnings)


STRATEGY = Ladder()
