"""The plot of a load test: speed and waiting time over concurrency."""

from __future__ import annotations

from collections.abc import Sequence

from ..bench import LoadLevel
from .axes import Plot, PlotLayer


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
