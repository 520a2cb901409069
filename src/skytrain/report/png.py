"""Draws the plots of `axes.py` as PNG: the few elements of their SVG, with Pillow and its font."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from xml.etree.ElementTree import Element, fromstring

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

SCALE = 2  # pixels per unit of the SVG
FONT_SIZE = 12
BOLD = 0.35  # width of the outline that makes letters bold, in units of the SVG
XY = tuple[float, float]


def png_of(svg: str) -> bytes:
    """Return a plot of `axes.py` as an image. Other elements of SVG are not supported."""
    from PIL import Image, ImageDraw

    root = fromstring(svg)  # noqa: S314 - drawn by this process
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    image = Image.new("RGB", (round(width * SCALE), round(height * SCALE)), "white")
    draw = ImageDraw.Draw(image, "RGBA")
    for element in root:
        DRAWERS[element.tag.rpartition("}")[2]](draw, element)
    body = io.BytesIO()
    image.save(body, "PNG", optimize=True)
    return body.getvalue()


def _rect(draw: ImageDraw, element: Element) -> None:
    x = _number(element, "x")
    y = _number(element, "y")
    corner = (x + _number(element, "width"), y + _number(element, "height"))
    draw.rectangle([*_scaled((x, y)), *_scaled(corner)], fill=element.attrib["fill"])


def _line(draw: ImageDraw, element: Element) -> None:
    ends = [(_number(element, f"x{end}"), _number(element, f"y{end}")) for end in (1, 2)]
    draw.line([_scaled(one) for one in ends], fill=element.attrib["stroke"], width=SCALE)


def _text(draw: ImageDraw, element: Element) -> None:
    from PIL import ImageFont

    anchor = {"middle": "ms", "end": "rs"}.get(element.attrib.get("text-anchor", ""), "ls")
    font: Any = ImageFont.load_default(FONT_SIZE * SCALE)
    bold = BOLD * SCALE if element.attrib.get("font-weight") == "bold" else 0
    place = _scaled((_number(element, "x"), _number(element, "y")))
    draw.text(place, element.text or "", fill="black", font=font, anchor=anchor, stroke_width=bold)


def _polyline(draw: ImageDraw, element: Element) -> None:
    points = _points(element)
    colour = element.attrib["stroke"]
    width = round(1.5 * SCALE)
    dash = element.attrib.get("stroke-dasharray")
    if dash is None:
        draw.line([_scaled(one) for one in points], fill=colour, width=width, joint="curve")
        return
    on, off = map(float, dash.split())
    for piece in _dashes(points, on, off):
        draw.line([_scaled(one) for one in piece], fill=colour, width=width)


def _dashes(points: Sequence[XY], on: float, off: float) -> list[tuple[XY, XY]]:
    """Return the drawn pieces of a dashed line, whose pattern continues around corners."""
    pieces = []
    travelled = 0.0
    for start, end in itertools.pairwise(points):
        length = ((end[0] - start[0]) ** 2 + (end[1] - start[1]) ** 2) ** 0.5
        done = 0.0
        while done < length:
            phase = (travelled + done) % (on + off)
            step = min(length - done, (on if phase < on else on + off) - phase)
            if phase < on:
                a, b = (_between(start, end, at / length) for at in (done, done + step))
                pieces.append((a, b))
            done += max(step, 1e-6)
        travelled += length
    return pieces


def _between(start: XY, end: XY, share: float) -> XY:
    return start[0] + (end[0] - start[0]) * share, start[1] + (end[1] - start[1]) * share


def _polygon(draw: ImageDraw, element: Element) -> None:
    from PIL import ImageColor

    red, green, blue = ImageColor.getrgb(element.attrib["fill"])[:3]
    opacity = round(255 * float(element.attrib["fill-opacity"]))
    draw.polygon([_scaled(one) for one in _points(element)], fill=(red, green, blue, opacity))


def _circle(draw: ImageDraw, element: Element) -> None:
    centre = (_number(element, "cx"), _number(element, "cy"))
    fill = element.attrib["fill"]
    x, y = _scaled(centre)
    radius = _number(element, "r") * SCALE
    box = [x - radius, y - radius, x + radius, y + radius]
    draw.ellipse(box, fill=None if fill == "none" else fill, outline=element.attrib.get("stroke"), width=SCALE)


def _path(draw: ImageDraw, element: Element) -> None:
    """Draw a cross: `M x y l8 8m0 -8l-8 8`."""
    place = (0.0, 0.0)
    for command, x, y in re.findall(r"([Mml])\s*(-?[\d.]+)[\s,]*(-?[\d.]+)", element.attrib["d"]):
        after = (float(x), float(y)) if command == "M" else (place[0] + float(x), place[1] + float(y))
        if command == "l":
            draw.line([_scaled(place), _scaled(after)], fill=element.attrib["stroke"], width=round(1.5 * SCALE))
        place = after


def _points(element: Element) -> list[XY]:
    numbers = [float(one) for one in re.split(r"[\s,]+", element.attrib["points"].strip()) if one]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def _number(element: Element, name: str) -> float:
    return float(element.attrib.get(name, 0.0))


def _scaled(point: XY) -> XY:
    return point[0] * SCALE, point[1] * SCALE


DRAWERS: dict[str, Callable[[Any, Element], None]] = {
    "rect": _rect,
    "line": _line,
    "text": _text,
    "polyline": _polyline,
    "polygon": _polygon,
    "circle": _circle,
    "path": _path,
}
