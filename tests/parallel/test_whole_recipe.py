"""What lowers the price of a loss, all of it in one run: batch-size schedule, Muon, an average of the weights, packed documents.

The run is killed in the middle of a step and resumed on the same mesh, and it moves from one mesh to the next.
"""

import os
import signal
from pathlib import Path

import pytest
import torch
from benchmarks.parallel.processes import run_ranks

from skytrain.checkpoints import load_model, open_checkpoint, step_key
from skytrain.config import batch_sizes
from skytrain.pipelines.evaluate import LossRequest, evaluate
from skytrain.pipelines.prepare import prepare
from skytrain.pipelines.train import train
from skytrain.runs import Silent, read_metrics
from skytrain.storage import open_store
from tests.parallel import workers
from tests.support.tiny import tiny_config

STEPS = 12
OPTIONS = (
    "model=modern-124m",
    "model.head_size=16",
    "model.mlp_width=64",
    "optimizer=muon",
    "optimizer.embedding_lr=1e-2",
    "optimizer.momentum_start=0.8",
    "optimizer.momentum_warmup=6",
    "optimizer.row_beta=0.9",
    "lr_schedule=wsd",
    "lr_schedule.decay_fraction=0.5",
    "lr_schedule.decay_power=1.5",
    "loader.packing=documents",
    "loader.separate_documents=true",
    "trainer.device=cpu",
    "trainer.micro_batch=1",
    "trainer.batch_tokens=512",
    "trainer.batch_schedule=[{batch_tokens: 128, until_tokens: 500}, {batch_tokens: 256, until_tokens: 1.5K}]",
    "trainer.ema_decay=0.8",
    "trainer.ema_start=0.4",
    f"trainer.steps={STEPS}",
    "trainer.validate_every=4",
    "trainer.checkpoint_every=2",
    "trainer.keep_checkpoints=9",
)
KILLED_AT = 7  # after the checkpoint of step 6, within a phase; the average has begun


class KilledAfter(Silent):
    """Kills its own process when a step is reported."""

    def __init__(self, step: int) -> None:
        self.step = step

    def progress(self, stage, done, total, detail="", seconds_left=None):
        if stage == "train" and done == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def settings(root: Path, run: str, mesh: str, *more: str):
    return tiny_config(root, f"run={run}", f"parallel={mesh}", *OPTIONS, *more)


def begin(root: Path) -> None:
    """Train without a stop, then die in the middle of a step."""
    train(settings(root, "fsdp-whole", "fsdp"), Silent())
    train(settings(root, "fsdp-stopped", "fsdp"), KilledAfter(KILLED_AT))


def resume(root: Path) -> None:
    train(settings(root, "fsdp-stopped", "fsdp"), Silent())


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("store")
    prepare(tiny_config(root), Silent())
    with pytest.raises(Exception, match=r"(?i)sigkill"):
        run_ranks(2, begin, root)
    run_ranks(2, resume, root)
    return root


def on_other_meshes(root: Path) -> None:
    """Stop and resume on meshes that keep whole matrices in other ways, and move a run from one mesh to the next."""
    for mesh in OTHERS:
        train(settings(root, f"{mesh}-whole", mesh), Silent())
        for stop in (8, STEPS):
            train(settings(root, f"{mesh}-stopped", mesh, f"trainer.stop_at_step={stop}"), Silent())
    workers.train_in_pieces(root, "moving", [("fsdp", 4), ("ddp", 8)], OPTIONS)


OTHERS = ("ddp", "tp")


@pytest.fixture(scope="module")
def others(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("others")
    prepare(tiny_config(root), Silent())
    run_ranks(2, on_other_meshes, root)
    return root


def measured(root: Path, run: str) -> dict[tuple[int, str], float]:
    names = ("train/loss", "train/lr", "train/grad_norm", "val/loss")
    records = read_metrics(open_store(str(root)), run)
    return {(record["step"], name): record[name] for record in records for name in names if name in record}


def saved(root: Path, run: str) -> dict[str, torch.Tensor]:
    """Every tensor of the last checkpoint, whole, but those of random generators."""
    tensors = open_checkpoint(open_store(str(root)), step_key(run, STEPS)).tensors.read()
    return {name: tensor for name, tensor in tensors.items() if not name.startswith("random/")}


def assert_same_bits(root: Path, mesh: str) -> None:
    assert measured(root, f"{mesh}-stopped") == measured(root, f"{mesh}-whole")
    was, now = saved(root, f"{mesh}-whole"), saved(root, f"{mesh}-stopped")
    assert was.keys() == now.keys()
    assert any(name.startswith("average/") for name in was) and any("momentum_buffer" in name for name in was)
    assert [name for name in was if not torch.equal(was[name], now[name])] == []


def test_a_killed_run_ends_with_every_bit_of_one_that_was_not(root):
    assert_same_bits(root, "fsdp")


@pytest.mark.slow
@pytest.mark.parametrize("mesh", OTHERS)
def test_a_stopped_run_ends_with_every_bit_of_one_that_was_not(others, mesh):
    assert_same_bits(others, mesh)


@pytest.mark.slow
def test_a_run_that_changes_its_mesh_takes_the_same_batches_and_ends_with_the_same_average(others):
    store = others
    train(settings(store, "moving", "single"), Silent())
    train(settings(store, "never", "single"), Silent())
    moved, never = (measured(store, run) for run in ("moving", "never"))
    assert moved.keys() == never.keys()
    losses = [key for key in never if "loss" in key[1]]
    assert [moved[key] for key in losses] == pytest.approx([never[key] for key in losses], abs=2e-3)  # Muon is in bf16
    ours, theirs = (load_model(open_store(str(store)), run).model.state_dict() for run in ("moving", "never"))
    assert max(float((ours[name] - theirs[name]).abs().max()) for name in ours) < 5e-3


def test_readers_of_a_run_get_the_average_and_the_validation_is_of_it(root):
    store = open_store(str(root))
    checkpoint = open_checkpoint(store, step_key("fsdp-whole", STEPS))
    last, average = checkpoint.model.read(), checkpoint.average.read()
    read = load_model(store, "fsdp-whole").model.state_dict()
    assert all(torch.equal(read[name], average[name]) for name in average)
    assert any(not torch.equal(last[name], average[name]) for name in average)
    _, evaluated = evaluate(tiny_config(store.root), LossRequest("fsdp-whole", max_tokens="512"), Silent())
    # The last weights are 0.1 away from it. In training, a row's documents are kept apart in the validation too.
    assert evaluated.loss == pytest.approx(measured(root, "fsdp-whole")[STEPS, "val/loss"], abs=1e-3)


def test_the_tokens_of_a_run_are_those_of_its_steps(root):
    sizes = batch_sizes(settings(root, "any", "single").trainer)
    assert [sizes.at(step) for step in range(STEPS)] == [128] * 4 + [256] * 4 + [512] * 4
    records = [r for r in read_metrics(open_store(str(root)), "fsdp-whole") if "perf/tokens_per_s" in r]
    for record in records:
        assert record["perf/tokens_per_s"] * record["perf/step_ms"] / 1e3 == pytest.approx(
            sizes.at(record["step"] - 1), rel=1e-6
        )
