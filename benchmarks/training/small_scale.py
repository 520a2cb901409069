"""What lowers the loss at a very small scale, on a CPU, in minutes: extras of Muon, schedules, an average of the weights.

    nice -n 10 python benchmarks/training/small_scale.py        # about two minutes on one core

A decoder of Qwen 3's shape with 2 layers of 64 learns the sources of Python's own library, byte by byte, with Muon. Each
contender sees the same 102K tokens in the same order. Its learning rate is the best of `--rates` by the mean of three seeds. The
last columns are the difference to plain Muon of the same seeds, each at its own best rate, with the 95% interval of a paired
t-test. This says nothing about larger models: it only says what was worth a setting, and what was not.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sysconfig
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skytrain.config import Config, batch_sizes, compose
from skytrain.models import build_model, lm_loss, split_auxiliary
from skytrain.training import learning_rate, make_optimizer
from skytrain.training.average import WeightAverage
from skytrain.training.optimizers import muon

LENGTH = 64
BATCH = 512  # tokens of a step
STEPS = 200
HELD_OUT = 64 * 256  # tokens
SEEDS = (1, 2, 3)
RATES = (1e-2, 2e-2)
T_95 = 4.303  # of two degrees of freedom
MODEL = (
    "model=modern-124m",
    "tokenizer=bytes",
    "model.layers=2",
    "model.width=64",
    "model.heads=2",
    "model.head_size=32",
    "model.mlp_width=176",
    f"model.max_length={LENGTH}",
    f"trainer.sequence_length={LENGTH}",
    "trainer.micro_batch=4",
    f"trainer.batch_tokens={BATCH}",
    "optimizer=muon",
    "optimizer.momentum_start=0.85",
    "optimizer.momentum_warmup=50",
    "lr_schedule=wsd",
    "lr_schedule.warmup_steps=10",
    "lr_schedule.decay_fraction=0.5",
)


@dataclass(frozen=True)
class Contender:
    """A change to the plain recipe: settings, or another update of the matrices."""

    name: str
    settings: tuple[str, ...] = ()
    step: Callable[..., Any] | None = None
    others_decay: float | None = None  # share of the run in which embedding and vectors decay; None: as the matrices


def cautious_step(self: muon.MatrixMuon, closure: Any = None) -> None:
    """Decay only the weights that the update makes smaller too (Chen et al. 2025, arXiv 2510.12402)."""
    for group in self.param_groups:
        for alike in muon._by_shape(group["params"]):
            directions = muon.orthogonal_parts(alike, self._directions(group, alike))
            size = group["lr"] * muon.MATCHED_RMS * math.sqrt(max(alike[0].shape[-2:]))
            for parameter, direction in zip(alike, directions.float(), strict=True):
                shrinks = (direction * parameter > 0).to(parameter.dtype)
                parameter.sub_(parameter * shrinks, alpha=group["lr"] * group["weight_decay"])
                parameter.sub_(direction, alpha=size)


PLAIN = Contender("plain Muon")
HALF = f"trainer.batch_schedule=[{{batch_tokens: {BATCH // 2}, until_tokens: {int(0.3 * STEPS) * BATCH}}}]"
CONTENDERS = (
    PLAIN,
    Contender("cautious weight decay", step=cautious_step),
    Contender("NorMuon", ("optimizer.row_beta=0.95",)),
    Contender("WSD with decay_power 1.5", ("lr_schedule.decay_power=1.5",)),
    Contender("half the batch for 30% of the tokens", (HALF,)),
    Contender("embedding and vectors decay over the whole run", others_decay=1.0),
    Contender("embedding and vectors decay over the last fifth", others_decay=0.2),
)
AVERAGES = (0.9, 0.95, 0.98)  # of plain Muon's weights, over the last 30% of its steps


def read_text() -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes of Python's own library for training and validation; each file is in one of them."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    held = [file for number, file in enumerate(files) if number % 10 == 3]
    text = [
        np.frombuffer(b"".join(f.read_bytes() for f in part), np.uint8) for part in (sorted({*files} - {*held}), held)
    ]
    return text[0], text[1]


def train(contender: Contender, config: Config, text: tuple[np.ndarray, np.ndarray]) -> dict[str, float]:
    """Return the validation loss after the last step, of the weights and, for plain Muon, of their averages."""
    model = build_model(config.model, seed=config.seed)
    optimizer = make_optimizer(model, config.optimizer, fused=False)
    if contender.step is not None:
        part: Any = optimizer._parts[0]  # type: ignore[attr-defined]
        part.step = lambda: torch.no_grad()(contender.step)(part)
    sizes = batch_sizes(config.trainer)
    steps = sizes.steps_in(STEPS * BATCH)
    averages = {
        f"average {decay} over the last 30%": WeightAverage(decay, round(0.7 * steps))
        for decay in (AVERAGES if contender is PLAIN else ())
    }
    for average in averages.values():
        average.reserve(model)
    order = np.random.default_rng(config.seed).permutation((len(text[0]) - 1) // LENGTH)
    base = [group["lr"] for group in optimizer.param_groups]
    for step in range(steps):
        first, count = sizes.before(step) // LENGTH, sizes.at(step) // LENGTH
        loss = _loss(model, text[0], order[np.arange(first, first + count) % len(order)])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        factor = learning_rate(config.lr_schedule, step, steps, sizes)
        apart = factor
        if contender.others_decay is not None:
            apart = learning_rate(
                replace(config.lr_schedule, decay_fraction=contender.others_decay), step, steps, sizes
            )
        for group, rate in zip(optimizer.param_groups, base, strict=True):
            group["lr"] = rate * (factor if "momentum_warmup" in group else apart)  # which only matrices have
        optimizer.step()
        for average in averages.values():
            average.update(model, step + 1)
    model.eval()
    found = {contender.name: _held_out(model, text[1])}
    for name, average in averages.items():
        with average.in_place(model):
            found[name] = _held_out(model, text[1])
    return found


@torch.no_grad()
def _held_out(model: torch.nn.Module, text: np.ndarray) -> float:
    windows = np.arange(HELD_OUT // LENGTH).reshape(4, -1)
    return statistics.fmean(float(_loss(model, text, part)) for part in windows)


def _loss(model: torch.nn.Module, text: np.ndarray, windows: np.ndarray) -> Tensor:
    rows = torch.from_numpy(text[windows[:, None] * LENGTH + np.arange(LENGTH + 1)].astype(np.int64))
    return split_auxiliary(lm_loss(model, rows[:, :-1], rows[:, 1:]))[0]


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--rates", type=float, nargs="+", default=RATES)
    options.add_argument("--only", default="", help="plain Muon, and the contenders whose name has this")
    given = options.parse_args()
    rates = tuple(given.rates)
    torch.set_num_threads(1)
    text = read_text()
    print(f"{len(text[0]):,} bytes to train on, {len(text[1]):,} held out; torch {torch.__version__}, one CPU thread")
    print(f"{STEPS} steps of {BATCH} tokens, seeds {SEEDS}, rates {rates}\n")
    print(f"{'contender':38} {'rate':>6}  {'loss of each seed':24} {'mean':>7}  difference to plain Muon")
    plain: list[float] = []
    for contender in (each for each in CONTENDERS if each is PLAIN or given.only in each.name):
        began = time.process_time()
        found: dict[str, dict[float, list[float]]] = {}
        for rate in rates:
            for seed in SEEDS:
                words = (*MODEL, *contender.settings, f"optimizer.lr={rate}", f"seed={seed}")
                for name, loss in train(contender, compose(words).config, text).items():
                    found.setdefault(name, {}).setdefault(rate, []).append(loss)
        for name, by_rate in found.items():
            rate = min(by_rate, key=lambda each: statistics.fmean(by_rate[each]))
            losses = by_rate[rate]
            plain = plain or losses
            gaps = [mine - its for mine, its in zip(losses, plain, strict=True)]
            spread = T_95 * statistics.stdev(gaps) / math.sqrt(len(gaps))
            shown = "" if losses is plain else f"{statistics.fmean(gaps):+.4f} ± {spread:.4f}"
            each = ", ".join(f"{loss:.4f}" for loss in losses)
            print(f"{name:38} {rate:6g}  {each:24} {statistics.fmean(losses):7.4f}  {shown}")
        print(f"  ({time.process_time() - began:.0f} CPU-seconds)", flush=True)


if __name__ == "__main__":
    main()
