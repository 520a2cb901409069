"""The planner's benchmarks: published runs that its constants were not fitted on, and the script for a GPU."""

from __future__ import annotations

import csv
import dataclasses
import importlib.util
import json
import statistics
from pathlib import Path
from types import ModuleType

import pytest

from skytrain.config import DecoderConfig
from skytrain.config.compose import compose
from skytrain.planning.flops import decoder_size
from skytrain.planning.hardware import find_gpu
from skytrain.planning.throughput import COMPILED, EAGER

FOLDER = Path(__file__).parents[2] / "benchmarks" / "planning"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def published() -> ModuleType:
    return load("published")


@pytest.fixture(scope="module")
def fitted(published: ModuleType) -> dict[str, float]:
    rows = csv.DictReader((FOLDER / "published_runs.csv").read_text().splitlines())
    found: dict[str, float] = published.fit([row for row in rows if row["split"] == "fit"], published.shapes())
    return found


def test_runs_that_the_fit_has_not_seen_are_predicted_within_15_percent_at_the_median_and_30_at_p90(
    published: ModuleType, fitted: dict[str, float]
) -> None:
    rows = [
        row
        for row in csv.DictReader((FOLDER / "published_runs.csv").read_text().splitlines())
        if row["split"] == "holdout"
    ]
    models = published.shapes()
    errors = [abs(published.predict(row, models, fitted) / float(row["tokens_per_s_per_gpu"]) - 1) for row in rows]
    assert len(errors) >= 15
    assert statistics.median(errors) <= 0.15
    assert published.quantile(errors, 0.9) <= 0.30


def test_the_planner_uses_the_fitted_constants(fitted: dict[str, float]) -> None:
    a100, h100 = find_gpu("a100"), find_gpu("h100")
    assert a100 and h100
    used = {
        "gemm-a100": a100.gemm,
        "gemm-h100": h100.gemm,
        "attention-a100": a100.attention,
        "attention-h100": h100.attention,
        "traffic-torch-eager": EAGER.traffic,
        "traffic-torch-compile": COMPILED.traffic,
    }
    for name, value in used.items():
        assert value == pytest.approx(fitted[name], rel=0.03), name


@pytest.mark.parametrize(("shape", "name"), [("GPT2", "gpt2-124m"), ("MEDIUM", "gpt2-355m"), ("LLAMA", "llama-3.2-1b")])
def test_the_gpu_benchmark_measures_the_models_that_are_configured(shape: str, name: str) -> None:
    measured = getattr(load("h200"), shape)
    configured = compose([f"model={name}", "tokenizer.vocab_size=257"]).config.model
    assert isinstance(configured, DecoderConfig)
    size = decoder_size(
        dataclasses.replace(measured, vocab_size=configured.vocab_size, max_length=configured.max_length)
    )
    assert (measured.name, size) == (name, decoder_size(configured))


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))  # it takes its shapes from its neighbour
    return load("h200_offline")


def test_what_is_called_fitting_on_an_h200_fits_by_the_memory_that_was_reserved_there(offline: ModuleType) -> None:
    found = json.loads((FOLDER / "h200.json").read_text())
    for row in offline.largest(found):
        assert row["fits_by_reserved"] or row["ran"], row
        assert row["quarter_more"] >= row["failed_at"] or row["more_allocated"] > found["memory_bytes"], row


def test_steps_on_an_h200_are_predicted_within_10_percent_of_their_median_but_for_four_of_fifteen(
    offline: ModuleType,
) -> None:
    found = json.loads((FOLDER / "h200.json").read_text())
    errors = sorted(
        abs(predictions["median_seconds"].seconds / row["median_seconds"] - 1)
        for row, predictions in offline.times(found)
        if predictions["median_seconds"].source != "measured"
    )
    assert len(errors) == 15
    assert errors[-5] <= 0.10
    assert errors[-1] <= 0.22
