"""The planner's benchmarks: published runs that its constants were not fitted on, and the script for a GPU."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from skytrain.config import DecoderConfig, compose
from skytrain.planning import decoder_size, find_gpu
from skytrain.planning.throughput import COMPILED, STRAGGLING

FOLDER = Path(__file__).parents[2] / "benchmarks" / "planning"


@pytest.fixture(autouse=True, scope="module")
def beside_each_other() -> Iterator[None]:
    """The scripts import their neighbours, as they do when one is run."""
    sys.path.insert(0, str(FOLDER))
    yield
    sys.path.remove(str(FOLDER))


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # its dataclasses look their types up there
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def published() -> ModuleType:
    return load("published")


@pytest.fixture(scope="module")
def runs(published: ModuleType) -> list[Any]:
    return [*published.first_runs(), *published.second_runs()]


def test_runs_that_the_fit_has_not_seen_are_predicted_within_the_limits_of_their_group(
    published: ModuleType, runs: list[Any]
) -> None:
    fitting = [run for run in runs if published.is_fitted_on(run, runs)]
    others = [run for run in runs if run not in fitting]
    assert len(fitting) > 200 and len(others) > 200
    fitted = published.fit(fitting)
    for group, (median, p90) in published.LIMITS.items():
        errors = [abs(published.predict(run, fitted) / run.tokens_per_s - 1) for run in others if group in run.group]
        assert len(errors) >= 25
        assert statistics.median(errors) <= median, group
        assert published.quantile(errors, 0.9) <= p90, group


def test_software_of_an_unknown_class_is_between_the_known_ones(published: ModuleType, runs: list[Any]) -> None:
    for run in runs[::40]:
        known = [
            published.predict(dataclasses.replace(run, software=name), published.START)
            for name in published.BF16_CLASSES
        ]
        unknown = published.predict(dataclasses.replace(run, software="nanotron"), published.START)
        assert min(known) < unknown < max(known)


def test_the_range_of_a_group_leaves_a_tenth_of_the_errors_that_it_comes_from_on_either_side(
    published: ModuleType, runs: list[Any]
) -> None:
    errors = {published.key(run): 0.001 * number for number, run in enumerate(runs)}
    for group, (low, high) in published.bands(runs, errors).items():
        of = [errors[published.key(run)] for run in runs if group in run.group]
        assert statistics.fmean(error < low for error in of) == pytest.approx(0.1, abs=0.02)
        assert statistics.fmean(error > high for error in of) == pytest.approx(0.1, abs=0.02)


def test_the_planner_uses_the_fitted_constants(published: ModuleType, runs: list[Any]) -> None:
    fitted = published.fit(runs)
    a100, h100 = find_gpu("a100"), find_gpu("h100")
    assert a100 and h100
    used = {
        "gemm-a100": a100.gemm,
        "gemm-h100": h100.gemm,
        "attention-a100": a100.generation.attention,
        "attention-h100": h100.generation.attention,
        "traffic-torch-compile": COMPILED.traffic,
    }
    for name, value in used.items():
        assert value == pytest.approx(fitted[name], rel=0.07), name
    # The slowdown is a share of a step for each doubling of the machines: of a thousand, within as much of the step.
    assert abs(fitted["straggling"] - STRAGGLING) * 10 < 0.07


@pytest.mark.parametrize(("shape", "name"), [("GPT2", "gpt2-124m"), ("MEDIUM", "gpt2-355m"), ("LLAMA", "llama-3.2-1b")])
def test_the_gpu_benchmark_measures_the_models_that_are_configured(shape: str, name: str) -> None:
    measured = getattr(load("shapes"), shape)
    configured = compose([f"model={name}", "tokenizer.vocab_size=257"]).config.model
    assert isinstance(configured, DecoderConfig)
    size = decoder_size(
        dataclasses.replace(measured, vocab_size=configured.vocab_size, max_length=configured.max_length)
    )
    assert (measured.name, size) == (name, decoder_size(configured))


@pytest.fixture(scope="module", params=["h200.json", "h200_earlier.json"])
def measured(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / request.param).read_text())
    return found


def test_peaks_on_an_h200_are_predicted_within_3_percent_either_way(measured: dict[str, Any]) -> None:
    tables = load("tables")
    errors = [error for row in tables.memory_rows(measured) if (error := tables.memory_error(row)) is not None]
    assert len(errors) >= 32
    assert max(map(abs, errors)) <= 0.03


def test_steps_on_an_h200_are_predicted_within_12_percent_of_their_median(measured: dict[str, Any]) -> None:
    errors = [
        abs(predictions["median_seconds"].seconds / row["median_seconds"] - 1)
        for row, predictions in load("tables").times(measured)
        if predictions["median_seconds"].source != "measured"
    ]
    assert len(errors) >= 11
    assert max(errors) <= 0.12


def test_steps_that_benchmarks_measured_on_an_h200_are_predicted_without_any_measurement() -> None:
    rows = load("tables").other_steps()
    for fitted in (True, False):
        errors = [abs(row["time_error"]) for row in rows if row["fitted"] == fitted]
        assert len(errors) >= 15
        assert statistics.median(errors) <= 0.05
        assert max(errors) <= 0.08
    peaks = [row["memory_error"] for row in rows if row["memory_error"] is not None and "llama" not in row["settings"]]
    assert len(peaks) >= 12
    assert max(map(abs, peaks)) <= 0.02


def test_the_largest_micro_batch_that_is_called_fitting_ran_on_an_h200_and_a_quarter_more_did_not() -> None:
    rows = load("tables").largest(json.loads((FOLDER / "h200.json").read_text()))
    assert {(row["model"], row["path"], row["checkpointing"]) for row in rows} == {
        (model, path, checkpointing)
        for model in ("gpt2-124m", "gpt2-355m", "llama-3.2-1b")
        for path, checkpointing in (("eager", False), ("eager", True), ("fused", False))
        if not (path == "fused" and model == "llama-3.2-1b")
    }
    assert all(row["runs"] and row["quarter_fails"] for row in rows)
