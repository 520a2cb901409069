"""A run stops and goes on: on the same mesh to the last bit, on another with the same losses."""

import shutil
from pathlib import Path

import pytest
from benchmarks.parallel.processes import run_ranks

from skytrain.pipelines.prepare import prepare
from skytrain.pipelines.train import train
from skytrain.runs import Silent
from tests.parallel import workers
from tests.support.tiny import tiny_config

OPTIONS = ("trainer.batch_tokens=256", "trainer.micro_batch=2", "trainer.device=cpu", "trainer.validate_every=4")
CHANGES = [("fsdp", 4), ("pp", 7), ("tp", 10), ("ddp", 13), ("cp", 16)]
SAME = ["ddp", "fsdp", "tp", "pp"]


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """A store with a run in it that one device began."""
    root = tmp_path_factory.mktemp("store")
    prepare(tiny_config(root), Silent())
    train(tiny_config(root, "run=single", "trainer.stop_at_step=4", *OPTIONS), Silent())
    return root


@pytest.fixture(scope="module")
def two_ranks(root) -> list:
    return run_ranks(2, both, root)


def both(root: Path) -> dict:
    return {
        "changes": workers.train_in_pieces(root, "changing", CHANGES, OPTIONS),
        "single": workers.train_in_pieces(root, "single", [("pp", 8)], OPTIONS),
        "same": workers.stops_and_whole_runs(root, SAME, (*OPTIONS, "model.dropout=0.1")),
    }


@pytest.mark.parametrize("mesh", SAME)
def test_a_run_with_dropout_continues_bit_for_bit_on_the_same_mesh(two_ranks, mesh):
    whole, parts = two_ranks[0]["same"][mesh]
    assert len(whole) == 8
    assert parts == whole


def test_a_run_may_change_its_mesh_at_every_stop_and_end_on_one_device(two_ranks, root, tmp_path):
    """One checkpoint after another, each read by another mesh than wrote it, and the last by a single process."""
    store = shutil.copytree(root, tmp_path / "store")
    train(tiny_config(store, "run=changing", *OPTIONS), Silent())
    train(tiny_config(store, "run=never", *OPTIONS), Silent())
    changed, never = (workers.losses(store, run) for run in ("changing", "never"))
    assert len(never) == 20
    assert changed == pytest.approx(never, abs=5e-5)


def test_a_run_of_one_device_continues_on_two(two_ranks, root, tmp_path):
    store = shutil.copytree(root, tmp_path / "store")
    train(tiny_config(store, "run=never", "trainer.stop_at_step=8", *OPTIONS), Silent())
    continued = two_ranks[0]["single"]
    assert len(continued) == 8
    assert continued == pytest.approx(workers.losses(store, "never"), abs=2e-5)
