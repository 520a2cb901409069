"""The table that compares parallel modes."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from skytrain.bench import bench_parallel, scaling_table
from skytrain.bench.parallel import ModeRow, ParallelBench, busy, check_size, mode_cases, plot
from skytrain.bench.parallel_worker import Steps, covered
from skytrain.config import SkytrainError, compose
from skytrain.runs import Silent
from tests.support.tiny import TINY

MACHINE = {"device": "a device", "devices": 2, "backend": "gloo", "torch": "2.13", "load": 0.1}


def steps(tokens: int, seconds: float) -> Steps:
    return Steps(
        batch_tokens=tokens, micro_batch=2, mesh="a mesh", step_seconds=seconds, peak_bytes=10**8, communication=0.25
    )


def made() -> ParallelBench:
    rows = [
        ModeRow("single", 1, steps(100, 1.0), steps(100, 1.0)),
        ModeRow("fsdp", 2, steps(200, 1.25), steps(100, 1.0)),
        ModeRow(mode="tp", ranks=2, weak=None, strong=None, problem="2 heads do not divide"),
    ]
    return ParallelBench(
        model="tiny",
        sequence_length=32,
        precision="32-true",
        machine=MACHINE,
        date="2026-11-15T06:00:00+00:00",
        rows=rows,
    )


def test_efficiency_is_a_ranks_speed_against_one_device():
    bench = made()
    assert bench.efficiency(bench.rows[1], "weak") == pytest.approx(0.8)
    assert bench.efficiency(bench.rows[1], "strong") == pytest.approx(0.5)
    assert bench.efficiency(bench.rows[2], "weak") is None


def test_the_table_has_a_line_for_each_mode_and_says_why_one_did_not_run():
    lines = scaling_table(made())
    assert len(lines) == 2 + 3
    assert lines[3].split() == ["fsdp", "2", "160", "80%", "25%", "100", "MB", "100", "50%", "25%"]
    assert lines[4].endswith("2 heads do not divide")


def test_the_plot_is_well_formed_and_names_the_modes():
    texts = [element.text for element in ElementTree.fromstring(plot(made())).iter("{http://www.w3.org/2000/svg}text")]
    assert "fsdp" in texts
    assert "tp" not in texts  # it has no figures


def test_collectives_that_overlap_count_once():
    assert covered([(5.0, 6.0), (0.0, 2.0), (1.0, 3.0), (1.5, 2.5)]) == 4.0


def test_one_device_comes_first_and_a_mode_only_where_it_is_itself():
    cases = list(mode_cases(4, ["fsdp", "hsdp"]))
    assert cases == [("single", 1), ("fsdp", 2), ("fsdp", 4), ("hsdp", 4)]
    with pytest.raises(SkytrainError, match="--modes zero: no such mode"):
        list(mode_cases(2, ["zero"]))


def test_a_model_for_gpus_is_refused_on_a_cpu_with_one_that_fits():
    with pytest.raises(SkytrainError, match="too much for a CPU\n  try: skytrain bench parallel recipe=quickstart"):
        check_size(compose(["model=gpt2-124m"]).config, "cpu")
    check_size(compose(["recipe=quickstart"]).config, "cpu")


def test_a_busy_machine_is_said_to_be_so():
    assert busy(MACHINE) is None
    assert "busy (load 5.0 on 2 cores)" in (busy(MACHINE | {"load": 5.0}) or "")


@pytest.mark.slow
def test_modes_are_timed_in_processes_of_their_own_and_kept_with_machine_and_versions(tmp_path):
    overrides = [*TINY, "trainer.micro_batch=2", f"store.root={tmp_path}"]
    bench = bench_parallel(overrides, [], Silent(), steps=1, largest=2, modes=["fsdp"])
    single, fsdp = bench.rows
    assert (single.problem, fsdp.problem) == (None, None)
    assert single.weak is not None and fsdp.weak is not None and fsdp.strong is not None
    assert (fsdp.weak.batch_tokens, fsdp.strong.batch_tokens) == (512, 256)
    assert "shard=2" in fsdp.weak.mesh
    assert single.weak.communication == 0.0
    assert 0 < fsdp.weak.communication <= 1
    (folder,) = (tmp_path / "bench").iterdir()
    assert Path(bench.folder.removeprefix("file://")) == folder
    kept = json.loads((folder / "results.json").read_text())
    assert kept["machine"]["torch"] and kept["machine"]["load"] is not None
    assert kept["rows"][1]["weak"]["efficiency"] > 0
    assert (folder / "scaling.svg").read_text().startswith("<svg")
