"""Which trial to buy next: the one that saves most expected regret per dollar.

The curvature of the fit's sum of squares (Laplace) gives the variance of the target's optimum. A further trial adds
one row to it, whatever its loss turns out to be, so a candidate costs one rank-one update of a small matrix.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .joint import FAR, SHARED, Array, TrialData, u_shape, u_slope
from .problem import Rung, Search, Trial

OFFSETS = np.log(2.0) * np.array([-1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5])  # around a rung's expected optimum
BUNDLE = 3  # trials looked ahead: one alone says nothing about the optimum of a new rung


@dataclass(frozen=True)
class Candidate:
    """The first trial of a bundle on one rung, and what the bundle is worth."""

    trial: Trial
    saved_nats: float  # of expected regret at the target
    usd: float  # of the whole bundle

    @property
    def saved_per_usd(self) -> float:
        return self.saved_nats / self.usd


@dataclass
class Information:
    """The fit at its optimum, with the covariance of its parameters."""

    data: TrialData
    theta: Array
    covariance: Array
    contrast: Array  # of the parameters that make up the target's optimum
    own: float  # variance of the target's optimum that trials of other rungs cannot remove

    @classmethod
    def of(cls, search: Search, rungs: Sequence[Rung]) -> Information:
        problem = search.problem
        data = TrialData.of(problem, search.history, rungs).with_noise_of_residuals()
        theta = data.minimise(1, np.random.default_rng(problem.seed))
        _, jacobian = data.residuals(theta, data.y)
        _, widths = data.prior(len(data.rungs))
        covariance = np.linalg.inv(jacobian[0].T @ jacobian[0] + np.diag(1 / widths**2))
        contrast = np.zeros(len(widths))
        contrast[0] = 1
        names = [rung.name for rung in data.rungs]
        own = problem.priors.nugget**2
        if problem.target.name in names:
            contrast[SHARED + names.index(problem.target.name)] = 1
            own = 0.0
        return cls(data, theta[0], covariance, contrast, own)

    @property
    def variance(self) -> float:
        return float(self.contrast @ self.covariance @ self.contrast) + self.own

    @property
    def curvature(self) -> float:
        return math.exp(self.theta[4])

    @property
    def expected_regret(self) -> float:
        return self.curvature * self.variance

    def optimum(self, number: int) -> float:
        return float(self.data.optima(self.theta[None])[0, number])

    def row(self, number: int, log_rate: float) -> Array:
        """The derivative of a trial's expected loss over its deviation."""
        count = len(self.data.rungs)
        a = math.exp(self.theta[4] + self.theta[SHARED + 2 * count + number])
        distance = np.clip(np.array(log_rate - self.optimum(number)), -4.0, 4.0)
        above = a * u_shape(distance)
        sigma = math.hypot(self.data.problem.noise, FAR * float(above))
        row = np.zeros(len(self.theta))
        row[:4] = -a * u_slope(distance) * self.data.places([self.data.rungs[number]])[0]
        row[4] = row[SHARED + 2 * count + number] = above
        row[SHARED + number] = -a * u_slope(distance)
        row[SHARED + count + number] = 1.0
        return row / sigma


def best_candidate(search: Search, information: Information, rungs: Sequence[Rung]) -> Candidate | None:
    """The first trial of the bundle with the most expected regret saved per dollar; None if nothing is affordable."""
    names = [rung.name for rung in information.data.rungs]
    found = [_best_bundle(search, information, rung, names.index(rung.name)) for rung in rungs]
    return max((one for one in found if one is not None), key=lambda one: one.saved_per_usd, default=None)


def _best_bundle(search: Search, information: Information, rung: Rung, number: int) -> Candidate | None:
    """Adds one rate after the other, each the most informative given those before."""
    problem = search.problem
    centre = information.optimum(number)
    rates = {problem.place(rung, math.exp(centre + offset)) for offset in OFFSETS}
    rates = {rate for rate in rates if not search.tried(Trial(rung.name, rate))}
    covariance, before = information.covariance, information.variance
    best: Candidate | None = None
    first: Trial | None = None
    for size in range(1, min(BUNDLE, search.affordable(rung), len(rates)) + 1):
        gains = {}
        for rate in sorted(rates):
            row = information.row(number, math.log(rate))
            spread = covariance @ row
            gains[rate] = float((information.contrast @ spread) ** 2 / (1 + row @ spread))
        # Nothing is gained by the first rate of a new rung: then start near the optimum.
        rate = max(gains, key=lambda one: (round(gains[one], 9), -abs(math.log(one) - centre)))
        row = information.row(number, math.log(rate))
        spread = covariance @ row
        covariance = covariance - np.outer(spread, spread) / (1 + row @ spread)
        rates.remove(rate)
        first = first or Trial(rung.name, rate)
        after = float(information.contrast @ covariance @ information.contrast) + information.own
        one = Candidate(first, information.curvature * (before - after), size * rung.usd)
        if best is None or one.saved_per_usd > best.saved_per_usd:
            best = one
    return best
