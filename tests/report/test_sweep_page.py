"""The page of a sweep: every plot is there and is well-formed."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import numpy as np

from skytrain.report import SweepReport, sweep_html, sweep_plots
from skytrain.tuning import Observation, OtherAnswer, Trial
from skytrain.tuning.conclusions import SweepMoney, conclusion_of, fitted_curves
from skytrain.tuning.problem import Answer
from tests.tuning.simulated import Truth, loss_of, make_problem


def make_report() -> SweepReport:
    problem, truth = make_problem(), Truth()
    trials = [Trial(rung.name, 2e-3 * step) for rung in problem.rungs[:3] for step in (0.5, 1.0, 2.0)]
    history = [
        Observation(trial=one, loss=loss_of(truth, problem, one), usd=0.01, seconds=30.0, extra={}) for one in trials
    ]
    history.append(Observation(Trial(problem.rungs[0].name, 0.1), math.inf, 0.01, 3.0))
    answer = Answer(rate=2e-3, low=1.5e-3, high=2.6e-3, regret_nats=0.001, divergence=0.0, why="fit <of> 9")
    conclusion = conclusion_of(problem, history, answer, "lr", SweepMoney(1.5, 0.08, 0.02, 1.0))
    steps = [{"step": step, "train/loss": 4.0 / step, "val/loss": 4.1 / step} for step in range(1, 9)]
    others = [OtherAnswer("grid", Answer(3e-3)), OtherAnswer("ladder", answer)]
    return SweepReport(
        name="demo",
        problem=problem,
        history=history,
        conclusion=conclusion,
        others=others,
        fit=fitted_curves(problem, history),
        curves={"a@1": steps},
    )


def test_every_plot_of_a_sweep_is_drawn_and_parses():
    plots = sweep_plots(make_report())
    assert set(plots) == {
        "training-loss",
        "validation-loss",
        "loss-over-rate",
        "optimum-over-size",
        "optimum-over-horizon",
        "spend",
        "answers",
    }
    for name, svg in plots.items():
        root = ElementTree.fromstring(svg)
        numbers = [float(node.get("cx", "0")) for node in root.iter() if node.tag.endswith("circle")]
        assert np.isfinite(numbers).all(), name


def test_the_page_is_self_contained_and_escapes_what_it_shows():
    report = make_report()
    report.history[0].extra["eval/hellaswag/llmc"] = 0.27
    page = sweep_html(report)
    assert "<th>hellaswag/llmc" in page and "<td>0.2700" in page
    assert "fit &lt;of&gt; 9" in page and "diverged" in page and page.count("<svg") == 7
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "") and "https://" not in page
