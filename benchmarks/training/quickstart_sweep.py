"""Finds the small model, optimizer and batch that learn most of Python's documentation in a fixed time on two cores.

    skytrain prepare recipe=quickstart tokenizer.vocab_size=2048 tokenizer.name=bpe-2048   # one for each vocabulary
    python benchmarks/training/quickstart_sweep.py --store skytrain-store --seconds 100

Each variant gets the same seconds: 15 steps are timed, and the schedule is as long as the time allows. Variants
run side by side, each bound to two cores. The table is sorted by validation bits per byte.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

STEP_OVERHEAD_SECONDS = 0.004  # of the trainer around a step, as benchmarks/training/cpu_overhead.py has it
WARMUP_STEPS = 30
TIMED_STEPS = 15


@dataclass(frozen=True)
class Variant:
    layers: int = 2
    width: int = 128
    mlp_width: int = 352
    vocab_size: int = 4096
    sequence_length: int = 128
    batch_tokens: int = 1024
    optimizer: str = "muon"
    lr: float = 5e-3

    def overrides(self) -> list[str]:
        return [
            "model=llama-tiny",
            "model.tied_head=true",
            f"model.layers={self.layers}",
            f"model.width={self.width}",
            f"model.mlp_width={self.mlp_width}",
            f"tokenizer.vocab_size={self.vocab_size}",
            f"optimizer={self.optimizer}",
            f"optimizer.lr={self.lr}",
        ]


VARIANTS = (
    Variant(),
    Variant(lr=3e-3),
    Variant(lr=8e-3),
    Variant(layers=1),
    Variant(layers=3),
    Variant(layers=4),
    Variant(width=192, mlp_width=512),
    Variant(vocab_size=2048),
    Variant(layers=4, vocab_size=2048),
    Variant(batch_tokens=512),
    Variant(batch_tokens=2048),
    Variant(batch_tokens=4096),
    Variant(sequence_length=256),
    Variant(optimizer="adamw", lr=4e-3),
    Variant(optimizer="adamw", lr=4e-3, batch_tokens=2048),
    Variant(layers=4, width=256, mlp_width=704),
)


def train_for(variant: Variant, store: Path, seconds: float) -> dict[str, Any]:
    """In this process. Validation is over the whole split."""
    import torch
    from torch import nn

    from skytrain.config import compose
    from skytrain.models import build_model, lm_loss
    from skytrain.training import make_optimizer

    torch.set_num_threads(2)
    config = compose(["tokenizer=bpe-4k", *variant.overrides()]).config
    folder = _tokens(store, variant.vocab_size)
    train, validation = (_read(folder / split) for split in ("train", "validation"))
    text_bytes = json.loads((folder / "validation/manifest.json").read_text())["text_bytes"]
    model = build_model(config.model, seed=1)
    optimizer = make_optimizer(model, config.optimizer, fused=False)
    rates = [group["lr"] for group in optimizer.param_groups]
    windows = _windows(train, variant.sequence_length)

    def step(factor: float) -> None:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * factor
        count = variant.batch_tokens // variant.sequence_length
        batch = torch.from_numpy(np.stack([next(windows) for _ in range(count)]))
        lm_loss(model, batch[:, :-1], batch[:, 1:]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    step_seconds = _timed(step) + STEP_OVERHEAD_SECONDS
    steps = int(seconds / step_seconds)
    for number in range(steps):
        step(min((number + 1) / WARMUP_STEPS, (steps - number) / (steps - WARMUP_STEPS)))
    nats = 0.0
    with torch.no_grad():
        for begin in range(0, len(validation) - 1, variant.sequence_length):
            window = torch.from_numpy(validation[begin : begin + variant.sequence_length + 1])[None]
            nats += float(lm_loss(model, window[:, :-1], window[:, 1:])) * (window.shape[1] - 1)
    return {"bits_per_byte": nats / math.log(2) / text_bytes, "steps": steps, "step_ms": step_seconds * 1e3}


def _timed(step: Callable[[float], None]) -> float:
    seconds = []
    for _ in range(TIMED_STEPS):
        began = time.perf_counter()
        step(1e-6)  # so small a rate leaves the weights as they are
        seconds.append(time.perf_counter() - began)
    return sorted(seconds)[TIMED_STEPS // 2]


def _tokens(store: Path, vocab_size: int) -> Path:
    for manifest in store.glob("tokens/python-docs/*/*/train/manifest.json"):
        if json.loads(manifest.read_text())["tokenizer"]["vocab_size"] == vocab_size:
            return manifest.parent.parent
    sys.exit(f"{store} holds no tokens of a vocabulary of {vocab_size}: see the top of this file")


def _read(folder: Path) -> np.ndarray:
    header_words = 512  # 1024 bytes
    return np.fromfile(folder / "shard-00000.bin", dtype=np.uint16)[header_words:].astype(np.int64)


def _windows(tokens: np.ndarray, length: int) -> Iterator[np.ndarray]:
    random = np.random.default_rng(0)
    while True:
        for index in random.permutation((len(tokens) - 1) // length):
            yield tokens[index * length : (index + 1) * length + 1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, default=Path("skytrain-store"))
    parser.add_argument("--seconds", type=float, default=100.0)
    parser.add_argument("--variant", type=int, help="run this one here, and print one line of JSON")
    options = parser.parse_args()
    if options.variant is not None:
        print(json.dumps(train_for(VARIANTS[options.variant], options.store, options.seconds)))
        return
    pairs: SimpleQueue[int] = SimpleQueue()
    count = max(1, (os.cpu_count() or 2) // 2)
    for pair in range(count):
        pairs.put(pair)

    def run(number: int) -> dict[str, Any]:
        pair = pairs.get()
        own = [sys.executable, __file__, "--store", options.store, "--seconds", options.seconds, "--variant", number]
        bound = ["taskset", "-c", f"{2 * pair},{2 * pair + 1}", *map(str, own)]
        done = subprocess.run(
            bound, capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "2"}
        )
        pairs.put(pair)
        return {**json.loads(done.stdout), **asdict(VARIANTS[number])}

    with ThreadPoolExecutor(count) as pool:
        rows = sorted(pool.map(run, range(len(VARIANTS))), key=lambda row: row["bits_per_byte"])
    print("bits/byte  steps  ms a step  variant")
    for row in rows:
        figures = f"{row.pop('bits_per_byte'):9.4f}  {row.pop('steps'):5d}  {row.pop('step_ms'):9.1f}"
        print(figures + "  " + " ".join(f"{key}={value}" for key, value in row.items()))


if __name__ == "__main__":
    main()
