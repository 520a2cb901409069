"""Plots as SVG, without a library: points, lines and bands on axes that may be logarithmic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from ..config import format_count
from .page import encodable

WIDTH = 640
HEIGHT = 400
LEFT = 76
TOP = 44
BOTTOM = 52
RIGHT = 168
RIGHT_WITHOUT_LEGEND = 24
LETTER = 7  # width of a letter, about
LEGEND_LETTERS = 20  # of longer names the middle is left out: names of runs end with the hash that tells them apart
LINE_HEIGHT = 14
# Okabe and Ito's colours, which most colour-blind people can tell apart.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31", "#7F3C8D")
XY = tuple[float, float]


@dataclass(frozen=True)
class PlotLayer:
    """One kind of mark in one colour; the name goes to the legend."""

    name: str
    points: Sequence[XY]
    # dots, line, dashes, crosses, band (x, low then x, high backwards) or errors (x, low and x, high by turns)
    kind: str = "dots"
    colour: int = 0


@dataclass(frozen=True)
class Plot:
    """A plot of layers on two axes."""

    title: str
    x_label: str
    y_label: str
    layers: Sequence[PlotLayer]
    log_x: bool = False
    log_y: bool = False
    marks: Sequence[XY] = field(default=())  # circled: minima
    mark_labels: Sequence[str] = ()  # a text at each mark, or none
    y_names: Sequence[str] = ()  # names at 1, 2, ... in place of numbers

    def svg(self) -> str:
        """Return the plot as one SVG element; empty if there is nothing to draw."""
        every = [point for layer in self.layers for point in layer.points if self._has_place(point)]
        if not every:
            return ""
        xs, ys = (_span([point[number] for point in every], log) for number, log in ((0, self.log_x), (1, self.log_y)))

        end = WIDTH - (RIGHT if any(layer.name for layer in self.layers) else RIGHT_WITHOUT_LEGEND)
        left = max([LEFT, *(24 + LETTER * len(name) for name in self.y_names)])

        def place(point: XY) -> XY:
            x = _share(point[0], xs, self.log_x)
            y = _share(point[1], ys, self.log_y)
            return left + (end - left) * x, HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * y

        parts = [_text(left, 18, self.title, 'font-weight="bold"')]
        for value in _ticks(*xs, self.log_x):
            x, _ = place((value, ys[0]))
            parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="#ddd"/>')
            parts.append(_text(x, HEIGHT - BOTTOM + 18, _label(value), 'text-anchor="middle"'))
        numbers = [(value, _label(value)) for value in _ticks(*ys, self.log_y)]
        for value, name in [(float(at), name) for at, name in enumerate(self.y_names, 1)] or numbers:
            _, y = place((xs[0], value))
            parts.append(f'<line x1="{left}" x2="{end}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
            parts.append(_text(left - 8, y + 4, name, 'text-anchor="end"'))
        parts.append(_text((left + end) / 2, HEIGHT - 12, self.x_label, 'text-anchor="middle"'))
        parts.append(_text(8, TOP - 8, self.y_label))
        for layer in self.layers:
            placed = [place(point) for point in layer.points if self._has_place(point)]
            parts += _marks(layer.kind, placed, PALETTE[layer.colour % len(PALETTE)])
        for point in self.marks:
            x, y = place(point)
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="7" fill="none" stroke="#000"/>')
        parts += _labels_at([place(point) for point in self.marks], self.mark_labels)
        return _document([*parts, *self._legend()])

    def _has_place(self, point: XY) -> bool:
        """Return whether the axes have the point: a logarithmic axis has neither zero nor negative values."""
        return all(
            math.isfinite(value) and (value > 0 or not log)
            for value, log in zip(point, (self.log_x, self.log_y), strict=True)
        )

    def _legend(self) -> list[str]:
        names = {layer.name: layer.colour for layer in reversed(self.layers) if layer.name}
        parts = []
        for number, (name, colour) in enumerate(list(reversed(names.items()))[:20]):
            y = TOP + 8 + 18 * number
            shade = PALETTE[colour % len(PALETTE)]
            parts.append(f'<rect x="{WIDTH - RIGHT + 14}" y="{y - 5}" width="10" height="10" fill="{shade}"/>')
            short = (
                name
                if len(name) <= LEGEND_LETTERS
                else f"{name[: LEGEND_LETTERS // 2 - 1]}..{name[1 - LEGEND_LETTERS // 2 :]}"
            )
            parts.append(_text(WIDTH - RIGHT + 30, y + 4, short))
        return parts


def _labels_at(places: Sequence[XY], labels: Sequence[str]) -> list[str]:
    """Return a text left of and below each place, where the curve of a minimum is not; each below those that it would cover."""
    parts = []
    taken: list[XY] = []
    for (x, y), label in sorted(zip(places, labels, strict=False), key=lambda each: each[0][1]):
        width = LETTER * len(label)
        for other_x, other_y in taken:
            if abs(x - other_x) < width and y < other_y + LINE_HEIGHT:
                y = other_y + LINE_HEIGHT
        taken.append((x, y))
        parts.append(_text(x - 7, y + 16, label, 'text-anchor="end"'))
    return parts


def _marks(kind: str, placed: Sequence[XY], colour: str) -> list[str]:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
    if kind == "band":
        return [f'<polygon points="{path}" fill="{colour}" fill-opacity="0.15"/>']
    if kind in ("line", "dashes"):
        dashes = ' stroke-dasharray="6 4"' if kind == "dashes" else ""
        return [f'<polyline fill="none" stroke="{colour}" stroke-width="1.5"{dashes} points="{path}"/>']
    if kind == "errors":
        ends = [
            f'<line x1="{x - 4:.1f}" x2="{x + 4:.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke="{colour}"/>' for x, y in placed
        ]
        pairs = zip(placed[::2], placed[1::2], strict=True)
        bars = [
            f'<line x1="{a[0]:.1f}" x2="{b[0]:.1f}" y1="{a[1]:.1f}" y2="{b[1]:.1f}" stroke="{colour}"/>'
            for a, b in pairs
        ]
        return [*ends, *bars]
    if kind == "crosses":
        return [
            f'<path d="M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8" stroke="{colour}" stroke-width="1.5"/>'
            for x, y in placed
        ]
    return [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in placed]


def _document(parts: Sequence[str]) -> str:
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="12">\n<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>\n{body}\n</svg>\n'
    )


def _text(x: float, y: float, content: str, extra: str = "") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" {extra}>{escape(encodable(content))}</text>'


def _label(value: float) -> str:
    return format_count(value) if abs(value) >= 10_000 else f"{value:.4g}"


def _span(values: Sequence[float], log: bool) -> XY:
    """Return the range of an axis, with a margin at both ends."""
    low = min(values)
    high = max(values)
    if log:
        margin = max(1.05, (high / low) ** 0.06)
        return low / margin, high * margin
    margin = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    return low - margin, high + margin


def _share(value: float, span: XY, log: bool) -> float:
    low, high = span
    return math.log(value / low) / math.log(high / low) if log else (value - low) / (high - low)


def _ticks(low: float, high: float, log: bool) -> list[float]:
    if log:
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        round_values = [step * 10.0**power for power in powers for step in (1, 2, 5)]
        ticks = [value for value in round_values if low <= value <= high]
        if len(ticks) > 1:
            return ticks
        # A narrow range, such as 0.14 to 0.17: evenly spaced labels say more than one label or none.
    step = 10 ** math.floor(math.log10((high - low) / 4))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (factor * step) <= 6)
    first = math.ceil(low / step)
    return [step * number for number in range(first, math.floor(high / step) + 1)]
