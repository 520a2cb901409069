"""A sweep as plots and as one self-contained HTML page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

import numpy as np

from ..tuning import Conclusion, JointFit, Observation, OtherAnswer, Problem, Rung
from .axes import Plot, PlotLayer
from .page import html_page, html_plots, html_section, html_table
from .tables import trial_rows


@dataclass(frozen=True)
class SweepReport:
    """The contents of the page."""

    name: str
    problem: Problem
    history: Sequence[Observation]
    conclusion: Conclusion
    others: Sequence[OtherAnswer]
    fit: JointFit | None  # None if no trial has a loss
    curves: Mapping[str, Sequence[Mapping[str, Any]]]  # metrics of each trial's run


def sweep_plots(report: SweepReport) -> dict[str, str]:
    """Return SVG by name: losses, rates, optima over size and horizon, spend, answers."""
    plots = {
        "training-loss": _training(report, "train/loss", "training loss"),
        "validation-loss": _training(report, "val/loss", "validation loss"),
        "loss-over-rate": _rates(report),
        "optimum-over-size": _optima(report, "parameters"),
        "optimum-over-horizon": _optima(report, "tokens"),
        "spend": _spend(report),
        "answers": _answers(report),
    }
    drawn = {name: plot.svg() for name, plot in plots.items()}
    return {name: svg for name, svg in drawn.items() if svg}


def sweep_html(report: SweepReport) -> str:
    """Return a page with the answer, the plots and the table of trials."""
    conclusion = report.conclusion
    answer = "<br>".join(escape(line) for line in conclusion.lines())
    warnings = "".join(f"<p><b>{escape(line)}</b></p>" for line in conclusion.warnings)
    trials = html_table(trial_rows(report.history))
    return html_page(
        report.name,
        [f"<p>{answer}</p>", warnings, html_plots(sweep_plots(report).values()), html_section("Trials", trials)],
        attributes=' class="wide"',
    )


def _training(report: SweepReport, metric: str, title: str) -> Plot:
    """Plot the curve of each trial over its steps, with its minimum marked."""
    layers = []
    marks = []
    for colour, (name, records) in enumerate(report.curves.items()):
        points = [(float(one["step"]), float(one[metric])) for one in records if metric in one]
        points = [point for point in points if math.isfinite(point[1])]
        if points:
            layers.append(PlotLayer(name, points, "line", colour))
            marks.append(min(points, key=lambda point: point[1]))
    return Plot(title=f"{title} of the trials", x_label="step", y_label="nats", layers=layers, marks=marks)


def _rates(report: SweepReport) -> Plot:
    """Plot loss over rate for each rung with its fit; diverged rates are crosses at the top."""
    layers: list[PlotLayer] = []
    names = list(dict.fromkeys(one.trial.rung for one in report.history))
    finite = [one.loss for one in report.history if one.finite]
    top = max(finite, default=1.0)
    marks = []
    for colour, name in enumerate(names):
        of_rung = [one for one in report.history if one.trial.rung == name]
        layers.append(PlotLayer(name, [(one.trial.rate, one.loss) for one in of_rung if one.finite], "dots", colour))
        crosses = [(one.trial.rate, top) for one in of_rung if one.diverged]
        layers.append(PlotLayer("", crosses, "crosses", colour))
        curve = next((one for one in report.fit.curves if one.rung.name == name), None) if report.fit else None
        rates = [one.trial.rate for one in of_rung if one.finite]
        if curve is not None and rates:
            span = np.geomspace(min(*rates, curve.optimum), max(*rates, curve.optimum), 60)
            line = [(float(x), float(y)) for x, y in zip(span, curve.loss(span), strict=True) if y <= top + 0.05]
            layers.append(PlotLayer("", line, "line", colour))
            marks.append((curve.optimum, curve.floor))
    return Plot(
        title="loss over the tuned value",
        x_label=report.conclusion.axis,
        y_label="nats",
        layers=layers,
        log_x=True,
        marks=marks,
    )


def _optima(report: SweepReport, axis: str) -> Plot:
    """Plot the rungs' optima, the projection to the target and its 80% interval."""
    curves = report.fit.curves if report.fit else ()
    points = [(float(getattr(curve.rung, axis)), curve.optimum) for curve in curves]
    bars = [
        PlotLayer("", [(x, curve.low), (x, curve.high)], "line", 0)
        for (x, _), curve in zip(points, curves, strict=True)
    ]
    answer = report.conclusion.answer
    target = float(getattr(report.problem.target, axis))
    layers = [PlotLayer("rungs", points, "dots", 0), *bars, PlotLayer("answer", [(target, answer.rate)], "dots", 1)]
    if answer.low is not None and answer.high is not None:
        layers.append(PlotLayer("80% interval", [(target, answer.low), (target, answer.high)], "line", 1))
    layers += _projection(report, axis)
    return Plot(
        title=f"best value over {axis}",
        x_label=axis,
        y_label=report.conclusion.axis,
        layers=layers,
        log_x=True,
        log_y=True,
    )


def _projection(report: SweepReport, axis: str) -> list[PlotLayer]:
    """Return what is believed along one axis, from the smallest rung to the target, with its 80% band."""
    if report.fit is None or not report.fit.curves:
        return []
    target = report.problem.target
    lowest = min(float(getattr(curve.rung, axis)) for curve in report.fit.curves)
    goal = float(getattr(target, axis))
    if lowest >= goal:
        return []
    places = np.geomspace(lowest, goal, 12)
    low, middle, high = report.fit.projected([_moved(target, axis, float(place)) for place in places]).T
    band = [*zip(places, low, strict=True), *zip(places[::-1], high[::-1], strict=True)]
    return [
        PlotLayer("projection", [(float(x), float(y)) for x, y in zip(places, middle, strict=True)], "dashes", 2),
        PlotLayer("", [(float(x), float(y)) for x, y in band], "band", 2),
    ]


def _moved(target: Rung, axis: str, value: float) -> Rung:
    return replace(target, parameters=value) if axis == "parameters" else replace(target, tokens=value)


def _spend(report: SweepReport) -> Plot:
    hours = np.cumsum([one.seconds for one in report.history]) / 3600
    usd = np.cumsum([one.usd for one in report.history])
    points = [(0.0, 0.0), *((float(x), float(y)) for x, y in zip(hours, usd, strict=True))]
    money = report.conclusion.money
    end = points[-1][0]
    layers = [
        PlotLayer("trials", points, "line", 0),
        PlotLayer("all that was spent", [(end, money.spent_usd)], "dots", 1),
        PlotLayer("budget of the search", [(0.0, at := money.budget_usd - money.final_usd), (end, at)], "dashes", 2),
    ]
    return Plot(
        title="spend of the search",
        x_label="hours",
        y_label="dollars",
        layers=layers if len(usd) else [],
    )


def _answers(report: SweepReport) -> Plot:
    """Plot what each strategy would have answered from the same trials."""
    layers = []
    for number, one in enumerate(report.others, 1):
        answer = one.answer
        layers.append(PlotLayer("", [(answer.rate, float(number))], "dots", number))
        if answer.low is not None and answer.high is not None:
            layers.append(PlotLayer("", [(answer.low, float(number)), (answer.high, float(number))], "line", number))
    return Plot(
        title="answers from the same trials",
        x_label=report.conclusion.axis,
        y_label="",
        layers=layers,
        log_x=True,
        y_names=[one.strategy for one in report.others],
    )
