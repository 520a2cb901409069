"""Stops runs on one mesh, resumes them on another (4, 2, 8 and 1 processes), and compares with an uninterrupted run.

python benchmarks/checkpoints/mesh_campaign.py --out benchmarks/checkpoints/mesh_campaign.log
"""

from __future__ import annotations

import argparse
import hashlib
import math
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(
    0, str(Path(__file__).parents[2])
)  # for benchmarks.parallel and tests.support, also in the processes started here

import torch
import torch.distributed as dist
from benchmarks.parallel.processes import alive, run_ranks
from tests.support.tiny import tiny_config

from skytrain.config import Config

STAGE_STEPS = 3
WORLDS = (4, 2, 8, 1)
CP = ("parallel=cp", "trainer.micro_batch=8")
# By name, the mesh of each stage; every one is read by the next, which cuts the state in another way.
CHAINS: dict[str, list[tuple[str, ...]]] = {
    "fsdp tp pp-tp-fsdp": [("parallel=fsdp",), ("parallel=tp",), ("parallel=pp-tp-fsdp",), ()],
    "tp-fsdp pp hsdp": [("parallel=tp-fsdp",), ("parallel=pp",), ("parallel=hsdp",), ()],
    "ddp fsdp tp-fsdp": [("parallel=ddp",), ("parallel=fsdp",), ("parallel=tp-fsdp",), ()],
    "pp-fsdp ddp fsdp": [("parallel=pp-fsdp",), ("parallel=ddp",), ("parallel=fsdp",), ()],
    "hsdp cp ddp": [("parallel=hsdp",), CP, ("parallel=ddp",), ()],
    "cp pp(zbv) pp-fsdp": [CP, ("parallel=pp", "parallel.schedule=zbv"), ("parallel=pp-fsdp",), ()],
}
TOLERANCE = 5e-5  # of a loss near 5.5: float32 sums in another order
# On top of the tests' tiny run.
SETTINGS = (
    "data.source.tokens=40K",
    "model.layers=4",
    "model.dropout=0",
    "trainer.micro_batch=1",
    f"trainer.steps={STAGE_STEPS * len(WORLDS)}",
    "trainer.validate_every=null",
    "trainer.device=cpu",
)


def settings(root: Path, *overrides: str) -> Config:
    return tiny_config(root, *SETTINGS, *overrides)


def run_of(chain: str) -> str:
    return re.sub(r"\W+", "_", chain).strip("_")


@contextmanager
def sequences_noted() -> Iterator[dict[int, set[str]]]:
    """By step, hashes of the sequences that this process trains on meanwhile."""
    from skytrain.tokens import Batch
    from skytrain.training import CausalLM

    plain_step = CausalLM.training_step
    seen: dict[int, set[str]] = {}

    def noting(self: Any, batch: Batch, index: int) -> torch.Tensor:
        for row in batch.windows:
            seen.setdefault(self.trainer.global_step + 1, set()).add(hashlib.sha256(row.numpy().tobytes()).hexdigest())
        return plain_step(self, batch, index)

    CausalLM.training_step = noting  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        CausalLM.training_step = plain_step  # type: ignore[method-assign]


def train_stages(root: Path, stage: int) -> dict[str, dict[int, set[str]]]:
    """One stage of every chain on the ranks there are; by chain and step, hashes of the sequences that were trained on."""
    from skytrain.pipelines.train import train
    from skytrain.runs import Silent

    found: dict[str, dict[int, set[str]]] = {}
    for name, meshes in CHAINS.items():
        stop = STAGE_STEPS * (stage + 1)
        with sequences_noted() as seen:
            train(settings(root, f"run={run_of(name)}", f"trainer.stop_at_step={stop}", *meshes[stage]), Silent())
        found[name] = _everyones(seen)
        alive()
    return found


def _everyones(seen: dict[int, set[str]]) -> dict[int, set[str]]:
    if not dist.is_initialized():
        return seen
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, seen)
    return {step: set().union(*(each.get(step, set()) for each in gathered)) for step in seen}


def read_losses(root: Path, run: str) -> list[float]:
    from skytrain.runs import read_metrics
    from skytrain.storage import open_store

    records = read_metrics(open_store(str(root)), run)
    return [record["train/loss"] for record in records if "train/loss" in record]


def shares(root: Path, run: str, step: int) -> str:
    """What each rank wrote, in percent. Every value of the state must be stored once."""
    from skytrain.checkpoints import find_commit, read_manifest, step_key
    from skytrain.checkpoints.manifest import ITEM_BYTES
    from skytrain.storage import open_store

    store = open_store(str(root))
    _, manifest = read_manifest(store, find_commit(store, step_key(run, step)))
    stored = sum(tensor.piece_bytes(piece) for tensor in manifest.tensors.values() for piece in tensor.pieces)
    whole = sum(math.prod(tensor.shape) * ITEM_BYTES[tensor.dtype] for tensor in manifest.tensors.values())
    assert stored == whole, f"{run}@{step}: {stored} bytes stored of {whole}"
    assert "model/head.projection.weight" not in manifest.tensors, "a tied weight is stored once"
    return "/".join(f"{file.bytes * 100 / manifest.total_bytes:.0f}" for file in manifest.files.values())


def campaign(root: Path) -> list[str]:
    """Runs all chains and compares them; a line each. Raises where one differs."""
    from skytrain.pipelines.prepare import prepare
    from skytrain.pipelines.train import train
    from skytrain.runs import Silent

    torch.set_num_threads(1)
    prepare(settings(root), Silent())
    with sequences_noted() as sequences:
        train(settings(root, "run=never", "trainer.micro_batch=8"), Silent())
    expected = read_losses(root, "never")
    found: list[dict[str, dict[int, set[str]]]] = []
    for stage, world in enumerate(WORLDS):
        began = time.monotonic()
        found.append(train_stages(root, stage) if world == 1 else run_ranks(world, train_stages, root, stage)[0])
        print(f"stage {stage}: {world} processes, {time.monotonic() - began:.0f} s", flush=True)
    lines = [
        f"{'meshes on ' + ', '.join(map(str, WORLDS)) + ' processes':44} loss differs by at most   % of bytes by rank"
    ]
    for name in CHAINS:
        run = run_of(name)
        losses = read_losses(root, run)
        difference = max(abs(mine - theirs) for mine, theirs in zip(losses, expected, strict=True))
        trained = {step: hashes for stage in found for step, hashes in stage[name].items()}
        assert trained == sequences, f"{name}: other data"
        last = (len(WORLDS) - 1) * STAGE_STEPS  # of the last stage on several ranks
        lines.append(f"{name:44} {difference:10.1e}                {shares(root, run, last)}")
        assert difference <= TOLERANCE, f"{name}: {losses} against {expected}"
    lines.append(
        f"all {len(expected)} steps of all {len(CHAINS)} chains trained on the very sequences of the run that never stopped"
    )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="skytrain-campaign-") as scratch:
        lines = [f"torch {torch.__version__}, float32, dropout 0", *campaign(Path(scratch) / "store")]
    print("\n".join(lines))
    if arguments.out:
        arguments.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
