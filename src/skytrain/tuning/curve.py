"""The loss of a rung over the logarithm of the rate: a U, and how far losses scatter around it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

SKEW = 0.7  # of the U: a rate far too high costs more than one as far too low (median of 150 published curves)
FAR = 0.2  # relative error of the U's shape away from the minimum, as a share of the loss above it
# Before it diverges, training jumps and levels off: losses of high rates above the U say little where they are higher
# than so many curvatures.
UNSTABLE = 1.0
CLIFF = 0.5
RELATIVE_NOISE = 0.12  # of seeds, per curvature: steep curves are noisy ones


def u_shape(distance: Array) -> Array:
    """Return d² near zero, more above than below."""
    return 2 * (np.exp(SKEW * distance) - SKEW * distance - 1) / SKEW**2


def u_slope(distance: Array) -> Array:
    return 2 * (np.exp(SKEW * distance) - 1) / SKEW


def deviation(noise: float, curvature: Array, above: Array) -> Array:
    """Return the deviation of a loss from the model: of seeds, and of the U's shape this many nats above the minimum."""
    return np.sqrt(noise**2 + (RELATIVE_NOISE * curvature) ** 2 + (FAR * above) ** 2)


def jump_deviation(curvature: Array, above: Array) -> Array:
    """Return the deviation of a loss above the U at a high rate."""
    return UNSTABLE * np.maximum(0.0, above - CLIFF * curvature)
