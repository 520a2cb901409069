"""Made-up tables whose best rates follow from a mechanism, not from a formula for the best rate: a check of the ladder.

    python benchmarks/tuning/replay.py --mechanisms --every 3 > benchmarks/tuning/mechanisms.log

worlds.py draws optima and puts a curve around each. Here nobody chooses an optimum: two of the kinds compute losses
from which one follows, and the third draws a smooth field that is no power law, with the gaps of a table collected
from several people. They were committed before the ladder was changed for the kinds of worlds.py, and not looked at
until the change was finished.

- **quadratic**: stochastic gradient descent with a linear decay on a quadratic with a power-law spectrum, computed
  exactly from its second moments. A larger model has more directions. Rates beyond the edge of stability diverge, and
  short runs are best close to it.
- **balance**: too few steps at a low rate, too much gradient noise at a high one, and an instability that sets in with
  the width; the loss is their sum. Noise is heavy-tailed.
- **field**: the best rate is a smooth random function of size and horizon. Rates differ from cell to cell, and a third
  of the cells are missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from table import Cell, cell_of

from skytrain.tuning import Rung
from skytrain.tuning.laws import law_named

FAMILIES = 4  # of each kind
SEED = 20261118
DIVERGED = 4.0  # nats above the best, of a run that diverged
MOST = 30.0  # nats: a loss that is higher has diverged


def quadratic(number: int) -> list[Cell]:
    """Return the cells of one family of quadratics."""
    rng = np.random.default_rng([SEED, 1, number])
    steepness = rng.uniform(1.0, 1.5)  # of the spectrum
    start = rng.uniform(0.1, 0.5)  # further decay of the first distance from the minimum
    gradient_noise = math.exp(rng.uniform(-6, -3))
    scale = math.exp(rng.uniform(-1.5, 1.5))  # of all rates
    noise = math.exp(rng.uniform(-7.5, -5.5))
    sizes = (64, 128, 256, 512)
    steps = (100, 250, 600, 1500)
    cells = []
    for size in sizes:
        curvature = np.arange(1, size + 1) ** -steepness
        first = np.arange(1, size + 1) ** -start
        for count in steps:
            rung = _rung(f"quadratic{number}", size * 1.2e5, count * 2.6e5, 262144)
            top = math.log(2.2 * scale)
            losses = {}
            for place in top - 0.5 * math.log(2) * np.arange(13):
                above = _descend(math.exp(place) / scale, count, curvature, first, gradient_noise)
                loss = 2.5 + 1e6 / rung.parameters + above * 0.5 + noise * rng.standard_normal()
                losses[_digits(place)] = loss if above < MOST else math.inf
            cells.append(_finished(f"quadratic{number}", rung, losses))
    return cells


def _descend(rate: float, steps: int, curvature: np.ndarray, first: np.ndarray, gradient_noise: float) -> float:
    """Return the expected loss above the minimum after all steps of a linear decay."""
    squares = first**2
    for step in range(steps):
        now = rate * min(1.0, (step + 1) / (0.05 * steps)) * (1 - step / steps)
        squares = squares * (1 - now * curvature) ** 2 + (now**2) * gradient_noise * curvature
        if not squares.max() < 1e6:
            return math.inf
    return float(curvature @ squares / 2)


def balance(number: int) -> list[Cell]:
    """Return the cells of one family in which three costs add up."""
    rng = np.random.default_rng([SEED, 2, number])
    level = rng.uniform(-1.2, 1.2)
    slow = rng.uniform(0.3, 0.8)  # exponent of the cost of few steps
    rough = rng.uniform(0.6, 1.4)  # and of noise
    slow_size = rng.uniform(-0.1, 0.15)
    rough_size = rng.uniform(-0.1, 0.4)
    rough_steps = rng.uniform(-0.3, 0.3)
    edge = rng.uniform(1.0, 2.2)
    edge_size = rng.uniform(-0.5, 0.0)
    height = math.exp(rng.uniform(-3.0, -1.5))
    noise = math.exp(rng.uniform(-7.0, -5.5))
    cells = []
    for size in (2e7, 7e7, 2e8, 7e8):
        for tokens in (4e8, 1.2e9, 4e9, 1.2e10):
            rung = _rung(f"balance{number}", size, tokens, 131072)
            n = math.log(size / 1e8)
            d = math.log(tokens / 2e9)
            middle = math.log(law_named("step-law").rate(rung)) if number % 2 else -6.5
            losses = {}
            for place in middle + level + math.log(2) * np.arange(-5, 5):
                away = place - (-6.5 + level)
                few = height * math.exp(-slow * (away + 0.5 * d) + slow_size * n)
                much = height * math.exp(rough * away + rough_size * n + rough_steps * d)
                beyond = away - edge - edge_size * n
                broken = height * math.log1p(math.exp(6 * beyond))
                floor = 2.0 + 0.5 * math.exp(-0.3 * n) + 0.3 * math.exp(-0.3 * d)
                loss = floor + few + much + broken + noise * float(rng.standard_t(3))
                losses[_digits(place)] = math.inf if beyond > 1.0 else loss
            cells.append(_finished(f"balance{number}", rung, losses))
    return cells


def field(number: int) -> list[Cell]:
    """Return the cells of one family whose best rate is a smooth random function."""
    rng = np.random.default_rng([SEED, 3, number])
    sizes = np.exp(np.linspace(math.log(5e7), math.log(1.5e9), 5))
    horizons = np.exp(np.linspace(math.log(1e9), math.log(4e10), 5))
    points = np.array([(math.log(n), math.log(d)) for n in sizes for d in horizons])
    reach = rng.uniform(1.0, 4.0)
    apart = ((points[:, None] - points[None]) ** 2).sum(2)
    covariance = rng.uniform(0.15, 0.7) ** 2 * np.exp(-0.5 * apart / reach**2) + 1e-8 * np.eye(len(points))
    wave = np.linalg.cholesky(covariance) @ rng.standard_normal(len(points))
    middle = math.log(law_named("batch-aware").rate(_rung("", 3e8, 6e9, 262144))) + rng.uniform(-1.0, 1.0)
    wall = rng.uniform(0.8, 2.5)
    noise = math.exp(rng.uniform(-7.0, -5.0))
    cells = []
    for (n, d), off in zip(points, wave, strict=True):
        if rng.uniform() < 1 / 3:
            continue
        rung = _rung(f"field{number}", math.exp(n), math.exp(d), 262144)
        best = middle + off
        a = math.exp(rng.normal(-3.5, 0.4))
        shift = rng.uniform(-0.3, 0.3)
        losses = {}
        for place in best + shift + math.log(rng.uniform(1.4, 2.4)) * (np.arange(rng.integers(5, 10)) - 3.5):
            away = place - best
            loss = 2.2 + (1e8 / rung.parameters) ** 0.2 + a * (math.cosh(away) - 1) * 2 + noise * rng.standard_normal()
            losses[_digits(float(place))] = math.inf if away > wall else loss
        cells.append(_finished(f"field{number}", rung, losses))
    return cells


def _rung(family: str, parameters: float, tokens: float, batch_tokens: int) -> Rung:
    return Rung(
        name=f"{family}-{parameters / 1e6:.4g}M-{tokens / 1e9:.4g}B",
        parameters=parameters,
        tokens=tokens,
        batch_tokens=batch_tokens,
        usd=parameters * tokens / 1e18,
    )


def _digits(place: float) -> float:
    return float(f"{math.exp(place):.4g}")


def _finished(family: str, rung: Rung, losses: dict[float, float]) -> Cell:
    """Return a cell with a number for the rates that diverged."""
    best = min(losses.values())
    return cell_of(
        family, rung, {rate: loss if loss < best + DIVERGED else best + DIVERGED for rate, loss in losses.items()}
    )


MECHANISMS: dict[str, Callable[[int], Sequence[Cell]]] = {"quadratic": quadratic, "balance": balance, "field": field}


def mechanism_cells(name: str) -> list[Cell]:
    """Return all cells of one kind."""
    return [cell for number in range(FAMILIES) for cell in MECHANISMS[name](number)]
