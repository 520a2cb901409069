"""Runs that stop on one mesh and go on on another, through 4, 2, 8 and 1 processes, compared with one that never stopped.

python benchmarks/checkpoints/mesh_campaign.py --out benchmarks/checkpoints/mesh_campaign.log
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # for benchmarks.parallel, also in the processes started here

import torch
import torch.distributed as dist
from benchmarks.parallel.processes import alive, run_ranks

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
MODEL = (
    "data=synthetic",
    "data.source.tokens=40K",
    "data.source.document_tokens=200",
    "tokenizer=bytes",
    "model=gpt2-tiny",
    "model.layers=4",
    "model.width=32",
    "model.heads=2",
    "model.max_length=64",
    "model.dropout=0",
    "trainer.sequence_length=32",
    "trainer.micro_batch=1",
    "trainer.batch_tokens=256",
    f"trainer.steps={STAGE_STEPS * len(WORLDS)}",
    "trainer.validate_every=null",
    "trainer.checkpoint_every=null",
    "trainer.loggers=[]",
    "trainer.device=cpu",
    "lr_schedule.warmup_steps=3",
    "optimizer.lr=3e-3",
)


def compose(root: Path, *overrides: str) -> Any:
    from skytrain.config.compose import compose

    return compose([*MODEL, f"store.root='{root}'", *overrides]).config


def train_stages(root: Path, stage: int, worlds: tuple[int, ...]) -> dict[str, dict[int, list[str]]]:
    """One stage of every chain on the ranks there are; by chain and step, hashes of the sequences that were trained on."""
    from skytrain.pipelines.train import train
    from skytrain.runs import Silent
    from skytrain.training import CausalLM

    plain_step = CausalLM.training_step
    seen: dict[int, set[str]] = {}

    def noting(self: Any, batch: torch.Tensor, index: int) -> torch.Tensor:
        for row in batch:
            seen.setdefault(self.trainer.global_step + 1, set()).add(hashlib.sha256(row.numpy().tobytes()).hexdigest())
        return plain_step(self, batch, index)

    CausalLM.training_step = noting  # type: ignore[method-assign]
    found: dict[str, dict[int, list[str]]] = {}
    for name, meshes in CHAINS.items():
        seen.clear()
        stop = STAGE_STEPS * (stage + 1)
        run = f"run={name.replace(' ', '_').replace('(', '_').replace(')', '')}"
        train(compose(root, run, f"trainer.stop_at_step={stop}", *meshes[stage]), Silent())
        found[name] = {step: sorted(rows) for step, rows in _everyones(seen).items()}
        alive()
    CausalLM.training_step = plain_step  # type: ignore[method-assign]
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
    """What each rank wrote, and whether every value of the state was stored once."""
    from skytrain.checkpoints.commits import find_commit, read_manifest, step_key
    from skytrain.storage import open_store

    store = open_store(str(root))
    _, manifest = read_manifest(store, find_commit(store, step_key(run, step)))
    stored = sum(tensor.piece_bytes(piece) for tensor in manifest.tensors.values() for piece in tensor.pieces)
    whole = sum(
        tensor.piece_bytes(tensor.pieces[0].__class__((), tensor.shape, "", 0, ""))
        for tensor in manifest.tensors.values()
    )
    assert stored == whole, f"{run}@{step}: {stored} bytes stored of {whole}"
    assert "model/head.projection.weight" not in manifest.tensors, "a tied weight is stored once"
    return "/".join(f"{file.bytes * 100 / manifest.total_bytes:.0f}" for file in manifest.files.values())


def campaign(root: Path, worlds: tuple[int, ...] = WORLDS) -> list[str]:
    """Runs all chains and compares them; a line each. Raises where one differs."""
    from skytrain.pipelines.prepare import prepare
    from skytrain.pipelines.train import train
    from skytrain.runs import Silent
    from skytrain.training import CausalLM

    torch.set_num_threads(1)
    prepare(compose(root), Silent())
    rows: dict[int, set[str]] = {}
    plain_step = CausalLM.training_step

    def noting(self: Any, batch: torch.Tensor, index: int) -> torch.Tensor:
        for row in batch:
            rows.setdefault(self.trainer.global_step + 1, set()).add(hashlib.sha256(row.numpy().tobytes()).hexdigest())
        return plain_step(self, batch, index)

    CausalLM.training_step = noting  # type: ignore[method-assign]
    train(compose(root, "run=never", "trainer.micro_batch=8"), Silent())
    CausalLM.training_step = plain_step  # type: ignore[method-assign]
    expected = read_losses(root, "never")
    found: list[dict[str, dict[int, list[str]]]] = []
    for stage, world in enumerate(worlds):
        began = time.monotonic()
        found.append(
            train_stages(root, stage, worlds) if world == 1 else run_ranks(world, train_stages, root, stage, worlds)[0]
        )
        print(f"stage {stage}: {world} processes, {time.monotonic() - began:.0f} s", flush=True)
    lines = [
        f"{'meshes on ' + ', '.join(map(str, worlds)) + ' processes':44} loss differs by at most   % of bytes by rank"
    ]
    for name in CHAINS:
        run = name.replace(" ", "_").replace("(", "_").replace(")", "")
        losses = read_losses(root, run)
        difference = max(abs(mine - theirs) for mine, theirs in zip(losses, expected, strict=True))
        trained = {step: hashes for stage in found for step, hashes in stage[name].items()}
        assert trained == {step: sorted(hashes) for step, hashes in rows.items()}, f"{name}: other data"
        last = (len(worlds) - 1) * STAGE_STEPS  # of the last stage on several ranks
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
