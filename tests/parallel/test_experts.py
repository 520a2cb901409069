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

RUN = ("trainer.micro_batch=2", "trainer.device=cpu", "trainer.validate_every=null")
BALANCED = ("model.experts.bias=true", "model.experts.bias_rate=0.01", "model.experts.balance_loss=0.05")
SMALL = ("model.kv_heads=2", "model.experts.count=4", "model.experts.width=24")
FAMILIES = {
    "mixtral": ("model=mixtral-tiny", *SMALL, *BALANCED, *RUN),
    "qwen3-moe": ("model=qwen3-30b-a3b", *SMALL, "model.experts.per_token=2", "model.head_size=16", *BALANCED, *RUN),
    "gpt-oss": ("model=gpt-oss-tiny", *SMALL, "model.head_size=16", *RUN),
    # Latents are small at first, and AdamW would make updates of their gradients' rounding.
    "deepseek": ("model=deepseek-tiny", "model.experts.count=8", "model.experts.width=24", "optimizer.eps=1e-4", *RUN),
}
MUON = ("optimizer=muon", "loader.packing=documents", "loader.separate_documents=true")
CHANGES = [("ep-fsdp", 3), ("fsdp", 5), ("tp", 7), ("pp", 9), ("ep-fsdp", 11)]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=FAMILIES)
def family(request) -> tuple[str, ...]:
    return FAMILIES[request.param]


@pytest.fixture(scope="module")
def root(tmp_path_factory, family) -> Path:
    root = tmp_path_factory.mktemp("store")
    prepare(tiny_config(root, *family), Silent())
    return root


@pytest.fixture(scope="module")
def two_ranks(root, family) -> list:
    return run_ranks(2, both, root, family)


def both(root: Path, family: tuple[str, ...]) -> dict:
    same = tuple(word for word in family if not word.startswith("optimizer."))
    return {
        "same": workers.stops_and_whole_runs(root, ["ep-fsdp"], (*same, *MUON)),
        "changes": workers.train_in_pieces(root, "changing", CHANGES, family),
    }


def test_a_run_with_experts_muon_and_separate_documents_continues_bit_for_bit(two_ranks):
    whole, parts = two_ranks[0]["same"]["ep-fsdp"]
    assert len(whole) == 8
    assert parts == whole


def test_a_run_with_experts_may_change_its_mesh_at_every_stop_and_end_on_one_device(two_ranks, root, family, tmp_path):
    store = shutil.copytree(root, tmp_path / "store")
    train(tiny_config(store, "run=changing", "trainer.stop_at_step=13", *family), Silent())
    train(tiny_config(store, "run=never", "trainer.stop_at_step=13", *family), Silent())
    changed, never = (workers.losses(store, run) for run in ("changing", "never"))
    assert len(never) == 13
    assert changed == pytest.approx(never, abs=5e-6)
