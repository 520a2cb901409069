"""Tables of finished runs as places to search in: their cells, the optima of these, and a law refitted without some.

A table is a CSV with the columns n, tokens, batch_tokens, lr and loss, and perhaps family; lines with # are comments.
The grids of h200.py are read too, with the seconds that their runs took as costs.
"""

from __future__ import annotations

import csv
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from skytrain.tuning import Rung
from skytrain.tuning.laws import BatchAware

DIVERGED_NATS = 1.0
AROUND = 1.3  # ln: the rates that a cell's optimum is read from
LEAST_RATES = 3
KNOWN_GRIDS = ("3x320", "4x192", "6x256")  # of h200.py, when the ladder was made as it is now
NEW_GRIDS = ("2x384", "8x128")  # run afterwards


@dataclass(frozen=True)
class Cell:
    """All rates of one model, horizon and batch."""

    family: str
    rung: Rung
    rates: np.ndarray  # ascending
    losses: np.ndarray

    @property
    def setting(self) -> tuple[str, int, int]:
        return self.family, int(self.rung.parameters), int(self.rung.tokens)

    def snap(self, rate: float) -> float:
        """Return the rate of the table that is nearest on the logarithmic axis."""
        return float(self.rates[int(np.argmin(abs(np.log(self.rates / rate))))])

    def regret(self, rate: float) -> float:
        """Return the loss at the nearest rate of the table above the lowest loss, at most that of a diverged run."""
        loss = float(self.losses[int(np.argmin(abs(np.log(self.rates / rate))))])
        return min(DIVERGED_NATS, loss - float(self.losses.min()))

    def observe(self, rate: float) -> float:
        """Return the loss of a run of the table; infinite for one that ended a nat above the best of a lower rate.

        A run at a rate that is too low is only slow.
        """
        number = int(np.argmin(abs(np.log(self.rates / rate))))
        loss = float(self.losses[number])
        return loss if number <= self.losses.argmin() or loss < self.losses.min() + DIVERGED_NATS else math.inf

    @property
    def bracketed(self) -> bool:
        """Return whether the best rate has a worse finite one on both sides, so that the minimum is known."""
        best = int(np.argmin(self.losses))
        finite = np.flatnonzero(self.losses < self.losses.min() + DIVERGED_NATS)
        return bool(finite.min() < best < finite.max())

    def optimum(self) -> float:
        """Return ln of the minimum of the cubic through the rates around the best, or of the parabola through three.

        It is no part of the strategies' own model.
        """
        x = np.log(self.rates)
        best = int(np.argmin(self.losses))
        finite = self.losses < self.losses.min() + DIVERGED_NATS
        near = (abs(x - x[best]) < AROUND) & finite
        if near.sum() < 4:
            near = finite & (abs(np.arange(len(x)) - best) <= 1)
        if near.sum() < 3:
            return float(x[best])
        curve = np.polynomial.Polynomial.fit(x[near], self.losses[near], min(3, int(near.sum()) - 1))
        grid = np.linspace(x[near].min(), x[near].max(), 400)
        return float(grid[int(np.argmin(curve(grid)))])


def read_cells(path: Path) -> list[Cell]:
    """Return the cells of a CSV, or of a grid of h200.py."""
    if path.suffix == ".json":
        return _read_grid(json.loads(path.read_text()))
    with path.open() as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    groups: dict[tuple[str, int, int, int], dict[float, float]] = defaultdict(dict)
    for row in rows:
        key = (row.get("family") or path.stem, int(row["n"]), int(row["tokens"]), int(row["batch_tokens"]))
        groups[key][float(row["lr"])] = float(row["loss"])
    cells = []
    for (family, size, tokens, batch), losses in sorted(groups.items()):
        name = f"{family}-{size / 1e6:.4g}M-{tokens / 1e9:.4g}B-{batch // 1024}k"
        # a dollar buys 6e18 FLOPs
        about = Rung(name=name, parameters=size, tokens=tokens, batch_tokens=batch, usd=size * tokens / 1e18)
        cells.append(cell_of(family, about, losses))
    return cells


def cell_of(family: str, about: Rung, losses: dict[float, float]) -> Cell:
    """Return a cell from the losses of its rates; `about` is its rung, without these."""
    rates = sorted(losses)
    return Cell(family, replace(about, rates=tuple(rates)), np.array(rates), np.array([losses[one] for one in rates]))


def _read_grid(found: dict[str, Any]) -> list[Cell]:
    """Return a grid's cells: the mean of the seeds, at the mean of the seconds as dollars."""
    from h200 import configured

    from skytrain.tuning.trials import target_shape, trial_shapes

    config = configured("/nowhere", found["target"], found["small"])
    shapes = {one.name: one for one in (*trial_shapes(config), target_shape(config))}
    by_rung: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    seconds: dict[str, list[float]] = defaultdict(list)
    for row in found["rows"]:
        by_rung[row["rung"]][row["rate"]].append(99.0 if row["loss"] is None else row["loss"])
        seconds[row["rung"]].append(row["seconds"])
    cells = []
    for name, losses in by_rung.items():
        if len(losses) >= LEAST_RATES:
            rung = replace(shapes[name].rung(float(np.mean(seconds[name]))), name=f"{found['target']}-{name}")
            means = {rate: float(np.mean(each)) for rate, each in losses.items()}
            cells.append(cell_of(found["target"], rung, means))
    return cells


def fit_law(cells: Sequence[Cell], optima: dict[str, float]) -> BatchAware:
    """Return the batch-aware form, fitted to the optima of the cells with Huber's loss."""
    rungs = [cell.rung for cell in cells]
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
