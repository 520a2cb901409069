"""Plots for a write-up, as SVG: metrics of runs, losses over what they cost, a load test, and the loss that dollars buy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from .axes import PALETTE, XY, Plot, PlotLayer
from .curves import STDERR, RunCurves, has_minimum, thinned_curve, title_of

if TYPE_CHECKING:
    from ..bench import LoadLevel
    from ..planning import BestRow, LossLaw

PLOT_BUCKETS = 400
CHANCE_COLOUR = 6  # black
LABELLED = 6  # most minima that have a text: more would cover each other
UNITS = {"hours": "hours of training"}


def curves_svg(runs: Sequence[RunCurves], metric: str, axis: str, *, log_y: bool = False) -> str:
    """Return the metric of these runs over the axis, with minima, error bars and the level of chance."""
    layers: list[PlotLayer] = []
    marks: list[tuple[float, float]] = []
    chances = set()
    for colour, run in enumerate(runs):
        curve = run.curves.get(metric)
        if curve is None or not len(curve.steps):
            continue
        drawn = thinned_curve(curve, PLOT_BUCKETS)
        xs = run.along(axis, drawn["x"])
        if "low" in drawn:
            band = [*_points(xs, drawn["low"]), *reversed(_points(xs, drawn["high"]))]
            layers.append(PlotLayer("", band, "band", colour))
        kind = "line" if colour < len(PALETTE) else "dashes"  # then colours begin again
        layers.append(PlotLayer(run.name, _points(xs, drawn["y"]), kind, colour))
        layers += _errors(run, metric, axis, colour)
        if has_minimum(metric):
            lowest = int(np.argmin(curve.values))
            at = run.along(axis, curve.steps[lowest : lowest + 1])
            marks.append((float(at[0]), float(curve.values[lowest])))
        chance = run.chance(metric)
        if chance is not None:
            chances.add(chance)
    every = [x for layer in layers for x, _ in layer.points]
    for chance in sorted(chances) if every else []:
        ends = [(min(every), chance), (max(every), chance)]
        layers.append(PlotLayer(f"chance {chance:.3g}", ends, "dashes", CHANCE_COLOUR))
    title, unit = title_of(metric)
    return Plot(
        title=title,
        x_label=UNITS.get(axis, axis),
        y_label=unit,
        layers=layers,
        log_y=log_y,
        marks=[mark for mark in marks if np.isfinite(mark).all()],
        mark_labels=[f"{y:.4g}" for x, y in marks if np.isfinite(x)] if len(marks) <= LABELLED else (),
    ).svg()


def _errors(run: RunCurves, metric: str, axis: str, colour: int) -> list[PlotLayer]:
    """Return the standard errors of a task as bars, and its points."""
    errors = run.curves.get(metric + STDERR)
    if errors is None or not len(errors.steps):
        return []
    curve = run.curves[metric]
    xs = run.along(axis, curve.steps)
    size = np.interp(curve.steps, errors.steps, errors.values)
    bars = np.stack([curve.values - size, curve.values + size], axis=1).ravel()
    return [
        PlotLayer("", _points(np.repeat(xs, 2), bars), "errors", colour),
        PlotLayer("", _points(xs, curve.values), "dots", colour),
    ]


def _points(xs: np.ndarray, ys: np.ndarray) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in zip(xs, ys, strict=True)]


def loss_svg(x_label: str, curves: Sequence[tuple[str, Sequence[Sequence[XY]]]], loss: float | None = None) -> str:
    """Plot the curves of each name, one line for each seed, with a dashed line at `loss`."""
    layers = [
        PlotLayer(name, run, kind, colour)
        for colour, (name, runs) in enumerate(curves)
        for run in runs
        for kind in ("line", "dots")
    ]
    ends = [x for _, runs in curves for run in runs for x, _ in run]
    if loss is not None and ends:
        layers.append(PlotLayer("", [(min(ends), loss), (max(ends), loss)], "dashes", 6))
    return Plot(
        title="validation loss", x_label=x_label, y_label="loss, nats", layers=layers, log_x=True, log_y=False
    ).svg()


def load_svg(title: str, levels: Sequence[LoadLevel]) -> str:
    """Plot tokens per second and the time to the first token over concurrency; empty if all requests failed."""
    done = [level for level in levels if level.completed]
    layers = [
        PlotLayer("tokens/s", [(level.concurrency, level.tokens_per_s) for level in done], "line", 0),
        PlotLayer("tokens/s", [(level.concurrency, level.tokens_per_s) for level in done], "dots", 0),
    ]
    for colour, percentile in enumerate((50, 95, 99), start=1):
        name = f"first token p{percentile}, ms"
        points = [(level.concurrency, 1000 * level.first_token[percentile]) for level in done]
        layers += [PlotLayer(name, points, "line", colour), PlotLayer(name, points, "dots", colour)]
    return Plot(
        title=title, x_label="requests at once", y_label="tokens/s, milliseconds", layers=layers, log_x=True, log_y=True
    ).svg()


def best_svg(frontier: Sequence[BestRow], choice: BestRow, law: LossLaw, second: LossLaw) -> str:
    """Plot the expected loss of the best model over the budget, with its 80% interval, by both laws."""
    lows = [(row.budget_usd, row.forecast.low) for row in frontier]
    highs = [(row.budget_usd, row.forecast.high) for row in frontier]
    points = [(row.budget_usd, row.forecast.loss) for row in frontier]
    layers = [
        PlotLayer("80% interval", [*lows, *reversed(highs)], "band", 0),
        PlotLayer(law.name, points, "line", 0),
        PlotLayer(law.name, points, "dots", 0),
        PlotLayer(second.name, [(row.budget_usd, row.other.loss) for row in frontier], "dashes", 1),
    ]
    return Plot(
        title=f"the lowest expected loss for a budget, {choice.config.data.name}",
        x_label="budget, dollars",
        y_label="loss, nats per token",
        layers=layers,
        log_x=True,
        marks=[(choice.budget_usd, choice.forecast.loss)],
    ).svg()
