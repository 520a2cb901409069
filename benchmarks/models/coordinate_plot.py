"""A row of log-log panels as one SVG file, without a plotting library."""

from __future__ import annotations

import math
from pathlib import Path

Panel = tuple[str, tuple[int, ...], dict[str, list[float]]]
COLOURS = ("#c0392b", "#2471a3", "#1e8449")
WIDTH = 300
HEIGHT = 250
LEFT = 48
TOP = 34
INNER_WIDTH = 230
INNER_HEIGHT = 165


def draw(panels: list[Panel], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    kinds = list(panels[0][2])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH * len(panels)}" height="{HEIGHT + 24}" '
        'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
    ]
    for number, panel in enumerate(panels):
        parts.append(f'<g transform="translate({number * WIDTH + LEFT},{TOP})">{_panel(panel)}</g>')
    for number, kind in enumerate(kinds):
        x = LEFT + 150 * number
        y = HEIGHT + 8
        parts.append(
            f'<circle cx="{x}" cy="{y}" r="5" fill="{COLOURS[number]}"/><text x="{x + 10}" y="{y + 4}">{kind}</text>'
        )
    path.write_text("\n".join([*parts, "</svg>"]) + "\n", encoding="utf-8")


def _panel(panel: Panel) -> str:
    title, sizes, curves = panel
    values = [value for curve in curves.values() for value in curve]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))

    def x(size: float) -> float:
        return INNER_WIDTH * math.log(size / sizes[0]) / math.log(sizes[-1] / sizes[0])

    def y(value: float) -> float:
        return INNER_HEIGHT * (1 - (math.log10(value) - low) / (high - low))

    parts = [f'<text x="0" y="-12" font-weight="bold">change of the {title}</text>']
    for power in range(low, high + 1):
        at = y(10.0**power)
        parts.append(f'<line x1="0" x2="{INNER_WIDTH}" y1="{at:.1f}" y2="{at:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="-6" y="{at + 4:.1f}" text-anchor="end">{10.0**power:g}</text>')
    for size in sizes:
        parts.append(f'<text x="{x(size):.1f}" y="{INNER_HEIGHT + 18}" text-anchor="middle">{size}</text>')
    for colour, curve in zip(COLOURS, curves.values(), strict=False):
        points = [(x(size), y(value)) for size, value in zip(sizes, curve, strict=True)]
        line = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"/>' for a, b in points]
    return "".join(parts)
