"""The budgeted ladder: cheap rungs that differ from the target in size or horizon, joined by one posterior.

The next rung is the first of the plan that leaves the least expected regret at the target for the remaining money. A
rung that was begun is continued until its best rate lies between two others, outwards from where its optimum is
expected; then further rates go to where it is believed to be. The answer minimises the expected loss, with the cost of
diverging, and warns where the evidence is thin.
"""

from __future__ import annotations

import math

from ...config import plural
from ..design import POINTS, best_plan
from ..joint import JointFit, fit_jointly
from ..laws import STANDARD
from ..problem import Answer, Rung, Search, Trial
from .base import FACTOR, bracket_problem, fallback, outside, smaller_rungs

DISAGREES = 0.5  # weight of the standard law above which the trials contradict a width-free parametrization
VAGUE = 4.0  # an interval wider than this factor is worth a warning
FURTHEST = 4  # steps that a next rate may be outside those of a rung
FAVOURED = 0.5  # weight of a shape above which the answer names it
SHAPES = {
    "law": "the law that the search began with",
    "unchanged": "one best rate on all rungs, as grid search assumes",
    "deepseek": "DeepSeek's law",
    "step-law": "Step Law",
    "horizon": "a best rate that falls with the horizon (arXiv 2409.19913)",
    STANDARD: "a best rate that moves with the size",
}


class Ladder:
    name = "ladder"
    about = "rungs of size and horizon, one posterior, next trial by the regret it saves at the target (default)"
    weighs_prices = True

    def propose(self, search: Search) -> Trial | None:
        rungs = [rung for rung in smaller_rungs(search.problem) if search.affordable(rung)]
        if not rungs:
            return None
        begun = self._begun(search)
        if begun in rungs:
            expected = fit_jointly(search.problem, search.history).expected(begun)
            if (trial := self._next_rate(search, begun, expected)) is not None:
                return trial
        while (plan := best_plan(search, rungs)) is not None:
            if (trial := self._next_rate(search, plan.rung, plan.expected)) is not None:
                return trial
            rungs.remove(plan.rung)  # every rate that it could have was tried
        if not search.history and not any(search.buys(rung) >= POINTS for rung in rungs):
            # No optimum can be bought, but whether the expected rate trains at all can.
            nearest = max(rungs, key=lambda rung: rung.usd)
            return Trial(nearest.name, search.problem.place(nearest, search.problem.expected_rate(nearest)))
        return None

    def _begun(self, search: Search) -> Rung | None:
        """Return the newest rung while it has too few rates for an optimum, or its best is at the edge of them."""
        if not search.history:
            return None
        rung = search.problem.rung(search.history[-1].trial.rung)
        finite = sum(one.finite for one in search.of_rung(rung.name))
        return rung if finite < POINTS or bracket_problem(search, rung) is not None else None

    def _next_rate(self, search: Search, rung: Rung, expected: float) -> Trial | None:
        """Return the rate of a rung that says the most: outwards until its best is bracketed, then the best itself."""
        seen = search.of_rung(rung.name)
        problem = search.problem
        edge = bracket_problem(search, rung) if seen else None
        rates = []
        if edge is not None:
            extreme = (min if edge == "low" else max)(one.trial.rate for one in seen)
            stride = FACTOR if len(seen) <= POINTS else FACTOR**2  # the optimum is far away: take larger steps
            rates += outwards(extreme, 1 / stride if edge == "low" else stride)
        rates += [expected * FACTOR ** (step / 2) for step in (0, -1, 1, -2, 2)]
        if 0 < sum(one.finite for one in seen) < POINTS:
            # All of these may be the same value of a table, or beyond its ends: the rung still lacks a third.
            rates += outwards(max(one.trial.rate for one in seen), FACTOR)
            rates += outwards(min(one.trial.rate for one in seen), 1 / FACTOR)
        trials = [Trial(rung.name, problem.place(rung, rate)) for rate in rates]
        return next((one for one in trials if not search.tried(one)), None)

    def answer(self, search: Search) -> Answer:
        if not any(one.finite or one.diverged for one in search.history):
            return fallback(search, "no trial was bought; this is the rate expected without trials")
        fit = fit_jointly(search.problem, search.history)
        rate = fit.best_rate()
        low, high = fit.interval()
        place = math.log(rate)
        return Answer(
            rate=rate,
            low=low,
            high=high,
            regret_nats=fit.regret(place),
            divergence=fit.divergence(place),
            why=f"{plural(len(search.history), 'trial')} on {plural(len(fit.curves), 'rung')}{favoured(fit)}{counted(fit)}",
            warnings=doubts(search, fit, rate),
        )


def outwards(rate: float, stride: float) -> list[float]:
    """Return rates further and further away: the nearer ones may be the same value of a coarse table."""
    return [rate * stride**steps for steps in range(1, FURTHEST + 1)]


def favoured(fit: JointFit) -> str:
    """Return which of the shapes the rungs agree with, if there is one that stands out."""
    name, weight = max(fit.shape_weights.items(), key=lambda one: one[1])
    return f", which favour {SHAPES[name]} ({weight:.0%})" if weight > FAVOURED and name in SHAPES else ""


def counted(fit: JointFit) -> str:
    """Return how much earlier sweeps count beside the beliefs without them, if there are any."""
    if fit.earlier_weight is None:
        return ""
    return f"; earlier sweeps of the store ({fit.problem.priors.earlier_names()}) count {fit.earlier_weight:.0%}"


def doubts(search: Search, fit: JointFit, rate: float) -> tuple[str, ...]:
    """Return what a reader must know before trusting the answer."""
    if not any(one.finite for one in search.history):
        return ()
    warnings = list(outside(search, rate))
    names = dict.fromkeys(one.trial.rung for one in search.history)
    for rung in map(search.problem.rung, names):
        edge = bracket_problem(search, rung)
        if edge is not None and search.best(rung.name) is not None:
            word = "lowest" if edge == "low" else "highest"
            warnings.append(f"{rung.name}: its best rate is the {word} that was tried, so its optimum may lie beyond")
    if fit.shape_weights.get(STANDARD, 0.0) > DISAGREES:
        warnings.append("the trials contradict the parametrization: the best rate moves with the model's size")
    low, high = fit.interval()
    if high > VAGUE * low:
        warnings.append(f"the trials leave the optimum open by a factor of {high / low:.0f}")
    return tuple(warnings)


STRATEGY = Ladder()
