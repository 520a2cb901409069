"""What the processes of DeepSpeed's tests do. Each process imports this anew, so it is apart from the tests."""

from __future__ import annotations

from pathlib import Path

import torch.distributed as dist
from benchmarks.parallel.deepspeed_memory import PRESETS, measure_all

from skytrain.checkpoints import convert_newest
from skytrain.config import SkytrainError
from skytrain.storage import open_store
from tests.parallel.workers import train_in_pieces


def everything(root: Path, options: tuple[str, ...]) -> dict:
    """All that two processes are asked for, in one start."""
    dropout = (*options, "model.dropout=0.1")
    return {
        "memory": measure_all(PRESETS),
        "same": {preset: whole_and_stopped(root, preset, dropout) for preset in PRESETS[1:]},
        "to another mesh": refused(root, "deepspeed-zero2-stopped", "fsdp", dropout),
        "to another stage": refused(root, "deepspeed-zero2-stopped", "deepspeed-zero3", dropout),
        "changing": changing(root, options),
    }


def whole_and_stopped(
    root: Path, preset: str, options: tuple[str, ...], name: str = "", stops: tuple[int, int] = (3, 5)
) -> list[list[float]]:
    """The losses of a run that was never stopped and of one that was stopped in the middle."""
    middle, last = stops
    return [
        train_in_pieces(root, f"{name}{preset}-whole", [(preset, last)], options),
        train_in_pieces(root, f"{name}{preset}-stopped", [(preset, middle), (preset, last)], options),
    ]


def refused(root: Path, run: str, preset: str, options: tuple[str, ...]) -> str:
    """What is said to a preset that cannot continue a run."""
    try:
        train_in_pieces(root, run, [(preset, 8)], options)
    except SkytrainError as error:
        return str(error)
    return ""


def changing(root: Path, options: tuple[str, ...]) -> list[float]:
    """The losses of a run that every preset continues in turn, from checkpoints that were converted between them."""
    stops = [("deepspeed-zero1", 2), ("deepspeed-zero3", 4), ("deepspeed-zero2", 6)]
    for preset, stop in stops:
        train_in_pieces(root, "changing", [(preset, stop)], options)
        if dist.get_rank() == 0:
            convert_newest(open_store(str(root)), "changing")
        dist.barrier()
    return train_in_pieces(root, "changing", [("fsdp", 8)], options)


def more(root: Path, options: tuple[str, ...], presets: tuple[str, ...]) -> dict:
    """The heavier proofs, in one start."""
    lowered = (*options, "trainer.precision=bf16-mixed")
    return {
        "float32": {preset: whole_and_stopped(root, preset, options) for preset in presets},
        "bf16": {preset: whole_and_stopped(root, preset, lowered, "bf16-") for preset in presets},
    }


def to_disk(root: Path, options: tuple[str, ...], folder: Path) -> dict[str, list[list[float]]]:
    """By precision, the losses of a run offloaded to memory, to a disk, to a disk with a stop, and to either in turn."""
    preset, disk = "deepspeed-zero3-offload", f"parallel.offload_folder={folder}"
    found = {}
    for precision in ("32-true", "bf16-mixed"):
        given = (*options, f"trainer.precision={precision}")
        turns = f"{precision}-turns"
        train_in_pieces(root, turns, [(preset, 2)], given)
        found[precision] = [
            train_in_pieces(root, f"{precision}-memory", [(preset, 3)], given),
            *whole_and_stopped(root, preset, (*given, disk), f"disk-{precision}-", stops=(2, 3)),
            train_in_pieces(root, turns, [(preset, 3)], (*given, disk)),
        ]
    return found
