"""One fit of all trials of a search: a U over the logarithm of the rate for each rung, with optima that follow a law.

    loss = floor[rung] + a[rung] U(ln rate - m[rung])
    m[rung] = law(rung) + c + gN ln N/N* + gD ln D/D* + gB ln B/B* + h (ln D/D*)² + own[rung]

where * is the target. `own` is a Gaussian process over size, horizon and batch: neighbouring rungs miss the law alike,
so trials far from the target cannot average its miss away, however many they are.
Every parameter but the floors has a prior, so two or three rates on a rung say something.
Uncertainty comes from refits: each draws new losses around the observed ones and new prior means, and minimises the
same sum of squares. All refits run at once as batched Gauss-Newton steps with damping.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .curve import Array, deviation, jump_deviation, u_shape, u_slope
from .problem import DIVERGED_NATS, Observation, Problem, Rung

REACH = 2.0  # ln of the distance at which settings miss a law almost independently
# ln of the least distance of a diverged rate from the optimum
WALL_GAP = 0.8
WALL_SOFTNESS = 0.4
SURPRISE = 1.5  # deviations from the law beyond which a belief pulls no harder
HUBER = 2.5  # deviations beyond which residuals count linearly
NOISE_WEIGHT = 1.0  # degrees of freedom of the expected noise, added to those of the residuals
MOST_NOISE = 8.0  # upper limit on a refit's noise, as a multiple of the estimate
LEAST_NOISE = 0.5  # lower limit, as a share of the expected noise: a few losses on a smooth curve may be luck
STEPS = 25
WIDER = 1.04  # correction of the refits' spread: they are least squares, not draws of the posterior
LINE = 5  # parameters of the optima that all rungs share: c, gN, gD, gB, h
SHARED = 6  # and the curvature


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
        """Return the expected loss above the optimum's, without divergence."""
        return float(np.mean(self.curvatures * u_shape(np.minimum(log_rate - self.optima, 6.0))))

    def divergence(self, log_rate: float) -> float:
        return float(np.mean(log_rate > self.optima + self.wall_gaps))

    def best_rate(self, divergence_nats: float = DIVERGED_NATS) -> float:
        """Return the rate with the least expected loss.

        A diverged run counts as this many nats, and no other counts as more.
        """
        low = math.log(self.problem.lowest)
        high = math.log(self.problem.highest)
        grid = np.linspace(max(low, self.optima.min()), min(high, self.optima.max()) + 1e-9, 121)
        distance = grid[:, None] - self.optima
        losses = np.minimum(self.curvatures * u_shape(np.minimum(distance, 6.0)), divergence_nats)
        costs = np.where(distance > self.wall_gaps, divergence_nats, losses).mean(1)
        return self.problem.clip(math.exp(grid[int(np.argmin(costs))]))

    def interval(self) -> tuple[float, float]:
        low, high = np.exp(np.quantile(self.optima, [0.1, 0.9]))
        return float(low), float(high)


def fit_jointly(problem: Problem, history: Sequence[Observation], refits: int = 200) -> JointFit:
    """Fit all finite trials; diverged ones bound their rung's optimum from above."""
    data = TrialData.of(problem, history).with_measured_noise()
    theta = data.minimise(refits, np.random.default_rng(problem.seed))
    optima = data.optima(theta)
    tried = {one.trial.rung for one in history}
    curves = tuple(data.curve(theta, number) for number, rung in enumerate(data.rungs) if rung.name in tried)
    gaps = _wall_gaps(data, optima, np.random.default_rng(problem.seed + 1))
    number = data.target_number
    middle = np.median(optima[:, number])
    spread = middle + WIDER * (optima[:, number] - middle)
    return JointFit(
        problem=problem,
        optima=spread,
        curvatures=data.curvatures(theta)[:, number],
        exponents=theta[:, 1:4],
        curves=curves,
        wall_gaps=gaps,
    )


