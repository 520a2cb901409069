"""One fit of all trials of a search: a U over the logarithm of the rate for each rung, with optima that follow a law.

    loss = floor[rung] + a[rung] U(ln rate - m[rung])
    m[rung] = law(rung) + c + gN ln N/N* + gD ln D/D* + gB ln B/B* + nugget[rung]

where * is the target. Every parameter but the floors has a prior, so two or three rates on a rung say something.
Uncertainty comes from refits: each draws new losses around the observed ones and new prior means, and minimises the
same sum of squares. All refits run at once as batched Gauss-Newton steps with damping.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .problem import DIVERGED_NATS, Observation, Problem, Rung

Array = NDArray[np.float64]

SKEW = 0.7  # of the U: a rate far too high costs more than one as far too low (median of 150 published curves)
FAR = 0.2  # relative error of the U's shape away from the minimum, as a share of the loss above it
WALL_GAP, WALL_SOFTNESS = 1.2, 0.35  # a diverged rate is at least about so far above the optimum
HUBER = 2.5  # residuals beyond so many deviations count linearly
STEPS = 40
SHARED = 5  # parameters that all rungs share: c, gN, gD, gB and the curvature


def u_shape(distance: Array) -> Array:
    """d² near zero; steeper above than below."""
    return 2 * (np.exp(SKEW * distance) - SKEW * distance - 1) / SKEW**2


def u_slope(distance: Array) -> Array:
    return 2 * (np.exp(SKEW * distance) - 1) / SKEW


@dataclass(frozen=True)
class RungCurve:
    """The fitted U of one rung."""

    rung: Rung
    optimum: float  # a rate
    low: float  # 80% interval of the optimum
    high: float
    floor: float  # loss at the optimum
    curvature: float

    def loss(self, rate: Array) -> Array:
        return self.floor + self.curvature * u_shape(np.log(rate / self.optimum))


@dataclass(frozen=True)
class JointFit:
    """Samples of the target's optimum and curvature, and the curves of the rungs that have trials."""

    problem: Problem
    optima: Array  # ln of the target's optimum, one for each refit
    curvatures: Array
    exponents: Array  # refits x (size, horizon, batch), added to the law's
    curves: tuple[RungCurve, ...]
    wall_gaps: Array  # ln of diverging over optimal rate

    def regret(self, log_rate: float) -> float:
        """Expected loss above the optimum's, without divergence."""
        return float(np.mean(self.curvatures * u_shape(np.minimum(log_rate - self.optima, 6.0))))

    def divergence(self, log_rate: float) -> float:
        return float(np.mean(log_rate > self.optima + self.wall_gaps))

    def best_rate(self, divergence_nats: float = DIVERGED_NATS) -> float:
        """The rate with the least expected loss, where a diverged run counts as so many nats."""
        low, high = math.log(self.problem.lowest), math.log(self.problem.highest)
        grid = np.linspace(max(low, self.optima.min()), min(high, self.optima.max()) + 1e-9, 121)
        costs = [self.regret(one) + divergence_nats * self.divergence(one) for one in grid]
        return self.problem.clip(math.exp(grid[int(np.argmin(costs))]))

    def interval(self) -> tuple[float, float]:
        low, high = np.exp(np.quantile(self.optima, [0.1, 0.9]))
        return float(low), float(high)


def fit_jointly(problem: Problem, history: Sequence[Observation], refits: int = 200) -> JointFit:
    """Fits all finite trials; diverged ones bound their rung's optimum from above."""
    data = TrialData.of(problem, history).with_noise_of_residuals()
    theta = data.minimise(refits, np.random.default_rng(problem.seed))
    rng = np.random.default_rng(problem.seed + 1)
    priors, rungs = problem.priors, data.rungs
    optima = data.optima(theta)
    names = [rung.name for rung in rungs]
    at_target = priors.law(problem.target) + theta[:, 0]
    if problem.target.name in names:
        index = names.index(problem.target.name)
        target, curvature = optima[:, index], theta[:, 4] + data.curvature_of(theta)[:, index]
    else:
        target = at_target + priors.nugget * rng.standard_normal(refits)
        curvature = theta[:, 4] + priors.curvature_spread * rng.standard_normal(refits)
    curves = tuple(data.curve(theta, index) for index in range(len(rungs)))
    gaps = _wall_gaps(data, optima, rng)
    return JointFit(problem, target, np.exp(curvature), theta[:, 1:4], curves, gaps)


