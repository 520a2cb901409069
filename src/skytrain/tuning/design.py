"""The choice of the next rung: where money leaves the least variance of the target's optimum when it is spent.

Regret at the target is its curvature times that variance, so this is the value of information in nats. A rung with n
rates locates its own optimum to about `LOCATED` / (n - 1), and what that says about the target follows from how the
two are correlated under everything believed so far: a rung far away is worth little, however many trials it buys.
Judging only by variance removed per dollar would buy the cheapest trials first and then lack the money for one near
the target; so plans that start with each rung are compared by where they end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .curve import Array
from .joint import JointFit, fit_jointly
from .problem import SPARE, Rung, Search
from .strategies.base import FACTOR

LOCATED = 0.6  # ln: how well two rates locate an optimum; n rates do so n - 1 times better (families.log)
POINTS = 3  # rates that a rung gets once it was begun
MOST = 7  # rates on a rung beyond which more say nothing new
LONGEST = 6  # purchases that a plan looks ahead
WORTHWHILE = 0.05  # share of the expected regret that a plan must save
DULL = 0.03  # share of the variance: a purchase that removes less ends a plan
UNSEEN = 0.1  # share of the noise between seeds: regret below it cannot be told from luck
AS_GOOD = 0.02  # share of the variance by which a more expensive plan must be better


@dataclass(frozen=True)
class RungPlan:
    """The rung to buy trials on next, and what that and the plan that begins with it would achieve."""

    rung: Rung
    expected: float  # the rate at which the rung's optimum is expected
    first: float  # the variance of the target's optimum that the first purchase removes
    saved: float  # and the whole plan
    usd: float


@dataclass(frozen=True)
class Outlook:
    """What is known of all optima, and what the remaining money buys."""

    rungs: Sequence[Rung]
    numbers: Array  # of finite rates on each rung
    covariance: Array  # of the rungs' optima and, last, the target's
    reserve_usd: Array
    usd: Array
    left_usd: float

    @classmethod
    def of(cls, search: Search, fit: JointFit, rungs: Sequence[Rung]) -> Outlook:
        places = [fit.rungs.index(one) for one in (*rungs, search.problem.target)]
        covariance = fit.mixture.moments()[1][np.ix_(places, places)]
        return cls(
            rungs=rungs,
            numbers=np.array([sum(one.finite for one in search.of_rung(rung.name)) for rung in rungs]),
            covariance=covariance,
            reserve_usd=np.array([search.reserve_usd(rung) for rung in rungs]),
            usd=np.array([search.probable_usd(rung) for rung in rungs]),
            left_usd=search.left_usd,
        )

    @property
    def variance(self) -> float:
        return float(self.covariance[-1, -1])

    def affordable(self) -> Array:
        """Return how many trials of each rung can be bought one after another; like `Search.buys`, for a plan's own
        money.
        """
        more = np.floor((self.left_usd - np.minimum(self.reserve_usd, SPARE * self.usd)) / self.usd + 1e-9)
        return np.where(self.left_usd < self.reserve_usd - 1e-9, 0, 1 + more)

    def purchases(self) -> list[tuple[int, int]]:
        """Return the rungs that can be bought, each with how many trials: to begin or complete it, or one more."""
        found = []
        for number, (before, most) in enumerate(zip(self.numbers, self.affordable(), strict=True)):
            if before == 0:
                wanted = range(POINTS, MOST + 1)
            else:
                wanted = range(max(1, POINTS - before), max(1, POINTS - before) + 1)
            found += [(number, trials) for trials in wanted if trials <= most and before + trials <= MOST]
        return found

    def saved(self, number: int, trials: int) -> float:
        """Return the variance of the target's optimum that these trials remove."""
        return float(self._gain(number, trials) * self.covariance[-1, number] ** 2)

    def _gain(self, number: int, trials: int) -> float:
        """Return what these trials say about their own rung's optimum: nothing until it lies between two of them."""
        variance = float(self.covariance[number, number])
        before = int(self.numbers[number])
        known = (before - 1) ** 2 if before > 1 else 0
        error = LOCATED**2 / ((before + trials - 1) ** 2 - known) if before + trials > 1 else math.inf
        reach = 0.5 * (trials - 1) * math.log(FACTOR) if before == 0 else math.inf
        return math.erf(reach / math.sqrt(2 * variance)) / (variance + error)

    def after(self, number: int, trials: int) -> Outlook:
        column = self.covariance[:, number]
        numbers = self.numbers.copy()
        numbers[number] += trials
        return Outlook(
            rungs=self.rungs,
            numbers=numbers,
            covariance=self.covariance - self._gain(number, trials) * np.outer(column, column),
            reserve_usd=self.reserve_usd,
            usd=self.usd,
            left_usd=self.left_usd - trials * float(self.usd[number]),
        )


def best_plan(search: Search, rungs: Sequence[Rung]) -> RungPlan | None:
    """Return the plan that leaves the least expected regret, the cheapest of equally good ones; None if there is
    nothing worth buying.
    """
    fit = fit_jointly(search.problem, search.history, rungs)
    now = Outlook.of(search, fit, rungs)
    plans = []
    for number, trials in now.purchases():
        first = now.saved(number, trials)
        outlook = now.after(number, trials)
        for _ in range(LONGEST):
            best = max(outlook.purchases(), key=lambda one: outlook.saved(*one), default=None)
            if best is None or outlook.saved(*best) < DULL * outlook.variance:
                break
            outlook = outlook.after(*best)
        plans.append(
            RungPlan(
                rung=rungs[number],
                expected=fit.expected(rungs[number]),
                first=first,
                saved=now.variance - outlook.variance,
                usd=now.left_usd - outlook.left_usd,
            )
        )
    if not plans:
        return None
    most = max(plan.saved for plan in plans)
    nats = float(fit.skews @ fit.curvatures) * most
    if most < WORTHWHILE * now.variance or nats < UNSEEN * search.problem.noise:
        return None
    good = [plan for plan in plans if plan.saved >= most - AS_GOOD * now.variance]
    least = min(plan.usd for plan in good)
    # Plans of the same trials in another order cost the same: what says the most comes first.
    return max((plan for plan in good if plan.usd <= least * (1 + 1e-6)), key=lambda plan: plan.first)
