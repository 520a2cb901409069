"""Curves through the optima of several sizes or horizons, continued to the target: the four that people try.

power        rate = a x^b
linear       rate = a + b x
polynomial   rate = a + b x + c x^2, through three optima or more
exponential  rate = a e^(b x)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

Curve = Callable[[float], float]
Point = tuple[float, float]  # size or horizon, and its best rate
FITS = ("power", "linear", "polynomial", "exponential")


@dataclass(frozen=True)
class ScalingFit:
    """One curve: the target's rate by it, and how well it predicts each optimum from the others."""

    name: str
    rate: float | None  # None: the curve is not positive there, or has too few optima
    error: float | None  # root mean square of the logarithms; None: too few optima to leave one out
    curve: Curve = field(compare=False)

    def __str__(self) -> str:
        rate = "no rate" if self.rate is None else f"{self.rate:.3g}"
        off = None if self.error is None else math.exp(min(self.error, 99.0))
        return f"{self.name} {rate}" + ("" if off is None else f" (off by a factor of {off:.3g})")


def fit_scaling(name: str, points: Sequence[Point], target: float) -> ScalingFit:
    """Fit one of `FITS`; the error is that of predicting each optimum from all others."""
    needed = 3 if name == "polynomial" else 2
    if len({x for x, _ in points}) < needed:
        return ScalingFit(name, None, None, lambda x: math.nan)
    curve = _curve(name, points)
    rate = curve(target)
    return ScalingFit(name, rate if math.isfinite(rate) and rate > 0 else None, _error(name, points, needed), curve)


def fit_all(points: Sequence[Point], target: float) -> tuple[ScalingFit, ...]:
    return tuple(fit_scaling(name, points, target) for name in FITS)


def _curve(name: str, points: Sequence[Point]) -> Curve:
    x, y = np.array(points, dtype=float).T
    if name == "power":
        slope, start = np.polyfit(np.log(x), np.log(y), 1)
        return lambda at: float(np.exp(start + slope * np.log(at)))
    scale = float(x.max())  # numbers of parameters are large, and their squares larger
    if name == "exponential":
        slope, start = np.polyfit(x / scale, np.log(y), 1)
        return lambda at: float(np.exp(np.minimum(700.0, start + slope * at / scale)))
    factors = np.polyfit(x / scale, y, 2 if name == "polynomial" else 1)
    return lambda at: float(np.polyval(factors, at / scale))


def _error(name: str, points: Sequence[Point], needed: int) -> float | None:
    """Return the error of predicting each optimum from the others; infinite where a prediction is not positive."""
    if len(points) <= needed:
        return None
    errors = []
    for number, (x, y) in enumerate(points):
        predicted = _curve(name, [*points[:number], *points[number + 1 :]])(x)
        errors.append(math.log(predicted / y) if predicted > 0 else math.inf)
    return math.sqrt(sum(error**2 for error in errors) / len(errors))
