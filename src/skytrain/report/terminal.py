"""Draws plots in plain text with braille characters, of 2 x 4 dots each."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

DOT_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # Unicode's bit of a dot, by column and row
BRAILLE = 0x2800
LABEL_WIDTH = 8
BARS = "▁▂▃▄▅▆▇█"
TRENDS = {
    "losses": ("train/loss", ".4f"),
    "val loss": ("val/loss", ".4f"),
    "speeds": ("perf/tokens_per_s", ",.0f"),
}
Point = tuple[int, float]


def sparkline(values: Sequence[float], columns: int = 32) -> str:
    """Return the values as one line of bars, the newest at the right; what is not finite is a cross."""
    if not values:
        return ""
    columns = min(columns, len(values))
    bounds = [len(values) * at // columns for at in range(columns + 1)]
    means = [sum(part) / len(part) for part in (values[a:b] for a, b in itertools.pairwise(bounds))]
    finite = [mean for mean in means if math.isfinite(mean)]
    low = min(finite, default=0.0)
    span = (max(finite, default=0.0) - low) or 1.0
    top = len(BARS) - 1
    return "".join(BARS[round((mean - low) / span * top)] if math.isfinite(mean) else "x" for mean in means)


def trend_rows(records: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return the recent course of loss and speed as rows of a table, each with its first and last value."""
    rows = []
    for name, (metric, form) in TRENDS.items():
        values = [float(record[metric]) for record in records if record.get(metric) is not None]
        recent = values[len(values) // 10 :]  # the first steps fall so fast that all others would look flat
        if len(recent) > 1:
            rows.append((name, f"{recent[0]:{form}} {sparkline(recent)} {recent[-1]:{form}}"))
    return rows


def loss_curve(records: Iterable[Mapping[str, Any]], *, columns: int = 60, rows: int = 10) -> str:
    """Plot training loss over steps as a line, and validation losses as `o`; empty with fewer than two points.

    The line is the mean of the losses that share a column of dots.
    """
    records = list(records)
    train = _points(records, "train/loss")
    validation = _points(records, "val/loss")
    if len(train) < 2:
        return ""
    line = _column_means(train, columns * 2)
    values = [value for _, value in [*line, *validation]]
    low = min(values)
    high = max(values)
    first = train[0][0]
    last = train[-1][0]

    def height(value: float, cells: int) -> int:
        return round((high - value) / ((high - low) or 1.0) * (cells - 1))

    grid = _draw([(column, height(value, rows * 4)) for column, value in line], columns, rows)
    for step, value in validation:
        grid[height(value, rows)][min(columns - 1, (step - first) * columns // max(1, last - first))] = "o"
    title = "loss: training (line)" + (", validation (o)" if validation else "")
    return _with_axes(grid, title, (f"{low:.2f}", f"{high:.2f}"), (first, last))


def metric_curve(points: Sequence[Point], title: str, *, columns: int = 60, rows: int = 8) -> str:
    """Plot a metric over the steps at which it was measured."""
    points = sorted(points)
    values = [value for _, value in points]
    low = min(values)
    high = max(values)
    first = points[0][0]
    last = points[-1][0]
    dots = [
        (
            (step - first) * (columns * 2 - 1) // max(1, last - first),
            round((high - value) / ((high - low) or 1.0) * (rows * 4 - 1)),
        )
        for step, value in points
    ]
    return _with_axes(_draw(dots, columns, rows), title, (score_text(low), score_text(high)), (first, last))


def score_text(value: float, sign: str = "") -> str:
    """Return a loss or score with four decimals; the perplexity of a word has no bound, so a huge value has an exponent."""
    return format(value, f"{sign}.4f" if abs(value) < 1e6 else f"{sign}.4g")


def _with_axes(grid: Sequence[Sequence[str]], title: str, values: tuple[str, str], steps: tuple[int, int]) -> str:
    """Return the grid with a title, and with the lowest and highest value and step at its edges."""
    columns = len(grid[0])
    labels = {0: values[1], len(grid) - 1: values[0]}
    lines = [f"{labels.get(row, ''):>{LABEL_WIDTH}} │{''.join(cells).rstrip()}" for row, cells in enumerate(grid)]
    axis = f"{'step':>{LABEL_WIDTH}} └{'─' * columns}"
    ends = f"{'':{LABEL_WIDTH}}  {steps[0]:<{columns // 2}}{steps[1]:>{columns - columns // 2}}"
    return "\n".join([f"{'':{LABEL_WIDTH}}  {title}", *lines, axis, ends])


def _points(records: Iterable[Mapping[str, Any]], name: str) -> list[Point]:
    return [(record["step"], record[name]) for record in records if name in record]


def _column_means(points: Sequence[Point], columns: int) -> list[Point]:
    first = points[0][0]
    last = points[-1][0]
    by_column: dict[int, list[float]] = {}
    for step, value in points:
        by_column.setdefault((step - first) * (columns - 1) // max(1, last - first), []).append(value)
    return [(column, sum(values) / len(values)) for column, values in sorted(by_column.items())]


def _draw(dots: Sequence[tuple[int, int]], columns: int, rows: int) -> list[list[str]]:
    """Draw straight lines between neighbouring dots."""
    bits = [[0] * columns for _ in range(rows)]
    for (x0, y0), (x1, y1) in zip(dots, [*dots[1:], dots[-1]], strict=True):
        steps = max(abs(x1 - x0), abs(y1 - y0), 1)
        for part in range(steps + 1):
            x = x0 + (x1 - x0) * part // steps
            y = y0 + (y1 - y0) * part // steps
            bits[y // 4][x // 2] |= DOT_BITS[x % 2][y % 4]
    return [[chr(BRAILLE + cell) if cell else " " for cell in row] for row in bits]
