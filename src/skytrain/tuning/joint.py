"""The best rate of the target from all trials of a search: a few explanations, each weighed by what it predicted.

    loss = floor[rung] + a U(ln rate - m[rung])
    m[rung] = shape(rung) + c + gN ln N/N* + gD ln D/D* + gB ln B/B* + own[rung]

where * is the target. An explanation is a shape and a scale. The shapes are published laws and "the same
everywhere", which is what grid search on a smaller setting assumes; all pass through the expected rate at the target.
A scale multiplies the widths of c and of the exponents, so that a family far from any law is no surprise (heavy tails);
one scale for both, since a law with wrong exponents cannot be right at the target by anything but luck. The reverse is
not so: a law may have the right exponents and know nothing of the level. So each explanation counts once more with a
level that may be anywhere, and rungs that agree with each other far from the law outweigh it.
`own` is a Gaussian process: neighbouring rungs miss alike, so many trials far from the target cannot average it away.

Under each explanation the optima of all rungs are normal, and the rungs with trials are taken in one after another:
each is first predicted, and how likely its losses were is the explanation's weight. At the end each rung is predicted
from the others: where these predictions miss by more than they say, the interval widens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from .curve import (
    GAPS,
    SKEWS,
    STEP,
    Array,
    RungLosses,
    Shapes,
    diverges,
    expected_gaps,
    places_from,
    u_shape,
    wall_likelihood,
)
from .problem import DIVERGED_NATS, UNKNOWN_LEVEL, Observation, Problem, Rung, nats_per_log_token

# Widths of families differ by about this much: benchmarks/tuning/families.log.
SCALES = np.array([0.25, 0.5, 1.0, 2.0])
UNKNOWN_WEIGHT = 0.5  # of an explanation with such a level, beside the same one with the law's
REACH = 2.0  # ln of the distance at which settings miss a law almost independently
BEYOND = 2.5  # ln by which places go beyond the allowed rates
QUANTILES = (np.arange(400) + 0.5) / 400
CAUTIOUS = (0.35, 0.5)  # quantiles of the target's optimum between which the answer is chosen
NORMAL_PLACES = np.linspace(-6.0, 6.0, 1201)
NORMAL_SHARES = np.array([NormalDist().cdf(place) for place in NORMAL_PLACES])


@dataclass(frozen=True)
class RungCurve:
    """The fitted U of one rung."""

    rung: Rung
    optimum: float  # a rate
    low: float  # 80% interval of the optimum
    high: float
    floor: float  # loss at the optimum
    curvature: float
    skew: float

    def loss(self, rate: Array) -> Array:
        return self.floor + self.curvature * u_shape(np.log(rate / self.optimum), self.skew)


@dataclass(frozen=True)
class OptimaMixture:
    """The optima of all rungs, normal under each explanation."""

    weights: Array
    means: Array  # explanations x rungs
    covariances: Array  # explanations x rungs x rungs

    def moments(self) -> tuple[Array, Array]:
        """Return the mean and the covariance over all explanations."""
        mean = self.weights @ self.means
        away = self.means - mean
        within = np.einsum("e,eij->ij", self.weights, self.covariances)
        return mean, within + np.einsum("e,ei,ej->ij", self.weights, away, away)

    def quantiles(self, number: int, levels: Array, wider: float = 1.0) -> Array:
        """Return quantiles of a rung's optimum, `wider` times as far from the mean."""
        means = self.means[:, number]
        deviations = np.sqrt(np.maximum(self.covariances[:, number, number], 1e-12))
        low = float((means - 5 * deviations).min())
        high = float((means + 5 * deviations).max())
        places = np.linspace(low, high, 1200)
        share = self.weights @ _normal_share((places - means[:, None]) / deviations[:, None])
        middle = float(self.weights @ means)
        return middle + wider * (np.interp(levels, share, places) - middle)


