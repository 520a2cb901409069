"""The plot of `plan --best`: the loss that dollars buy."""

from __future__ import annotations

from collections.abc import Sequence

from ..planning import BestRow, LossLaw
from .axes import Plot, PlotLayer


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
