"""A published table of runs as a place to search in: its cells, their optima, and a law refitted without a target."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from skytrain.tuning import BatchAware, Priors, Rung

DIVERGED_NATS = 1.0
AROUND = 1.3  # ln: the rates that a cell's optimum is read from
Setting = tuple[int, int]  # parameters, tokens


@dataclass(frozen=True)
class Cell:
    """All rates of one model, horizon and batch."""

    rung: Rung
    rates: np.ndarray  # ascending
    losses: np.ndarray

    @property
    def setting(self) -> Setting:
        return int(self.rung.parameters), int(self.rung.tokens)

    def loss(self, rate: float) -> float:
        """The loss at a rate, linear between its neighbours over the logarithm."""
        return float(np.interp(math.log(rate), np.log(self.rates), self.losses))

    def regret(self, rate: float) -> float:
        return self.loss(rate) - float(self.losses.min())

    def observe(self, rate: float) -> float:
        """The loss of a run of the table; infinite for one that ended a nat above the best."""
        loss = float(self.losses[int(np.argmin(abs(self.rates - rate)))])
        return loss if loss < self.losses.min() + DIVERGED_NATS else math.inf

    def optimum(self) -> float:
        """ln of the minimum of the cubic through the rates around the best; no part of the strategies' own model."""
        x = np.log(self.rates)
        best = math.log(self.rates[int(np.argmin(self.losses))])
        near = (abs(x - best) < AROUND) & (self.losses < self.losses.min() + DIVERGED_NATS)
        if near.sum() < 4:
            return best
        cubic = np.polynomial.Polynomial.fit(x[near], self.losses[near], 3)
        grid = np.linspace(x[near].min(), x[near].max(), 400)
        return float(grid[int(np.argmin(cubic(grid)))])


def read_table(path: Path) -> list[Cell]:
    """The cells of a CSV with the columns n, tokens, batch_tokens, lr and loss; lines with # are comments."""
    with path.open() as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    groups: dict[tuple[int, int, int], dict[float, float]] = defaultdict(dict)
    for row in rows:
        groups[int(row["n"]), int(row["tokens"]), int(row["batch_tokens"])][float(row["lr"])] = float(row["loss"])
    return [_cell(key, losses) for key, losses in sorted(groups.items())]


def _cell(key: tuple[int, int, int], losses: dict[float, float]) -> Cell:
    size, tokens, batch = key
    rates = sorted(losses)
    name = f"{size / 1e6:.0f}M-{tokens / 1e9:.1f}B-{batch // 1024}k"
    rung = Rung(
        name=name, parameters=size, tokens=tokens, batch_tokens=batch, usd=size * tokens / 1e18, rates=tuple(rates)
    )  # a dollar buys 6e18 FLOPs
    return Cell(rung, np.array(rates), np.array([losses[rate] for rate in rates]))


def fit_law(cells: Sequence[Cell], optima: dict[str, float], without: Collection[Setting]) -> BatchAware:
    """Fits the batch-aware form to the optima of the cells, with Huber's loss, leaving settings out."""
    used = [cell for cell in cells if cell.setting not in without]
    rungs = [cell.rung for cell in used]
    y = np.array([optima[rung.name] for rung in rungs])
    theta = np.array([-5.9, -0.6, 0.28, 0.1, 11.4, 0.76])
    damping = 1e-2

    def residuals(at: np.ndarray) -> np.ndarray:
        law = law_of(at)
        return np.array([law(rung) for rung in rungs]) - y

    def cost(at: np.ndarray) -> float:
        size = abs(residuals(at))
        return float(np.where(size < 0.3, size**2 / 2, 0.3 * (size - 0.15)).sum())

    now = cost(theta)
    for _ in range(40):
        r = residuals(theta)
        jacobian = np.array([(residuals(theta + 1e-5 * unit) - r) / 1e-5 for unit in np.eye(6)]).T
        weight = np.minimum(1, 0.3 / np.maximum(abs(r), 1e-9))
        normal = (jacobian.T * weight) @ jacobian
        gradient = (jacobian.T * weight) @ r
        step = theta - np.linalg.solve(normal + np.diag(damping * np.diag(normal) + 1e-9), gradient)
        new = cost(step)
        if new < now:
            done, theta, now, damping = now - new < 1e-9, step, new, damping / 4
            if done:
                break
        else:
            damping *= 5
    return law_of(theta)


def law_of(theta: Iterable[float]) -> BatchAware:
    level, size, horizon, batch, knee, knee_horizon = map(float, theta)
    return BatchAware(
        level=level, size=size, horizon=horizon, batch=math.exp(batch), knee=math.exp(knee), knee_horizon=knee_horizon
    )


def priors_without(cells: Sequence[Cell], optima: dict[str, float], without: Collection[Setting]) -> Priors:
    """A refitted law, with widths from how far it misses settings that it was not fitted on either.

    Nothing of the settings `without` is used: each of the others is left out in turn. The spread of a setting's mean
    miss is the offset's width, that of its batches around the mean the nugget's; exponents get the jackknife's.
    """
    settings = sorted({cell.setting for cell in cells} - set(without))
    means = []
    rests = []
    exponents = []
    for one in settings:
        law = fit_law(cells, optima, {*without, one})
        misses = [optima[cell.rung.name] - law(cell.rung) for cell in cells if cell.setting == one]
        means.append(float(np.mean(misses)))
        rests += [miss - means[-1] for miss in misses]
        exponents.append([law.size, law.horizon])
    size, horizon = np.std(exponents, axis=0) * math.sqrt(len(settings) - 1)
    return Priors(
        fit_law(cells, optima, without),
        offset=float(np.sqrt(np.mean(np.square(means)))),
        size=float(size),
        horizon=float(horizon),
        nugget=float(np.sqrt(np.mean(np.square(rests)))),
    )