@dataclass(frozen=True)
class JointFit:
    """What is believed about the target's optimum, and the curves of the rungs that have trials."""

    problem: Problem
    history: tuple[Observation, ...]
    rungs: tuple[Rung, ...]
    optima: Array  # ln of the target's optimum: equally likely values
    curves: tuple[RungCurve, ...]
    mixture: OptimaMixture
    shape_weights: dict[str, float]  # how much each shape counts after the trials
    skews: Array  # probability of each skew
    curvatures: Array  # expected curvature for each skew
    gaps: Array  # probability of each gap between best and diverging rate
    noise: float
    wider: float  # how far rungs miss what the others predict of them, in deviations; at least 1

    @property
    def earlier_weight(self) -> float | None:
        """Return how much the level of earlier sweeps counts after the trials; None if none were taken into account."""
        if self.problem.priors.before is None:
            return None
        return float(self.mixture.weights.reshape(2, -1)[0].sum())  # its shapes come first, and are as many

    def _above(self, log_rates: Array) -> Array:
        """Return the expected nats above the optimum, without divergence, for each rate."""
        distance = log_rates[:, None] - self.optima
        each = [
            share * np.minimum(a * u_shape(distance, skew), DIVERGED_NATS).mean(1)
            for share, a, skew in zip(self.skews, self.curvatures, SKEWS, strict=True)
        ]
        return np.asarray(sum(each))

    def regret(self, log_rate: float) -> float:
        """Return the expected loss above the optimum's, without divergence."""
        return float(self._above(np.array([log_rate]))[0])

    def divergence(self, log_rate: float) -> float:
        return float(diverges(log_rate - self.optima, self.gaps).mean())

    def best_rate(self) -> float:
        """Return the rate with the least expected loss among those just below the middle of what is believed.

        A run that diverges has wasted half of its tokens on average. Without the bounds, explanations that hardly
        count decide by how far away they are.
        """
        wasted = math.log(2) * nats_per_log_token(self.problem, self.history)
        low, high = np.quantile(self.optima, CAUTIOUS)
        grid = np.linspace(low, high, 121)
        costs = self._above(grid) + wasted * np.array([self.divergence(one) for one in grid])
        return self.problem.clip(math.exp(grid[int(np.argmin(costs))]))

    def expected(self, rung: Rung) -> float:
        """Return the rate at which a rung's optimum is expected."""
        return math.exp(float(self.mixture.weights @ self.mixture.means[:, self.rungs.index(rung)]))

    def interval(self) -> tuple[float, float]:
        low, high = np.exp(np.quantile(self.optima, [0.1, 0.9]))
        return float(low), float(high)

    def projected(self, rungs: Sequence[Rung]) -> Array:
        """Return the 10%, 50% and 90% quantiles of the optima of other settings, as rates."""
        fit = fit_jointly(self.problem, self.history, rungs)
        numbers = [fit.rungs.index(rung) for rung in rungs]
        levels = np.array([0.1, 0.5, 0.9])
        return np.exp([fit.mixture.quantiles(number, levels, fit.wider) for number in numbers])


def fit_jointly(problem: Problem, history: Sequence[Observation], also: Sequence[Rung] = ()) -> JointFit:
    """Return what the trials say about the target, the rungs that have trials, and the rungs `also`."""
    evidence = Evidence.of(problem, history, also)
    tried = evidence.informative()
    mixture, shapes = evidence.mixture(tried)
    wider = evidence.missed(tried)
    names = [one.trial.rung for one in history]
    weights, gaps = evidence.posterior()
    by_skew = weights.sum((0, 2))
    curvatures = np.einsum("nsc,c->s", weights, evidence.shapes.curvatures) / np.maximum(by_skew, 1e-12)
    fit = JointFit(
        problem=problem,
        history=tuple(history),
        rungs=evidence.rungs,
        optima=mixture.quantiles(evidence.target, QUANTILES, wider),
        curves=(),
        mixture=mixture,
        shape_weights=shapes,
        skews=by_skew,
        curvatures=curvatures,
        gaps=gaps,
        noise=float(weights.sum((1, 2)) @ evidence.shapes.noises),
        wider=wider,
    )
    numbers = [number for number, rung in enumerate(evidence.rungs) if rung.name in names]
    return replace(fit, curves=tuple(_curve(fit, evidence, number) for number in numbers))


def _curve(fit: JointFit, evidence: Evidence, number: int) -> RungCurve:
    low, middle, high = fit.mixture.quantiles(number, np.array([0.1, 0.5, 0.9]), fit.wider)
    losses = evidence.losses[number]
    skew = float(fit.skews @ SKEWS)
    a = float(fit.skews @ fit.curvatures)
    floor = math.nan
    if losses.rates:
        x, y = losses.arrays()
        u = u_shape(x - middle, skew)
        weight = 1 / (fit.noise**2 + (y - y.min()) ** 2)
        if len(u) > 2 and np.ptp(u) > 0:
            # The rung's own curvature, kept within what is known about all rungs.
            centred = u - weight @ u / weight.sum()
            own = float((weight * centred) @ y / ((weight * centred) @ u))
            a = min(max(own, a / 3), a * 3)
        floor = float(weight @ (y - a * u) / weight.sum())
    return RungCurve(
        rung=evidence.rungs[number],
        optimum=math.exp(middle),
        low=math.exp(low),
        high=math.exp(high),
        floor=floor,
        curvature=a,
        skew=skew,
    )


