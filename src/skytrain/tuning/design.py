"""The choice of the next trial: the first of the plan that leaves the least expected regret when the money is spent.

The curvature of the fit's sum of squares (Laplace) gives the variance of the target's optimum. A further trial adds
one row to it, whatever its loss turns out to be, so a plan of many trials costs a few rank-one updates of a small
matrix. Judging only by regret saved per dollar would buy the cheapest trials first and then lack the money for one near
the target; so plans that start with each rung are compared by where they end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .curve import Array, deviation, jump_deviation, u_shape, u_slope
from .joint import LINE, SHARED, TrialData
from .problem import SPARE, Rung, Search, Trial

OFFSETS = np.log(2.0) * np.array([-1.0, -0.5, 0.0, 0.5, 1.0])  # from a rung's expected optimum
BUNDLE = 3  # look-ahead in trials on a rung: a single trial says nothing about the optimum of a new rung
FURTHEST = 8  # limit on bundles in a plan: later ones depend on what these show
DULL = 0.01  # share of the variance: a bundle that removes less ends a plan
AS_GOOD = 0.02  # share of the variance by which a more expensive plan must be better


@dataclass
class Information:
    """The fit at its optimum, with the covariance of its parameters."""

    data: TrialData
    theta: Array
    covariance: Array
    contrast: Array  # weights of the parameters that make up the target's optimum

    @classmethod
    def of(cls, search: Search, rungs: Sequence[Rung]) -> Information:
        problem = search.problem
        data = TrialData.of(problem, search.history, rungs).with_measured_noise()
        theta = data.minimise(1, np.random.default_rng(problem.seed))
        _, jacobian = data.residuals(theta, data.y)
        _, widths = data.prior(len(data.rungs))
        covariance = np.linalg.inv(jacobian[0].T @ jacobian[0] + np.diag(1 / widths**2))
        contrast = np.zeros(len(widths))
        contrast[0] = 1
        contrast[SHARED : SHARED + len(data.rungs)] = data.mixing[data.target_number]
        return cls(data, theta[0], covariance, contrast)

    @property
    def variance(self) -> float:
        return float(self.contrast @ self.covariance @ self.contrast)

    @property
    def curvature(self) -> float:
        return float(self.data.curvatures(self.theta[None])[0, self.data.target_number])

    @property
    def expected_regret(self) -> float:
        return self.curvature * self.variance

    def optimum(self, number: int) -> float:
        return float(self.data.optima(self.theta[None])[0, number])

    def row(self, number: int, log_rate: float) -> Array:
        """Return the derivative of a trial's expected loss over its deviation."""
        data = self.data
        count = len(self.data.rungs)
        a = data.curvatures(self.theta[None])[0, number]
        distance = np.clip(np.array(log_rate - self.optimum(number)), -4.0, 4.0)
        above = a * u_shape(distance)
        slope = -a * u_slope(distance)
        row = np.zeros(len(self.theta))
        row[:LINE] = slope * data.places([data.rungs[number]])[0]
        row[LINE] = row[SHARED + 2 * count + number] = above
        row[SHARED : SHARED + count] = slope * data.mixing[number]
        row[SHARED + count + number] = 1.0
        sigma = deviation(data.problem.noise, a, above)
        # Half of the losses at high rates are above the U, where they have little weight.
        return row / (math.hypot(sigma, 0.5 * float(jump_deviation(a, above))) if distance > 0 else sigma)


@dataclass(frozen=True)
class Menu:
    """Every trial that could be bought: the same number of places for each rung, some of them empty."""

    trials: tuple[Trial | None, ...]
    rows: Array  # trials x parameters
    reserve_usd: Array  # by rung: the most that its next trial may cost
    usd: Array  # by rung: the probable cost of its next trial

    @classmethod
    def of(cls, search: Search, information: Information, rungs: Sequence[Rung]) -> Menu:
        names = [rung.name for rung in information.data.rungs]
        trials: list[Trial | None] = [None] * (len(rungs) * len(OFFSETS))
        rows = np.zeros((len(trials), len(information.theta)))
        for number, rung in enumerate(rungs):
            at = names.index(rung.name)
            centre = information.optimum(at)
            placed = {search.problem.place(rung, math.exp(centre + offset)) for offset in OFFSETS}
            rates = [rate for _, rate in sorted((abs(math.log(rate) - centre), rate) for rate in placed)]
            fresh = [Trial(rung.name, rate) for rate in rates if not search.tried(Trial(rung.name, rate))]
            for place, trial in enumerate(fresh, number * len(OFFSETS)):
                trials[place] = trial
                rows[place] = information.row(at, math.log(trial.rate))
        reserve = np.array([search.reserve_usd(rung) for rung in rungs])
        return cls(tuple(trials), rows, reserve, np.array([search.probable_usd(rung) for rung in rungs]))

    def affordable(self, left_usd: float) -> Array:
        """Return how many trials of each rung can be bought one after another; like `Search.buys`, for a plan's own
        money.
        """
        more = np.floor((left_usd - np.minimum(self.reserve_usd, SPARE * self.usd)) / self.usd + 1e-9)
        return np.where(left_usd < self.reserve_usd - 1e-9, 0, 1 + more)


