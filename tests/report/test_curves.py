"""Curves as data: thinned without losing a spike, on every axis, with what is not finite counted."""

import json
import math

import numpy as np

from skytrain.config import BatchSizes
from skytrain.report import RunCurves, curves_of, dashboard_data, page_data, shown_metrics
from skytrain.report.curves import BUCKETS, thinned_curve
from skytrain.report.page import html_data, html_page
from skytrain.runs import RunStatus
from skytrain.tuning import SweepStatus


def run_of(records, **more):
    return RunCurves(
        name="r",
        status=RunStatus("r", "done", step=4, total_steps=4),
        parameters=1000,
        batches=BatchSizes(256),
        curves=curves_of(records),
        **more,
    )


def test_a_spike_of_one_step_survives_thinning():
    records = [{"step": step, "m": 1e6 if step == 77_777 else 1.0} for step in range(1, 100_001)]
    drawn = thinned_curve(curves_of(records)["m"], 500)
    assert len(drawn["x"]) == 500 and drawn["high"].max() == 1e6 and drawn["low"].max() == 1.0
    assert np.all(np.diff(drawn["x"]) > 0)
    at = int(drawn["high"].argmax())
    assert abs(drawn["x"][at] - 77_777) <= 100, "the bucket is where the spike was"


def test_a_short_curve_is_not_touched():
    curve = curves_of([{"step": step, "m": step / 7} for step in range(10)])["m"]
    assert list(thinned_curve(curve, BUCKETS[0])["y"]) == [step / 7 for step in range(10)]


def test_steps_become_tokens_hours_and_dollars():
    records = [{"step": step, "perf/step_ms": 3.6e6, "cost/usd": 2.0 * step} for step in (1, 2, 4)]
    run = run_of(records)
    steps = np.array([1.0, 3.0, 4.0])
    assert list(run.along("tokens", steps)) == [256, 768, 1024]
    assert list(run.along("hours", steps)) == [1, 3, 4] and list(run.along("dollars", steps)) == [2, 6, 8]
    assert np.isnan(run_of([{"step": 1, "train/loss": 1.0}]).along("dollars", steps)).all()


def test_values_that_are_not_finite_are_counted_and_not_drawn():
    data = page_data([run_of([{"step": 1, "train/loss": 3.0}, *({"step": s, "train/loss": math.nan} for s in (2, 3))])])
    loss = data["runs"][0]["curves"]["train/loss"]
    assert loss["x"] == [1] and loss["not_finite"] == [2, 2]
    json.dumps(data, allow_nan=False)


def test_a_run_that_diverged_says_nan_and_not_that_there_is_no_loss():
    status = RunStatus("r", "done", step=4, total_steps=4, loss=math.nan, val_loss=math.inf)
    data = page_data([RunCurves(name="r", status=status, parameters=1000, batches=BatchSizes(256), curves={})])
    assert dict(data["runs"][0]["facts"])["training loss"] == "nan"
    row = dashboard_data("store", [status], [], None, None, "")["runs"][0]
    assert row["cells"][2:4] == ["nan", "inf"]
    json.dumps(row, allow_nan=False)


def test_the_table_of_runs_says_nothing_twice():
    spent = {"total_steps": 9, "usd": 3.0, "projected_usd": 4.0, "attempts": 4}
    done = RunStatus("r", "done", step=9, interruptions=3, **spent)
    running = RunStatus("r", "running", step=4, **spent)
    rows = page_data(
        [
            RunCurves(name="r", status=each, parameters=1000, batches=BatchSizes(256), curves={})
            for each in (done, running)
        ]
    )["runs"]
    shown = [{name: dict(row["facts"])[name] for name in ("steps", "projected", "attempts")} for row in rows]
    assert shown[0] == {"steps": "9", "projected": "-", "attempts": "4 (3 interrupted)"}
    assert shown[1] == {"steps": "4 of 9", "projected": "4.00", "attempts": "4"}


def test_the_dollars_of_a_sweep_are_those_that_it_spent_and_not_what_its_final_run_may_cost():
    sweep = SweepStatus(
        sweep="s",
        state="answered",
        finished=3,
        running=[],
        machines=[],
        sessions=[],
        spent_usd=0.09,
        final_usd=0.5,
        answer=0.01,
        low=0.005,
        high=0.02,
    )
    data = dashboard_data("store", [], [sweep], None, None, "")
    assert ("spent by sweeps, with their trials", "$0.09") in data["tiles"]
    assert dict(zip(data["sweep_columns"][1:], data["sweeps"][0]["cells"], strict=True))["final run at most"] == "$0.50"


def test_a_task_has_its_errors_and_chance_and_is_alone_on_its_axis():
    task = {"harness_acc": 0.3, "harness_acc_stderr": 0.01, "chance": 0.25, "items": 100.0}
    run = run_of([{"step": 1} | {f"eval/hellaswag/{name}": value for name, value in task.items()}])
    assert shown_metrics([run]) == ["eval/hellaswag/harness_acc"]
    drawn = page_data([run])["runs"][0]["curves"]["eval/hellaswag/harness_acc"]
    assert drawn["errors"] == [0.01] and drawn["chance"] == 0.25


def test_texts_cannot_leave_the_data_of_a_page():
    page = html_page("t", [html_data(["</script><script>alert(1)</script>", "\u2028&"])], script="1")
    assert page.count("<script") == 2 and "alert(1)<" not in page


def test_tokens_of_a_run_whose_steps_grow_are_counted_by_their_sizes():
    status = RunStatus("r", "done", step=4, total_steps=6)
    run = RunCurves(name="r", status=status, parameters=1000, batches=BatchSizes(256, ((64, 128),)), curves={})
    assert run.along("tokens", np.array([0, 1, 2, 3, 6])).tolist() == [0, 64, 128, 384, 1152]