@dataclass(frozen=True)
class Evidence:
    """The trials by rung, with the likelihood of each place of a rung's optimum."""

    problem: Problem
    rungs: tuple[Rung, ...]
    target: int
    losses: tuple[RungLosses, ...]
    shapes: Shapes
    places: Array
    marginal: Array  # rungs x shapes x gaps: ln likelihood of a rung's trials, wherever its optimum is
    likelihood: Array  # rungs x places: ln, averaged over the shapes and gaps that the other rungs leave

    @classmethod
    def of(cls, problem: Problem, history: Sequence[Observation], also: Sequence[Rung] = ()) -> Evidence:
        priors = problem.priors
        names = [*(one.trial.rung for one in history), problem.target.name]
        rungs = tuple(dict.fromkeys([*(problem.rung(name) for name in names), *also]))
        losses = tuple(_losses(history, rung.name) for rung in rungs)
        laws = [priors.law(rung) for rung in rungs]
        # Whole steps, so that adding a rung does not move every place.
        low = STEP * math.floor((min(math.log(problem.lowest), *laws) - BEYOND) / STEP)
        high = max(math.log(problem.highest), *laws) + BEYOND
        places = places_from(low, math.ceil((high - low) / STEP))
        shapes = Shapes(priors.curvature, priors.curvature_offset, problem.noise)
        blank = cls(
            problem=problem,
            rungs=rungs,
            target=rungs.index(problem.target),
            losses=losses,
            shapes=shapes,
            places=places,
            marginal=np.zeros((len(rungs), shapes.prior.size, len(GAPS))),
            likelihood=np.zeros((len(rungs), len(places))),
        )
        tried = blank.informative()
        if not tried:
            return blank
        shaped = np.array([shapes.likelihood(losses[one], float(low), len(places)) for one in tried])
        walled = np.array([wall_likelihood(losses[one], places) for one in tried])
        top = shaped.max((1, 2), keepdims=True)
        shares = np.exp(shaped - top)
        edges = np.exp(walled)
        # Every place counts alike here: rungs share what they miss of a law, which must not look like noise.
        marginal = np.log(shares @ edges.transpose(0, 2, 1) / len(places) + np.finfo(float).tiny) + top
        others = blank.prior() + marginal.sum(0) - marginal
        weights = np.exp(others - others.max((1, 2), keepdims=True))
        both = (weights.transpose(0, 2, 1) @ shares * edges).sum(1)
        blank.marginal[tried] = marginal
        blank.likelihood[tried] = np.log(both / weights.sum((1, 2))[:, None] + np.finfo(float).tiny) + top[:, 0]
        return blank

    def prior(self) -> Array:
        """Return ln of the prior, shapes x gaps."""
        return np.asarray(self.shapes.prior.reshape(-1, 1) + np.log(expected_gaps()))

    def posterior(self) -> tuple[Array, Array]:
        """Return the probabilities of the shapes of the U and of the gaps after all trials."""
        weight = self.prior() + self.marginal.sum(0)
        weight = np.exp(weight - weight.max())
        weight /= weight.sum()
        return weight.sum(1).reshape(self.shapes.prior.shape), weight.sum(0)

    def informative(self) -> list[int]:
        """Return the rungs whose trials say something about their optimum, those with the most trials first."""
        numbers = [number for number, one in enumerate(self.losses) if len(one.rates) > 1 or len(one.walls)]
        return sorted(numbers, key=lambda number: -len(self.losses[number].rates))

    def _distances(self) -> Array:
        """Return the logarithmic distances in size, horizon and batch of each rung from the target."""
        points = [(one.parameters, one.tokens, one.batch_tokens) for one in (*self.rungs, self.problem.target)]
        return np.log(points[:-1]) - np.log(points[-1])

    def mixture(self, taken: Sequence[int]) -> tuple[OptimaMixture, dict[str, float]]:
        """Return the optima after the trials of the rungs `taken`, and the weights of the shapes."""
        priors = self.problem.priors
        shapes = priors.all_shapes(self.problem.target)
        distances = self._distances()
        tilted = distances * priors.exponents
        apart = np.sqrt(((distances[:, None] - distances[None]) ** 2).sum(2))
        own = priors.nugget**2 * np.exp(-apart / REACH) + 1e-9 * np.eye(len(self.rungs))
        curves = np.array([[shape.law(rung) for rung in self.rungs] for shape in shapes])
        offsets = [priors.offset if shape.offset is None else shape.offset for shape in shapes]
        known = np.multiply.outer(offsets, SCALES)
        levels = np.stack([known, np.maximum(known, UNKNOWN_LEVEL)], 2)  # shapes x scales x known or not
        slopes = SCALES[:, None, None] ** 2 * (tilted @ tilted.T)
        covariances = (levels[..., None, None] ** 2 + slopes[:, None] + own).reshape(-1, *own.shape)
        means = np.repeat(curves, levels[0].size, 0)
        each = np.multiply.outer([shape.weight for shape in shapes], np.ones(levels.shape[1:]))
        weights = np.log(each * [1.0, UNKNOWN_WEIGHT]).ravel()
        for number in taken:
            variance = covariances[:, number, number]
            density = -0.5 * (self.places - means[:, number, None]) ** 2 / variance[:, None]
            both = density + self.likelihood[number]
            weights = weights + _log_sum(both, 1) - _log_sum(density, 1)
            share = np.exp(both - _log_sum(both, 1)[:, None])
            mean = share @ self.places
            left = np.maximum(share @ self.places**2 - mean**2, (STEP / 2) ** 2)
            gain = covariances[:, :, number] / variance[:, None]
            means = means + gain * (mean - means[:, number])[:, None]
            covariances = covariances - gain[:, :, None] * gain[:, None, :] * (variance - left)[:, None, None]
        weights = np.exp(weights - _log_sum(weights, 0))
        by_shape = weights.reshape(len(shapes), -1).sum(1)
        named: dict[str, float] = {}
        for shape, weight in zip(shapes, by_shape, strict=True):
            named[shape.name] = named.get(shape.name, 0.0) + float(weight)
        return OptimaMixture(weights, means, covariances), named

    def missed(self, tried: Sequence[int]) -> float:
        """Return how far rungs with a minimum of their own miss what the others predict, in deviations; at least 1."""
        checked = [number for number in tried if self.losses[number].bracketed and len(self.losses[number].rates) > 2]
        misses = []
        for number in checked:
            others = [one for one in tried if one != number]
            if not others:
                continue
            mean, covariance = self.mixture(others)[0].moments()
            share = np.exp(self.likelihood[number] - _log_sum(self.likelihood[number], 0))
            found = float(share @ self.places)
            spread = float(share @ (self.places - found) ** 2)
            misses.append((found - mean[number]) ** 2 / (covariance[number, number] + spread))
        # One more, of exactly one deviation, keeps two rungs from deciding everything.
        return max(1.0, math.sqrt((1 + sum(misses)) / (1 + len(misses))))


def _losses(history: Sequence[Observation], rung: str) -> RungLosses:
    """Return a rung's trials. One that ends far above a lower rate has diverged; one at too low a rate is only slow."""
    seen = [one for one in history if one.trial.rung == rung]
    finite = [one for one in seen if one.finite]
    best = min(finite, key=lambda one: one.loss, default=None)
    walls = [one for one in seen if one.diverged]
    if best is not None:
        jumped = [one for one in finite if one.loss >= best.loss + DIVERGED_NATS and one.trial.rate > best.trial.rate]
        walls += jumped
        finite = [one for one in finite if one not in jumped]
    return RungLosses(
        tuple(math.log(one.trial.rate) for one in finite),
        tuple(one.loss for one in finite),
        tuple(math.log(one.trial.rate) for one in walls),
    )


def _log_sum(values: Array, axis: int) -> Array:
    """Return ln of the sum of exponentials."""
    top = values.max(axis, keepdims=True)
    return np.asarray(np.log(np.exp(values - top).sum(axis)) + np.squeeze(top, axis))


def _normal_share(values: Array) -> Array:
    """Return the cumulative normal distribution."""
    return np.interp(values, NORMAL_PLACES, NORMAL_SHARES)
