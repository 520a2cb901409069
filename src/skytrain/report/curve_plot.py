"""The plot of one metric of one or more runs, for a write-up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .axes import PALETTE, Plot, PlotLayer
from .curves import STDERR, RunCurves, has_minimum, thinned_curve, title_of

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
