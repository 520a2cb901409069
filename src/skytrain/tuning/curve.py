"""The loss of a rung over the logarithm of the rate: a U, and what the losses of a rung say about its minimum."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# From the families of benchmarks/tuning/families.log, where each number has its script.
SKEWS = np.array([-0.75, 0.0, 0.75, 1.5])  # medians of families are -0.25 to 0.75; above 0: too high is dearer
FAR = 0.25  # error of the U's shape as a share of the loss above the minimum (0.11 to 0.38 by family)
WALL = (1.5, 0.6)  # ln of the first diverged over the best rate: mean and deviation (means of families are 0.9 to 1.9)
CURVATURE_SPREAD = 0.5  # deviation of ln curvature between the rungs of one search
FURTHEST = 20.0  # exponent that keeps numbers finite

GAPS = np.linspace(0.2, 3.4, 33)
SOFT = 0.2  # ln over which rates go from training to diverging
STEP = 0.05  # ln between places of an optimum
CURVATURE_STEPS = np.linspace(-2.5, 2.5, 11)  # deviations
NOISES = 2.0 ** np.arange(8)  # multiples of the expected noise, each half as likely as the one before
# Deviation of a rung's noise from the search's, in doublings. Short runs are often more erratic; seeds of one target
# differ by 0.008 nats and those of another by 0.026 (benchmarks/tuning/h200.log).
NOISE_SPREAD = 1.0
# Nodes and weights of a normal variable.
NODES = np.array([-np.sqrt(3.0), 0.0, np.sqrt(3.0)])
NODE_WEIGHTS = np.array([1 / 6, 2 / 3, 1 / 6])


def u_shape(distance: Array, skew: float | Array = 0.0) -> Array:
    """Return a U that is d² near zero, steeper above than below where the skew is positive."""
    s = np.where(np.abs(skew) < 1e-6, 1.0, skew)
    bent = 2 * (np.exp(np.minimum(s * distance, FURTHEST)) - s * distance - 1) / s**2
    return np.asarray(np.where(np.abs(skew) < 1e-6, distance**2, bent))


def diverges(above: Array, chances: Array) -> Array:
    """Return the probability that a rate this far above the optimum diverges; `chances` are those of the gaps."""
    return np.asarray((chances / (1 + np.exp((GAPS - above[..., None]) / SOFT))).sum(-1))


def expected_gaps() -> Array:
    """Return the prior probabilities of the gaps between the best and the first diverged rate."""
    mean, deviation = WALL
    weight = np.exp(-0.5 * ((GAPS - mean) / deviation) ** 2)
    return np.asarray(weight / weight.sum())


def places_from(low: float, count: int) -> Array:
    """Return the places of an optimum that are considered, as ln of rates."""
    return np.asarray(low + STEP * np.arange(count))


@dataclass(frozen=True)
class RungLosses:
    """The trials of one rung: ln of rates with their losses, and ln of rates that diverged."""

    rates: tuple[float, ...]
    losses: tuple[float, ...]
    walls: tuple[float, ...] = ()

    def arrays(self) -> tuple[Array, Array]:
        return np.array(self.rates), np.array(self.losses)

    @property
    def bracketed(self) -> bool:
        """Return whether the best rate lies between others, so that the rung has a minimum of its own."""
        if len(self.rates) < 2:
            return False
        best = self.rates[int(np.argmin(self.losses))]
        return min(self.rates) < best < max(*self.rates, *self.walls)


@dataclass(frozen=True)
class Shapes:
    """Every combination of curvature, skew and noise that the U may have."""

    curvature: float
    spread: float  # deviation of ln curvature
    noise: float  # the least that seeds differ by

    @property
    def curvatures(self) -> Array:
        return np.asarray(self.curvature * np.exp(self.spread * CURVATURE_STEPS))

    @property
    def noises(self) -> Array:
        return np.asarray(self.noise * NOISES)

    @property
    def prior(self) -> Array:
        """Return ln of the prior, noises x skews x curvatures."""
        prior = -0.5 * CURVATURE_STEPS**2 - np.log(NOISES)[:, None, None] + 0 * SKEWS[:, None]
        return np.asarray(prior - np.log(np.exp(prior).sum()))

    @lru_cache(maxsize=64)  # noqa: B019 - a search asks again for every rung that has no new trial
    def likelihood(self, losses: RungLosses, low: float, count: int) -> Array:
        """Return ln of the likelihood of a rung's losses, shapes x places of its optimum.

        The height of the U may be anything. A loss far above the rung's lowest says little about the place of the
        minimum, since no curve has exactly this shape; so a jump at a high rate moves it little.
        """
        places = places_from(low, count)
        found = np.zeros((len(NOISES), len(SKEWS), len(CURVATURE_STEPS), count))
        if len(losses.rates) > 1:
            x, y = losses.arrays()
            weight = 1 / (self.noises[:, None] ** 2 + (FAR * (y - y.min())) ** 2)  # noises x losses
            total = weight.sum(1)
            y = y - (weight @ y / total)[:, None]
            u = u_shape(x - places[:, None], SKEWS[:, None, None])  # skews x places x losses
            # Far below all rates the U is so high that rounding would decide: only its differences are used.
            u = u - u.mean(2, keepdims=True)
            mean = np.einsum("nl,spl->nsp", weight, u) / total[:, None, None]
            cross = np.einsum("nl,spl->nsp", weight * y, u)
            square = np.maximum(np.einsum("nl,spl->nsp", weight, u**2) - total[:, None, None] * mean**2, 0.0)
            height = 0.5 * (np.log(weight).sum(1) - np.log(total) - (weight * y**2).sum(1))
            parts = []
            for node in NODES:
                a = (self.curvatures * np.exp(CURVATURE_SPREAD * node))[:, None]
                parts.append(a * cross[:, :, None] - 0.5 * a**2 * square[:, :, None])
            top = np.max(parts, axis=0)
            mixed = sum(share * np.exp(part - top) for share, part in zip(NODE_WEIGHTS, parts, strict=True))
            found += height[:, None, None, None] + top + np.log(mixed)
            apart = np.arange(len(NOISES)) - np.arange(len(NOISES))[:, None]
            own = np.exp(-0.5 * (apart / NOISE_SPREAD) ** 2)
            top = found.max(0)
            found = top + np.log(np.tensordot(own / own.sum(1)[:, None], np.exp(found - top), 1))
        return found.reshape(-1, count)


def wall_likelihood(losses: RungLosses, places: Array) -> Array:
    """Return ln of the likelihood of which rates of a rung diverged and which trained, gaps x places."""
    edge = places + GAPS[:, None]
    found = np.zeros(edge.shape)
    for wall in losses.walls:
        found -= np.logaddexp(0, (edge - wall) / SOFT)
    for rate in losses.rates:
        found -= np.logaddexp(0, (rate - edge) / SOFT)
    return found
