"""One metric of runs as a picture: minima with their values, error bars, chance, names on an axis."""

import re

import pytest
from typer.testing import CliRunner

from skytrain.cli.main import app
from skytrain.config import BatchSizes
from skytrain.report import RunCurves, curves_of, curves_svg, png_of
from skytrain.report.axes import Plot, PlotLayer
from skytrain.runs import MetricsWriter, RunStatus, claim_attempt, create_run, new_record
from skytrain.storage import open_store
from tests.support.tiny import tiny_config


def run_of(name, records):
    return RunCurves(
        name=name, status=RunStatus(name, "done"), parameters=1000, batches=BatchSizes(256), curves=curves_of(records)
    )


def test_minima_of_several_runs_are_circled_and_labelled():
    runs = [
        run_of(name, [{"step": s, "val/loss": v} for s, v in ((1, 4.0), (2, low), (3, 3.5))])
        for name, low in (("a", 3.125), ("b", 2.875))
    ]
    svg = curves_svg(runs, "val/loss", "tokens")
    assert svg.count("<circle") == 2 and ">3.125<" in svg and ">2.875<" in svg and ">a<" in svg and ">b<" in svg
    assert ">tokens<" in svg and png_of(svg).startswith(b"\x89PNG")


def test_labels_at_one_place_do_not_cover_each_other():
    runs = [
        run_of(name, [{"step": s, "val/loss": v + 0.001 * n} for s, v in ((1, 9.0), (2, 3.0))])
        for n, name in enumerate("abc")
    ]
    svg = curves_svg(runs, "val/loss", "step")
    heights = [int(y) for y in re.findall(r'y="(\d+)" text-anchor="end">3(?:\.00[12])?<', svg)]
    assert len(heights) == 3 and min(b - a for a, b in zip(sorted(heights), sorted(heights)[1:], strict=False)) >= 13


def test_a_task_has_error_bars_and_its_chance():
    task = {"harness_acc": 0.3, "harness_acc_stderr": 0.01, "chance": 0.25}
    records = [{"step": s} | {f"eval/hellaswag/{name}": value for name, value in task.items()} for s in (1, 2)]
    svg = curves_svg([run_of("a", records)], "eval/hellaswag/harness_acc", "step")
    assert ">chance 0.25<" in svg and svg.count('stroke="#0072B2"/>') == 6, "two caps and a bar for each point"


def test_long_names_in_the_legend_keep_the_end_that_tells_them_apart():
    names = ["llama-micro-python-docs-513eab0e", "llama-micro-python-docs-513eab0f"]
    svg = Plot("t", "x", "y", [PlotLayer(name, [(1.0, 1.0)], colour=at) for at, name in enumerate(names)]).svg()
    assert ">llama-mic..-513eab0e<" in svg and ">llama-mic..-513eab0f<" in svg


def test_names_stand_on_the_axis_in_place_of_numbers():
    layers = [PlotLayer("", [(1.0, 1.0)]), PlotLayer("", [(2.0, 2.0)])]
    svg = Plot(title="t", x_label="x", y_label="", layers=layers, y_names=["hyperband", "a-long-strategy-name"]).svg()
    assert ">hyperband</text>" in svg and ">a-long-strategy-name</text>" in svg


def test_the_command_names_what_it_cannot_draw(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = tiny_config(tmp_path / "store")
    store = open_store(config.store)
    create_run(store, new_record(config, name="r", data={}, tokenizer_id="x", parameters=1, hardware={}))
    claim_attempt(store, "r")
    writer = MetricsWriter(store, "r", 0)
    for step in (1, 2):
        writer.write(step, {"train/loss": 1.0 / step})
    writer.lines.flush()
    words = ["plot", "r", f"store.root={config.store.root}"]
    assert CliRunner().invoke(app, [*words, "--out", "loss.svg"]).output == "plot: loss.svg\n"
    assert (tmp_path / "loss.svg").read_text().startswith("<svg")
    for more, problem in (
        (["--metric", "train/los"], "did you mean train/loss"),
        (["--x", "dollars"], "--x dollars: no run has recorded it"),
        (["--out", "loss.gif"], "ends with .png or .svg"),
    ):
        with pytest.raises(Exception, match=problem):
            CliRunner().invoke(app, [*words, *more], catch_exceptions=False)
