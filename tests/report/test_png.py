"""Plots as PNG: every kind of mark is drawn, where the SVG has it."""

from __future__ import annotations

import io

from PIL import Image

from skytrain.report import png_of
from skytrain.report.axes import PALETTE, Plot, PlotLayer


def colours(plot: Plot) -> dict[tuple[int, ...], int]:
    image = Image.open(io.BytesIO(png_of(plot.svg())))
    assert image.size == (1280, 800)
    return {colour: count for count, colour in image.getcolors(1 << 20)}


def test_every_kind_of_mark_is_in_the_picture():
    points = [(1.0, 2.0), (10.0, 3.0), (100.0, 2.5)]
    band = [*points, (100.0, 2.9), (1.0, 2.4)]
    for number, kind in enumerate(("dots", "line", "dashes", "crosses")):
        shade = tuple(int(PALETTE[number][place : place + 2], 16) for place in (1, 3, 5))
        with_marks = colours(Plot("t", "x", "y", [PlotLayer("", points, kind, number)], log_x=True))
        assert with_marks.get(shade, 0) > 50, kind
    filled = colours(Plot("t", "x", "y", [PlotLayer("", band, "band", 0)], log_x=True))
    shades = [colour for colour, count in filled.items() if count > 1000]
    assert any(abs(red - 217) < 3 and abs(green - 234) < 3 and abs(blue - 243) < 3 for red, green, blue in shades)


def test_dashes_leave_gaps():
    points = [(0.0, 0.0), (1.0, 1.0)]
    blue = (0, 0x72, 0xB2)
    drawn = {kind: colours(Plot("", "", "", [PlotLayer("", points, kind, 0)]))[blue] for kind in ("line", "dashes")}
    assert 0.4 < drawn["dashes"] / drawn["line"] < 0.8


def test_a_logarithmic_axis_of_a_narrow_range_has_labels():
    svg = Plot("", "", "", [PlotLayer("", [(0.149, 1.0), (0.16, 2.0)])], log_x=True).svg()
    assert ">0.15<" in svg
    assert ">0.16<" in svg
