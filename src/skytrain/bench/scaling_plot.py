"""Plots speed over ranks as SVG; a dozen lines need no library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 760
HEIGHT = 440
LEFT = 80
RIGHT = 190
TOP = 48
BOTTOM = 56
# Okabe and Ito's colours, which most colour-blind people can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31", "#7F3C8D", "#666666")


@dataclass(frozen=True)
class Series:
    """One mode at several numbers of ranks."""

    name: str
    points: Sequence[tuple[int, float]]  # ranks and tokens per second
    dashed: bool


def scaling_svg(title: str, single: float, largest: int, series: Sequence[Series]) -> str:
    """Return the plot as SVG. Both axes are logarithmic, so the ideal, `single` times the ranks, is a straight line."""
    speeds = [speed for each in series for _, speed in each.points] + [single, single * largest]
    low = min(speeds) * 0.8
    high = max(speeds) * 1.2

    def x(ranks: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (math.log2(ranks) / math.log2(largest) if largest > 1 else 0.5)

    def y(speed: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * math.log(speed / low) / math.log(high / low)

    def line(points: Sequence[tuple[int, float]], style: str) -> str:
        path = " ".join(f"{x(ranks):.1f},{y(speed):.1f}" for ranks, speed in points)
        return f'<polyline fill="none" {style} points="{path}"/>'

    def text(at_x: float, at_y: float, content: str, extra: str = "") -> str:
        return f'<text x="{at_x:.0f}" y="{at_y:.0f}" {extra}>{escape(content)}</text>'

    parts = [text(LEFT, 24, title, 'font-weight="bold"')]
    for ranks in (2**power for power in range(int(math.log2(largest)) + 1)):
        parts.append(line([(ranks, low), (ranks, high)], 'stroke="#ddd"'))
        parts.append(text(x(ranks), HEIGHT - BOTTOM + 20, str(ranks), 'text-anchor="middle"'))
    for speed in _ticks(low, high):
        parts.append(line([(1, speed), (largest, speed)], 'stroke="#ddd"'))
        parts.append(text(LEFT - 8, y(speed) + 4, f"{speed:,.0f}", 'text-anchor="end"'))
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, "ranks", 'text-anchor="middle"'))
    parts.append(text(LEFT - 8, TOP - 8, "tokens/s", 'text-anchor="end"'))
    parts.append(line([(1, single), (largest, single * largest)], 'stroke="#999" stroke-dasharray="2 4"'))
    names = list(dict.fromkeys(each.name for each in series))
    for each in series:
        colour = COLOURS[names.index(each.name) % len(COLOURS)]
        dashes = ' stroke-dasharray="7 4"' if each.dashed else ""
        parts.append(line(each.points, f'stroke="{colour}" stroke-width="2"{dashes}'))
        parts += [f'<circle cx="{x(n):.1f}" cy="{y(s):.1f}" r="3" fill="{colour}"/>' for n, s in each.points]
    legend = [(name, COLOURS[number % len(COLOURS)], "") for number, name in enumerate(names)]
    legend += [("same batch", "#444", "7 4"), ("ideal", "#999", "2 4")]
    for number, (name, colour, dashes) in enumerate(legend):
        at = TOP + 8 + number * 20
        parts.append(
            f'<line x1="{WIDTH - RIGHT + 20}" x2="{WIDTH - RIGHT + 46}" y1="{at}" y2="{at}" stroke="{colour}" '
            f'stroke-width="2" stroke-dasharray="{dashes or "none"}"/>'
        )
        parts.append(text(WIDTH - RIGHT + 52, at + 4, name))
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>\n{body}\n</svg>\n'
    )


def _ticks(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times the powers of ten within the range."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [step * 10.0**power for power in powers for step in (1, 2, 5) if low <= step * 10.0**power <= high]
