"""A run with experts stops and goes on: with expert parallelism to the last bit, on another mesh with the same losses."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from benchmarks.parallel.processes import run_ranks

from skytrain.pipelines.prepare import prepare
from skytrain.pipelines.train import train
from skytrain.runs import Silent
from tests.parallel import workers
from tests.support.tiny import tiny_config

EXPERTS = (
    "model=mixtral-tiny",
    "model.kv_heads=2",
    "model.experts.count=4",
    "model.experts.width=24",
    "model.experts.bias=true",
    "model.experts.bias_rate=0.01",
    "model.experts.balance_loss=0.05",
    "trainer.micro_batch=2",
    "trainer.device=cpu",
    "trainer.validate_every=null",
)
MUON = ("optimizer=muon", "loader.packing=documents", "loader.separate_documents=true")
CHANGES = [("ep-fsdp", 3), ("fsdp", 5), ("tp", 7), ("pp", 9), ("ep-fsdp", 11)]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("store")
    prepare(tiny_config(root, *EXPERTS), Silent())
    return root


@pytest.fixture(scope="module")
def two_ranks(root) -> list:
    return run_ranks(2, both, root)


def both(root: Path) -> dict:
    return {
        "same": workers.stops_and_whole_runs(root, ["ep-fsdp"], (*EXPERTS, *MUON)),
        "changes": workers.train_in_pieces(root, "changing", CHANGES, EXPERTS),
    }


def test_a_run_with_experts_muon_and_separate_documents_continues_bit_for_bit(two_ranks):
    whole, parts = two_ranks[0]["same"]["ep-fsdp"]
    assert len(whole) == 8
    assert parts == whole


def test_a_run_with_experts_may_change_its_mesh_at_every_stop_and_end_on_one_device(two_ranks, root, tmp_path):
    store = shutil.copytree(root, tmp_path / "store")
    train(tiny_config(store, "run=changing", "trainer.stop_at_step=13", *EXPERTS), Silent())
    train(tiny_config(store, "run=never", "trainer.stop_at_step=13", *EXPERTS), Silent())
    changed, never = (workers.losses(store, run) for run in ("changing", "never"))
    assert len(never) == 13
    assert changed == pytest.approx(never, abs=5e-6)
