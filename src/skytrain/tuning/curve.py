"""The loss of a rung over the logarithm of the rate: a U, and how far losses scatter around it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

SKEW = 0.7  # asymmetry of the U: a rate too high costs more than one equally too low (median of 150 published curves)
FAR = 0.2  # relative error of the U's shape away from the minimum, as a share of the loss above it
# Before it diverges, training jumps and levels off: the loss of a high rate says little if it is above the U by more
# than this many curvatures.
UNSTABLE = 1.0
CLIFF = 0.5
RELATIVE_NOISE = 0.12  # noise between seeds, per curvature: steep curves are noisy


def u_shape(distance: Array) -> Array:
    """Return a U that is d² near zero, and steeper above than below."""
    return 2 * (np.exp(SKEW * distance) - SKEW * distance - 1) / SKEW**2


def u_slope(distance: Array) -> Array:
    return 2 * (np.exp(SKEW * distance) - 1) / SKEW


def deviation(noise: float, curvature: Array, above: Array) -> Array:
    """Return the deviation of a loss from the model: of seeds, and of the U's shape this many nats above the minimum."""
    return np.sqrt(noise**2 + (RELATIVE_NOISE * curvature) ** 2 + (FAR * above) ** 2)


def jump_deviation(curvature: Array, above: Array) -> Array:
    """Return the deviation of a loss above the U at a high rate."""
    return UNSTABLE * np.maximum(0.0, above - CLIFF * curvature)
