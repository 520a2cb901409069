"""Overhead of `skytrain train` over a bare PyTorch loop on this CPU: same model, data order, optimizer and clipping.

python benchmarks/training/cpu_overhead.py
"""

from __future__ import annotations

import os
import platform
import statistics
import tempfile
import time

import torch

from skytrain.config import Config, compose, total_steps
from skytrain.models import build_model
from skytrain.pipelines.prepare import prepare
from skytrain.pipelines.train import train
from skytrain.runs import Silent, read_metrics
from skytrain.storage import open_store
from skytrain.tokens import TokenSplit, find_prepared
from skytrain.tokens.order import windows_at
from skytrain.training import learning_rate, make_optimizer

STEPS = 14
WARM = 4
ROUNDS = 3
SIZE = [
    "model=gpt2-tiny",
    "model.width=256",
    "tokenizer=bpe-4k",
    "tokenizer.vocab_size=257",
    "trainer.sequence_length=128",
]
BATCH = ["trainer.micro_batch=16", "trainer.batch_tokens=4096", f"trainer.steps={STEPS}", "lr_schedule.warmup_steps=2"]
QUIET = [
    "data=synthetic",
    "data.source.tokens=400K",
    "trainer.validate_every=null",
    "trainer.checkpoint_every=null",
    "trainer.loggers=[tensorboard]",
]


def settings(root: str, run: str) -> Config:
    return compose([*SIZE, *BATCH, *QUIET, f"store.root='{root}'", f"run={run}"]).config


def bare(config: Config) -> tuple[list[float], list[float]]:
    """The loop that anybody would write, on the same windows."""
    import numpy as np

    store = open_store(config.store)
    split = TokenSplit.open(store, find_prepared(store, config.data, config.tokenizer).prefix("train"))
    length = config.trainer.sequence_length
    micro = config.trainer.micro_sequences
    accumulate = config.trainer.batch_tokens // (length * micro)
    model = build_model(config.model, seed=config.seed)
    optimizer = make_optimizer(model, config.optimizer, fused=False)
    seconds = []
    losses = []
    position = 0
    for step in range(STEPS):
        began = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = config.optimizer.lr * learning_rate(config.lr_schedule, step, total_steps(config))
        total = 0.0
        for _ in range(accumulate):
            windows = windows_at(np.arange(position, position + micro), config.seed, split.windows(length))
            batch = split.batch(windows, length)
            loss = model.loss(batch.tokens, batch.targets) / accumulate
            loss.backward()
            total += loss.item()
            position += micro
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.trainer.clip_norm or float("inf"))
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - began)
        losses.append(total)
    return seconds[WARM:], losses


def product(config: Config) -> tuple[list[float], list[float]]:
    run = train(config, Silent()).run
    records = [record for record in read_metrics(open_store(config.store), run) if "perf/step_ms" in record]
    return [record["perf/step_ms"] / 1e3 for record in records][WARM:], [record["train/loss"] for record in records]


def main() -> None:
    ours: list[float] = []
    theirs: list[float] = []
    with tempfile.TemporaryDirectory() as root:
        prepare(settings(root, "prepare"), Silent())
        for turn in range(ROUNDS):
            config = settings(root, f"turn-{turn}")
            seconds, bare_losses = bare(config)
            theirs += seconds
            seconds, losses = product(config)
            ours += seconds
        apart = max(abs(a - b) for a, b in zip(losses, bare_losses, strict=True))
    a = statistics.median(theirs)
    b = statistics.median(ours)
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, torch {torch.__version__}, {torch.get_num_threads()} threads"
    )
    print(f"median of {len(ours)} steps each, in {ROUNDS} turns; losses differ by at most {apart:.1e}")
    print(f"bare loop      {a * 1e3:7.1f} ms a step  {config.trainer.batch_tokens / a:8,.0f} tokens/s")
    print(
        f"skytrain train {b * 1e3:7.1f} ms a step  {config.trainer.batch_tokens / b:8,.0f} tokens/s  ({b / a - 1:+.1%})"
    )


if __name__ == "__main__":
    main()