@dataclass(frozen=True)
class TrialPlan:
    """Trials in order, and how much of the variance of the target's optimum they remove."""

    first: Trial
    saved: float
    usd: float


@dataclass(frozen=True)
class RateBundle:
    """A few trials on one rung and the variance that they remove."""

    places: tuple[int, ...]
    saved: float


class Outlook:
    """The variance that further trials leave, and the trials that can still be bought."""

    def __init__(self, menu: Menu, information: Information, left_usd: float) -> None:
        self.menu = menu
        self.left_usd = left_usd
        spread = menu.rows @ information.covariance
        self.overlap = spread @ menu.rows.T
        self.gain = spread @ information.contrast
        self.open = np.array([trial is not None for trial in menu.trials])
        self.variance = information.variance

    def copy(self) -> Outlook:
        other = Outlook.__new__(Outlook)
        other.__dict__.update(self.__dict__)
        other.open = self.open.copy()
        return other

    def bundles(self) -> list[list[RateBundle]]:
        """Return each rung's bundles of 1, 2 and 3 rates, where each rate is the most informative given those before."""
        rungs = len(self.menu.usd)
        width = len(OFFSETS)
        every = np.arange(rungs)
        gain = self.gain.reshape(rungs, width)
        overlap = self.overlap.reshape(rungs, width, rungs, width)[every, :, every, :]
        shut = ~self.open.reshape(rungs, width)
        most = self.menu.affordable(self.left_usd)
        by_rung: list[list[RateBundle]] = [[] for _ in range(rungs)]
        for size in range(1, BUNDLE + 1):
            scale = 1 + np.einsum("rii->ri", overlap)
            worth = np.where(shut, -1.0, np.round(gain**2 / scale, 9))
            # The first rate of a new rung gains nothing by itself: take the one nearest to the optimum.
            pick = worth.argmax(1)
            column = overlap[every, :, pick]
            by = scale[every, pick][:, None]
            gain = gain - column * gain[every, pick][:, None] / by
            overlap = overlap - column[:, :, None] * column[:, None, :] / by[:, :, None]
            for rung in np.flatnonzero((worth[every, pick] >= 0) & (most >= size)):
                before = by_rung[rung][-1] if by_rung[rung] else RateBundle((), 0.0)
                place = int(rung * width + pick[rung])
                by_rung[rung].append(RateBundle((*before.places, place), before.saved + float(worth[rung, pick[rung]])))
            shut = shut.copy()
            shut[every, pick] = True
        return by_rung

    def buy(self, bundle: RateBundle) -> None:
        for pick in bundle.places:
            scale = 1 + self.overlap[pick, pick]
            self.variance -= float(self.gain[pick] ** 2 / scale)
            self.gain = self.gain - self.overlap[:, pick] * self.gain[pick] / scale
            self.overlap = self.overlap - np.outer(self.overlap[:, pick], self.overlap[pick]) / scale
            self.open[pick] = False
            self.left_usd -= self.usd(pick)

    def usd(self, place: int) -> float:
        return float(self.menu.usd[place // len(OFFSETS)])

    def spend(self) -> list[int]:
        """Buy bundles by variance removed per dollar until nothing is affordable or worth it."""
        bought: list[int] = []
        for _ in range(FURTHEST):
            every = [bundle for rung in self.bundles() for bundle in rung]
            best = max(every, key=lambda one: one.saved / (len(one.places) * self.usd(one.places[0])), default=None)
            if best is None or best.saved < DULL * self.variance:
                break
            self.buy(best)
            bought += best.places
        return bought


def best_plan(search: Search, information: Information, rungs: Sequence[Rung]) -> TrialPlan | None:
    """Return the plan that leaves the least expected regret, the cheapest of equally good ones; None if there is
    nothing to buy.
    """
    menu = Menu.of(search, information, rungs)
    now = Outlook(menu, information, search.left_usd)
    plans = []
    for start in (None, *(rung[-1] for rung in now.bundles() if rung)):
        outlook = now.copy()
        bought: list[int] = []
        if start is not None:
            outlook.buy(start)
            bought = list(start.places)
        bought += outlook.spend()
        first = menu.trials[bought[0]] if bought else None
        if first is not None:
            plans.append(TrialPlan(first, now.variance - outlook.variance, search.left_usd - outlook.left_usd))
    if not plans:
        return None
    most = max(plan.saved for plan in plans)
    return min((plan for plan in plans if plan.saved >= most - AS_GOOD * now.variance), key=lambda plan: plan.usd)