@dataclass(frozen=True)
class TrialData:
    """The trials as arrays. `theta` is refits x parameters: shared ones, then misses, floors, curvatures by rung.

    The target is always one of the rungs. Misses are whitened: independent normal numbers, which `mixing` correlates.
    """

    problem: Problem
    rungs: tuple[Rung, ...]
    index: NDArray[np.int64]  # number of each finite trial's rung
    x: Array
    y: Array
    above: Array  # the lowest loss of its rung
    high: NDArray[np.bool_]  # above the best rate of its rung
    sigma: Array
    wall_index: NDArray[np.int64]
    wall_x: Array
    mixing: Array
    freedom: float  # degrees of freedom of the deviations

    @classmethod
    def of(cls, problem: Problem, history: Sequence[Observation], also: Sequence[Rung] = ()) -> TrialData:
        """Return the trials of `history`, with parameters for the target and the rungs `also` that have none yet."""
        wanted = [*(one.trial.rung for one in history), *(rung.name for rung in also), problem.target.name]
        names = list(dict.fromkeys(wanted))
        rungs = tuple(problem.rung(name) for name in names)
        best = {
            name: min((one for one in history if one.trial.rung == name and one.finite), key=_loss, default=None)
            for name in names
        }
        lowest = {name: math.inf if one is None else one.loss for name, one in best.items()}
        walls = [one for one in history if _is_wall(one, best[one.trial.rung])]
        finite = [one for one in history if one.finite and one not in walls]
        y = np.array([one.loss for one in finite])
        above = y - np.array([lowest[one.trial.rung] for one in finite])
        bests = [best[one.trial.rung] for one in finite]
        data = cls(
            problem=problem,
            rungs=rungs,
            index=np.array([names.index(one.trial.rung) for one in finite], dtype=np.int64),
            x=np.log([one.trial.rate for one in finite]) if finite else np.empty(0),
            y=y,
            above=above,
            high=np.array(
                [top is not None and one.trial.rate > top.trial.rate for one, top in zip(finite, bests, strict=True)],
                dtype=bool,
            ),
            sigma=np.empty(0),
            wall_index=np.array([names.index(one.trial.rung) for one in walls], dtype=np.int64),
            wall_x=np.log([one.trial.rate for one in walls]) if walls else np.empty(0),
            mixing=_mixing(rungs, problem.priors.nugget),
            freedom=NOISE_WEIGHT,
        )
        return replace(data, sigma=data.deviations(np.full(len(rungs), problem.priors.curvature)))

    @property
    def target_number(self) -> int:
        return next(number for number, rung in enumerate(self.rungs) if rung.name == self.problem.target.name)

    def deviations(self, curvatures: Array) -> Array:
        """Return the deviation of each finite trial's loss from the model, in nats, for these curvatures of the rungs."""
        return deviation(self.problem.noise, curvatures[self.index], self.above)

    def with_measured_noise(self) -> TrialData:
        """Return the trials with deviations for the fitted curvatures, scaled by how far the best fit misses the
        losses.
        """
        if not len(self.x):
            return self
        theta = self.minimise(1, np.random.default_rng(0))
        data = replace(self, sigma=self.deviations(self.curvatures(theta)[0]))
        theta = data.minimise(1, np.random.default_rng(0), theta)
        residual, jacobian = data.residuals(theta, data.y)
        n = len(data.x)
        _, widths = data.prior(len(data.rungs))
        rows = jacobian[0, :n]
        used = np.linalg.solve(rows.T @ rows + np.diag(1 / widths**2), rows.T @ rows).trace()
        misses = np.minimum(np.abs(residual[0, :n]), 2 * HUBER)
        freedom = NOISE_WEIGHT + max(0.0, n - used)
        scale = math.sqrt((NOISE_WEIGHT + float((misses**2).sum())) / freedom)
        return replace(data, sigma=data.sigma * max(LEAST_NOISE, scale), freedom=freedom)

    def places(self, rungs: Sequence[Rung]) -> Array:
        """Return the logarithmic distances of rungs from the target: 1, size, horizon, batch, and the horizon's square."""
        target = self.problem.target
        return np.array(
            [
                [
                    1.0,
                    math.log(rung.parameters / target.parameters),
                    math.log(rung.tokens / target.tokens),
                    math.log(rung.batch_tokens / target.batch_tokens),
                    math.log(rung.tokens / target.tokens) ** 2,
                ]
                for rung in rungs
            ]
        ).reshape(len(rungs), LINE)

    def prior(self, count: int) -> tuple[Array, Array]:
        """Return means and standard deviations of all parameters, for `count` rungs.

        The prior of a floor is almost flat.
        """
        p = self.problem.priors
        ones = np.ones(count)
        means = np.concatenate([[0] * LINE, [math.log(p.curvature)], 0 * ones, 3 * ones, 0 * ones])
        shared = [p.offset, p.size, p.horizon, p.batch, p.bend, p.curvature_offset]
        return means, np.concatenate([shared, ones, 10 * ones, p.curvature_spread * ones])

    def laws(self) -> Array:
        return np.array([self.problem.priors.law(rung) for rung in self.rungs])

    def optima(self, theta: Array) -> Array:
        count = len(self.rungs)
        misses = theta[:, SHARED : SHARED + count] @ self.mixing.T
        return self.laws() + theta[:, :LINE] @ self.places(self.rungs).T + misses

    def curvatures(self, theta: Array) -> Array:
        """Return each rung's curvature."""
        return np.exp(np.clip(theta[:, LINE:SHARED] + theta[:, SHARED + 2 * len(self.rungs) :], -12, 3))

    def residuals(self, theta: Array, y: Array, sigma: Array | None = None) -> tuple[Array, Array]:
        """Return the weighted residuals of finite and diverged trials, and their derivatives."""
        sigma = self.sigma if sigma is None else sigma
        refits = len(theta)
        count = len(self.rungs)
        n = len(self.x)
        optima = self.optima(theta)
        places = self.places(self.rungs)
        distance = np.clip(self.x - optima[:, self.index], -6.0, 6.0)
        a = self.curvatures(theta)[:, self.index]
        floor = theta[:, SHARED + count : SHARED + 2 * count][:, self.index]
        model = floor + a * u_shape(distance)
        residual = np.empty((refits, n + len(self.wall_x)))
        jacobian = np.zeros((refits, n + len(self.wall_x), theta.shape[1]))
        unstable = self.high & (model < y)
        sigma = np.where(unstable, np.hypot(sigma, jump_deviation(a, self.above)), sigma)
        residual[:, :n] = (model - y) / sigma
        rows = np.arange(n)
        slope = -a * u_slope(distance) / sigma
        jacobian[:, :n, :LINE] = slope[:, :, None] * places[self.index]
        jacobian[:, :n, LINE] = a * u_shape(distance) / sigma
        jacobian[:, :n, SHARED : SHARED + count] = slope[:, :, None] * self.mixing[self.index]
        jacobian[:, rows, SHARED + count + self.index] = 1 / sigma
        jacobian[:, rows, SHARED + 2 * count + self.index] = jacobian[:, :n, LINE]
        over = optima[:, self.wall_index] + WALL_GAP - self.wall_x
        active = (over > 0) / WALL_SOFTNESS
        residual[:, n:] = np.maximum(over, 0) / WALL_SOFTNESS
        jacobian[:, n:, :LINE] = active[:, :, None] * places[self.wall_index]
        jacobian[:, n:, SHARED : SHARED + count] = active[:, :, None] * self.mixing[self.wall_index]
        return residual, jacobian

    def minimise(self, refits: int, rng: np.random.Generator, start: Array | None = None) -> Array:
        """Return the parameters of every refit: refit 0 is of the observed losses, the others of redrawn ones."""
        means, widths = self.prior(len(self.rungs))
        count = len(self.rungs)
        centre = means + widths * rng.standard_normal((refits, len(means))) * (np.arange(refits) > 0)[:, None]
        drawn = (np.arange(refits) > 0)[:, None]
        # The size of the noise is not known either: each refit draws one that the residuals allow.
        scale = np.where(drawn, np.sqrt(self.freedom / rng.chisquare(self.freedom, (refits, 1))), 1.0)
        sigma = self.sigma * np.minimum(scale, MOST_NOISE)
        y = self.y + sigma * rng.standard_normal((refits, len(self.y))) * drawn
        floors = [self.y[self.index == number].min(initial=np.inf) for number in range(count)]
        floors = [3.0 if not np.isfinite(one) else one for one in floors]
        centre[:, SHARED + count : SHARED + 2 * count] = floors
        if start is None and refits > 1:
            start = self.minimise(1, rng)
        theta = centre.copy() if start is None else np.repeat(start, refits, 0)
        damping = np.full(refits, 1e-2)
        cost = self._cost(theta, (y, sigma), centre, widths)
        for _ in range(STEPS):
            residual, jacobian = self.residuals(theta, y, sigma)
            weight = np.minimum(1.0, HUBER / np.maximum(np.abs(residual), 1e-12))
            trust = self._trust(theta, centre, widths)
            pull = trust * (theta - centre) / widths**2
            weighted = jacobian.transpose(0, 2, 1) * weight[:, None, :]
            normal = weighted @ jacobian
            diagonal = np.einsum("rii->ri", normal)  # a view
            diagonal += trust / widths**2
            gradient = (weighted @ residual[:, :, None])[:, :, 0] + pull
            diagonal *= 1 + damping[:, None]
            step = np.linalg.solve(normal, gradient[:, :, None])[:, :, 0]
            trial = theta - step
            new = self._cost(trial, (y, sigma), centre, widths)
            better = new < cost
            theta = np.where(better[:, None], trial, theta)
            gain = np.where(better, cost - new, np.inf)
            cost = np.where(better, new, cost)
            damping = np.clip(np.where(better, damping / 5, damping * 4), 1e-9, 1e9)
            if np.all((gain < 1e-4) | (damping > 1e6)):
                break
        return theta

    def _cost(self, theta: Array, losses: tuple[Array, Array], centre: Array, widths: Array) -> Array:
        residual, _ = self.residuals(theta, *losses)
        size = np.abs(residual)
        misfit = np.where(size < HUBER, 0.5 * size**2, HUBER * (size - 0.5 * HUBER))
        away = np.abs(theta - centre) / widths
        beliefs = 0.5 * away**2
        line = away[:, :LINE]
        beliefs[:, :LINE] = np.where(line < SURPRISE, beliefs[:, :LINE], SURPRISE * (line - 0.5 * SURPRISE))
        return np.asarray(misfit.sum(1) + beliefs.sum(1))

    @staticmethod
    def _trust(theta: Array, centre: Array, widths: Array) -> Array:
        """Return the weights of the beliefs: a law that is far off must not outweigh what the trials say."""
        away = np.abs(theta - centre) / widths
        away[:, LINE:] = 0
        return SURPRISE / np.maximum(SURPRISE, away)

    def curve(self, theta: Array, number: int) -> RungCurve:
        optima = self.optima(theta)[:, number]
        low, high = np.exp(np.quantile(optima, [0.1, 0.9]))
        floor = float(theta[0, SHARED + len(self.rungs) + number])
        curvature = float(self.curvatures(theta)[0, number])
        return RungCurve(
            rung=self.rungs[number],
            optimum=math.exp(optima[0]),
            low=float(low),
            high=float(high),
            floor=floor,
            curvature=curvature,
        )


def _mixing(rungs: Sequence[Rung], nugget: float) -> Array:
    """Return the square root of the covariance of the rungs' misses."""
    points = np.log([[rung.parameters, rung.tokens, rung.batch_tokens] for rung in rungs])
    distances = np.sqrt(((points[:, None] - points[None]) ** 2).sum(2))
    covariance = nugget**2 * np.exp(-distances / REACH)
    return np.asarray(np.linalg.cholesky(covariance + 1e-9 * np.eye(len(rungs))))


def _loss(one: Observation) -> float:
    return one.loss


def _is_wall(one: Observation, best: Observation | None) -> bool:
    """Return whether a trial diverged. One at a rate below the best is only slow, however high its loss."""
    if best is None or not one.finite:
        return one.diverged
    return one.loss >= best.loss + DIVERGED_NATS and one.trial.rate > best.trial.rate


def _wall_gaps(data: TrialData, optima: Array, rng: np.random.Generator) -> Array:
    """Return how far above the optimum rates diverge: a prior, weighted by the rates that did and did not."""
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
