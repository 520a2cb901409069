"""The plot of losses over what they cost."""

from __future__ import annotations

from collections.abc import Sequence

from .axes import XY, Plot, PlotLayer


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