@dataclass(frozen=True)
class TrialData:
    """The trials as arrays. `theta` is refits x parameters: shared ones, then nuggets, floors, curvatures by rung."""

    problem: Problem
    rungs: tuple[Rung, ...]
    index: NDArray[np.int64]  # of each finite trial's rung
    x: Array
    y: Array
    sigma: Array
    wall_index: NDArray[np.int64]
    wall_x: Array

    @classmethod
    def of(cls, problem: Problem, history: Sequence[Observation], also: Sequence[Rung] = ()) -> TrialData:
        """The trials of `history`, with parameters for the rungs `also` that have none yet."""
        names = list(dict.fromkeys([*(one.trial.rung for one in history), *(rung.name for rung in also)]))
        rungs = tuple(problem.rung(name) for name in names)
        lowest = {
            name: min((one.loss for one in history if one.trial.rung == name and one.finite), default=math.inf)
            for name in names
        }
        finite = [one for one in history if one.loss < lowest[one.trial.rung] + DIVERGED_NATS]
        walls = [one for one in history if one.loss >= lowest[one.trial.rung] + DIVERGED_NATS or one.diverged]
        y = np.array([one.loss for one in finite])
        above = y - np.array([lowest[one.trial.rung] for one in finite])
        return cls(
            problem,
            rungs,
            np.array([names.index(one.trial.rung) for one in finite], dtype=np.int64),
            np.log([one.trial.rate for one in finite]) if finite else np.empty(0),
            y,
            np.hypot(problem.noise, FAR * above),
            np.array([names.index(one.trial.rung) for one in walls], dtype=np.int64),
            np.log([one.trial.rate for one in walls]) if walls else np.empty(0),
        )

    def with_noise_of_residuals(self) -> TrialData:
        """With larger deviations where the best fit misses the losses by more than they say."""
        spare = len(self.x) - 2 * len(self.rungs)
        if spare < 2:
            return self
        residual, _ = self.residuals(self.minimise(1, np.random.default_rng(0)), self.y)
        misses = np.minimum(np.abs(residual[0, : len(self.x)]), 2 * HUBER)
        return replace(self, sigma=self.sigma * max(1.0, math.sqrt(float((misses**2).sum()) / spare)))

    def places(self, rungs: Sequence[Rung]) -> Array:
        """Logarithmic distances of rungs from the target: 1, size, horizon, batch."""
        target = self.problem.target
        return np.array(
            [
                [
                    1.0,
                    math.log(rung.parameters / target.parameters),
                    math.log(rung.tokens / target.tokens),
                    math.log(rung.batch_tokens / target.batch_tokens),
                ]
                for rung in rungs
            ]
        ).reshape(len(rungs), 4)

    def prior(self, count: int) -> tuple[Array, Array]:
        """Means and standard deviations of all parameters, for `count` rungs. A floor has none to speak of."""
        p = self.problem.priors
        ones = np.ones(count)
        means = np.concatenate([[0, 0, 0, 0, math.log(p.curvature)], 0 * ones, 3 * ones, 0 * ones])
        shared = [p.offset, p.size, p.horizon, p.batch, p.curvature_offset]
        return means, np.concatenate([shared, p.nugget * ones, 10 * ones, p.curvature_spread * ones])

    def laws(self) -> Array:
        return np.array([self.problem.priors.law(rung) for rung in self.rungs])

    def optima(self, theta: Array) -> Array:
        count = len(self.rungs)
        return self.laws() + theta[:, :4] @ self.places(self.rungs).T + theta[:, SHARED : SHARED + count]

    def curvature_of(self, theta: Array) -> Array:
        return theta[:, SHARED + 2 * len(self.rungs) :]

    def residuals(self, theta: Array, y: Array) -> tuple[Array, Array]:
        """Weighted residuals of finite and diverged trials, and their derivatives."""
        refits, count, n = len(theta), len(self.rungs), len(self.x)
        optima, places = self.optima(theta), self.places(self.rungs)
        distance = np.clip(self.x - optima[:, self.index], -6.0, 6.0)
        a = np.exp(np.clip(theta[:, 4:5] + self.curvature_of(theta)[:, self.index], -12, 3))
        floor = theta[:, SHARED + count : SHARED + 2 * count][:, self.index]
        model = floor + a * u_shape(distance)
        residual = np.empty((refits, n + len(self.wall_x)))
        jacobian = np.zeros((refits, n + len(self.wall_x), theta.shape[1]))
        residual[:, :n] = (model - y) / self.sigma
        rows = np.arange(n)
        slope = -a * u_slope(distance) / self.sigma
        jacobian[:, :n, :4] = slope[:, :, None] * places[self.index]
        jacobian[:, :n, 4] = a * u_shape(distance) / self.sigma
        jacobian[:, rows, SHARED + self.index] = slope
        jacobian[:, rows, SHARED + count + self.index] = 1 / self.sigma
        jacobian[:, rows, SHARED + 2 * count + self.index] = jacobian[:, :n, 4]
        over = optima[:, self.wall_index] + WALL_GAP - self.wall_x
        active = (over > 0) / WALL_SOFTNESS
        residual[:, n:] = np.maximum(over, 0) / WALL_SOFTNESS
        jacobian[:, n:, :4] = active[:, :, None] * places[self.wall_index]
        jacobian[:, n + np.arange(len(self.wall_x)), SHARED + self.wall_index] = active
        return residual, jacobian

    def minimise(self, refits: int, rng: np.random.Generator) -> Array:
        """The parameters of every refit: refit 0 is of the observed losses, the others of redrawn ones."""
        means, widths = self.prior(len(self.rungs))
        count = len(self.rungs)
        centre = means + widths * rng.standard_normal((refits, len(means))) * (np.arange(refits) > 0)[:, None]
        y = self.y + self.sigma * rng.standard_normal((refits, len(self.y))) * (np.arange(refits) > 0)[:, None]
        floors = [self.y[self.index == number].min(initial=np.inf) for number in range(count)]
        floors = [3.0 if not np.isfinite(one) else one for one in floors]
        centre[:, SHARED + count : SHARED + 2 * count] = floors
        theta, damping = centre.copy(), np.full(refits, 1e-2)
        cost = self._cost(theta, y, centre, widths)
        for _ in range(STEPS):
            residual, jacobian = self.residuals(theta, y)
            weight = np.minimum(1.0, HUBER / np.maximum(np.abs(residual), 1e-12))
            pull = (theta - centre) / widths**2
            weighted = jacobian.transpose(0, 2, 1) * weight[:, None, :]
            normal = weighted @ jacobian
            diagonal = np.einsum("rii->ri", normal)  # a view
            diagonal += 1 / widths**2
            gradient = (weighted @ residual[:, :, None])[:, :, 0] + pull
            diagonal *= 1 + damping[:, None]
            step = np.linalg.solve(normal, gradient[:, :, None])[:, :, 0]
            trial = theta - step
            new = self._cost(trial, y, centre, widths)
            better = new < cost
            theta = np.where(better[:, None], trial, theta)
            gain = np.where(better, cost - new, np.inf)
            cost = np.where(better, new, cost)
            damping = np.clip(np.where(better, damping / 5, damping * 4), 1e-9, 1e9)
            if np.all((gain < 1e-7) | (damping > 1e8)):
                break
        return theta

    def _cost(self, theta: Array, y: Array, centre: Array, widths: Array) -> Array:
        residual, _ = self.residuals(theta, y)
        size = np.abs(residual)
        losses = np.where(size < HUBER, 0.5 * size**2, HUBER * (size - 0.5 * HUBER))
        return losses.sum(1) + 0.5 * (((theta - centre) / widths) ** 2).sum(1)

    def curve(self, theta: Array, number: int) -> RungCurve:
        optima = self.optima(theta)[:, number]
        low, high = np.exp(np.quantile(optima, [0.1, 0.9]))
        floor = float(theta[0, SHARED + len(self.rungs) + number])
        curvature = float(np.exp(theta[0, 4] + self.curvature_of(theta)[0, number]))
        return RungCurve(self.rungs[number], math.exp(optima[0]), float(low), float(high), floor, curvature)


def _wall_gaps(data: TrialData, optima: Array, rng: np.random.Generator) -> Array:
    """How far above the optimum rates diverge: a prior, weighted by the rates that did and did not."""
    refits = len(optima)
    gaps = rng.normal(2.0, 0.5, (50, refits))
    weight = np.zeros_like(gaps)
    softness = 0.2
    for x, index in zip(data.x, data.index, strict=True):
        weight -= np.logaddexp(0, ((x - optima[:, index]) - gaps) / softness)
    for x, index in zip(data.wall_x, data.wall_index, strict=True):
        weight -= np.logaddexp(0, (gaps - (x - optima[:, index])) / softness)
    chance = np.exp(weight - weight.max(0))
    chosen = (chance.cumsum(0) / chance.sum(0) > rng.random(refits)).argmax(0)
    return gaps[chosen, np.arange(refits)]
