"""What a loss costs: nanoGPT's GPT-2 124M at its best learning rate against `recipe=modern-124m`, on one GPU and text.

    python benchmarks/training/package_text.py TEXT                                          # once, on any machine
    python benchmarks/training/loss_per_dollar.py peer TEXT --nanogpt FOLDER                 # its learning rate
    python benchmarks/training/loss_per_dollar.py ours TEXT VARIANT ...                      # settings of ours
    python benchmarks/training/loss_per_dollar.py ratio TEXT --nanogpt FOLDER --out FOLDER   # the comparison
    python benchmarks/training/loss_per_dollar.py plot LOG --out FOLDER                      # its curves, from a log

FOLDER is a checkout of github.com/karpathy/nanoGPT; only its model.py is read, and nothing of it is part of this repository.

What was chosen before anything was measured:
  text     sources and documentation of installed packages, GPT-2 tokens, each window of 1,024 tokens seen once
  peer     nanoGPT as its train.py has it (no biases, no dropout, AdamW with betas 0.9 and 0.95, decay 0.1, clipping at 1,
           cosine to a tenth, bf16, torch.compile), 39.3M tokens, warm-up over a tenth of them, 131,072 tokens a step, at the
           best of five learning rates: 3e-4, 6e-4, 9e-4, 1.2e-3 and 1.8e-3
  target   the mean of its validation loss after the last step over three seeds, on the first 1,048,576 held-out tokens
  ratio    its training time over the training time of the recipe's shortest schedule whose validation loss, after its last step,
           is at the target or below for each of three seeds

What was added after the first measurement: nanoGPT with 65,536 tokens a step, the batch that had won for ours by then, at 3e-4,
4.5e-4 and 6e-4. It is the better peer, so the comparison uses it, and the ratio is smaller than with the batch chosen first.

Training time is what steps take, compiled and warm: neither evaluations nor the start are in it. Both run in the same bare loop
with the text on the GPU. A seed decides the initial weights and the order of windows.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from skytrain.config import Config
from skytrain.config.composition import compose
from skytrain.models import build_model
from skytrain.report import loss_svg
from skytrain.training.losses import choose_loss
from skytrain.training.optimizers import make_optimizer
from skytrain.training.schedules import learning_rate

LENGTH = 1024
MICRO_BATCH = 64
VALIDATION_WINDOWS = 1024
PEER_TOKENS = 300 * 131072
PEER_RATES = (6e-4, 9e-4, 1.2e-3, 3e-4, 1.8e-3)
SEEDS = (1, 2, 3)
RECIPE = "recipe=modern-124m"
USD_PER_HOUR = 2.6295  # p5.4xlarge, one H100, spot in us-east-1: planning/data/prices.csv


@dataclass
class Run:
    """One run: its validation losses by step, and what each of them took."""

    name: str
    seed: int
    batch_tokens: int
    parameters: int
    steps: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)  # of training, up to that step
    losses: list[float] = field(default_factory=list)

    def line(self) -> str:
        tokens = self.steps[-1] * self.batch_tokens
        curve = " ".join(f"{step}:{loss:.4f}" for step, loss in zip(self.steps, self.losses, strict=True))
        return (
            f"{self.name}, seed {self.seed}: loss {self.losses[-1]:.4f} after {self.seconds[-1]:.2f} s, {tokens / 1e6:.1f}M tokens "
            f"({tokens / self.seconds[-1]:,.0f} tokens/s) | {curve}"
        )


@dataclass
class Text:
    train: Tensor  # on the GPU
    validation: Tensor

    @staticmethod
    def read(folder: Path) -> Text:
        def load(name: str) -> Tensor:
            return torch.from_numpy(np.fromfile(folder / name, dtype=np.uint16).astype(np.int32)).cuda()

        return Text(load("train.bin"), load("val.bin"))

    def order(self, seed: int) -> Tensor:
        windows = (len(self.train) - 1) // LENGTH
        return torch.randperm(windows, generator=torch.Generator().manual_seed(seed)).cuda()

    @staticmethod
    def rows(tokens: Tensor, windows: Tensor) -> Tensor:
        return tokens[windows[:, None] * LENGTH + torch.arange(LENGTH + 1, device="cuda")].long()


@dataclass
class Contender:
    """A model in training: the loss of a micro-batch, and the optimizer's settings by step."""

    name: str
    batch_tokens: int
    module: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor]
    evaluate: Callable[[Tensor, Tensor], Tensor]
    optimizer: torch.optim.Optimizer
    rate: Callable[[int], float]  # the factor of each group's learning rate at a step
    clip: float


@torch.no_grad()
def validation_loss(contender: Contender, text: Text) -> float:
    contender.module.eval()
    losses = [
        contender.evaluate(rows[:, :-1], rows[:, 1:])
        for windows in torch.arange(VALIDATION_WINDOWS, device="cuda").split(MICRO_BATCH)
        for rows in [Text.rows(text.validation, windows)]
    ]
    contender.module.train()
    return float(torch.stack(losses).double().mean())


def train(contender: Contender, text: Text, seed: int, steps: int, evaluations: int, stop: int | None = None) -> Run:
    """Train for `steps` steps, or only up to step `stop` of them, and evaluate after each of `evaluations` equal parts."""
    run = Run(contender.name, seed, contender.batch_tokens, sum(p.numel() for p in contender.module.parameters()))
    order = text.order(seed)
    peaks = [group["lr"] for group in contender.optimizer.param_groups]
    each = contender.batch_tokens // LENGTH
    marks = {round(steps * part / evaluations) for part in range(1, evaluations + 1)}
    spent = 0.0
    torch.cuda.synchronize()
    began = time.perf_counter()
    for step in range(stop or steps):
        for group, peak in zip(contender.optimizer.param_groups, peaks, strict=True):
            group["lr"] = peak * contender.rate(step)
        for windows in order[step * each : (step + 1) * each].split(MICRO_BATCH):
            rows = Text.rows(text.train, windows)
            (contender.loss(rows[:, :-1], rows[:, 1:]) * (len(windows) / each)).backward()
        nn.utils.clip_grad_norm_(contender.module.parameters(), contender.clip)
        contender.optimizer.step()
        contender.optimizer.zero_grad()
        if step + 1 in marks:
            torch.cuda.synchronize()
            spent += time.perf_counter() - began
            run.steps.append(step + 1)
            run.seconds.append(spent)
            run.losses.append(validation_loss(contender, text))
            torch.cuda.synchronize()
            began = time.perf_counter()
    for group, peak in zip(contender.optimizer.param_groups, peaks, strict=True):
        group["lr"] = peak
    print(run.line(), flush=True)
    return run


class NanoGPT:
    """nanoGPT's model, compiled once for all its runs."""

    def __init__(self, folder: Path) -> None:
        spec = importlib.util.spec_from_file_location("nanogpt_model", folder / "model.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self._module = module
        self._model = self._fresh(0).cuda()
        self._compiled = torch.compile(self._model)

    def _fresh(self, seed: int) -> Any:
        torch.manual_seed(seed)
        return self._module.GPT(self._module.GPTConfig(block_size=LENGTH, bias=False))

    def contender(self, rate: float, batch_tokens: int, seed: int) -> Contender:
        steps = PEER_TOKENS // batch_tokens
        warmup = steps // 10
        self._model.load_state_dict(self._fresh(seed).state_dict())
        self._model.zero_grad()
        optimizer = self._model.configure_optimizers(0.1, rate, (0.9, 0.95), "cuda")

        def loss_of(model: Any) -> Callable[[Tensor, Tensor], Tensor]:
            def loss(x: Tensor, y: Tensor) -> Tensor:
                with torch.autocast("cuda", torch.bfloat16):
                    return model(x.contiguous(), y.contiguous())[1]

            return loss

        def factor(step: int) -> float:
            if step < warmup:
                return (step + 1) / (warmup + 1)
            done = (step - warmup) / (steps - warmup)
            return 0.1 + 0.9 * 0.5 * (1.0 + math.cos(math.pi * done))

        return Contender(
            name=f"nanoGPT, AdamW {rate:g}, {batch_tokens:,} tokens a step",
            batch_tokens=batch_tokens,
            module=self._model,
            loss=loss_of(self._compiled),
            evaluate=loss_of(self._model),
            optimizer=optimizer,
            rate=factor,
            clip=1.0,
        )

    def warm(self, text: Text) -> None:
        """Compile, and let clocks and allocations settle."""
        warm(self.contender(6e-4, 65536, 0), text)


def ours(words: list[str], seed: int) -> tuple[Contender, Config]:
    config = compose([RECIPE, "trainer.device=cuda", f"seed={seed}", *words]).config
    model = build_model(config.model, seed=seed).cuda()
    path = choose_loss(config, "cuda")
    assert path.kind == "fused"

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return path.loss(model, x, y, None)  # type: ignore[return-value]

    made = Contender(
        name=" ".join(words) or RECIPE,
        batch_tokens=config.trainer.batch_tokens,
        module=model,
        loss=loss,
        evaluate=loss,
        optimizer=make_optimizer(model, config.optimizer, fused=True),
        rate=lambda step: learning_rate(config.lr_schedule, step, config.trainer.steps),
        clip=config.trainer.clip_norm or math.inf,
    )
    return made, config


def warm(contender: Contender, text: Text) -> None:
    rows = Text.rows(text.train, torch.arange(MICRO_BATCH, device="cuda"))
    for _ in range(6):
        contender.loss(rows[:, :-1], rows[:, 1:]).backward()
        contender.optimizer.step()
        contender.optimizer.zero_grad()
    torch.cuda.synchronize()


def find_rate(text: Text, options: argparse.Namespace) -> None:
    peer = NanoGPT(options.nanogpt)
    began = time.perf_counter()
    peer.warm(text)
    print(f"nanoGPT compiled after {time.perf_counter() - began:.0f} s", flush=True)
    steps = PEER_TOKENS // options.batch
    found = {}
    for rate in options.rates:
        contender = peer.contender(rate, options.batch, options.seed)
        found[rate] = train(contender, text, options.seed, steps, 3, options.stop).losses[-1]
    print(f"best: {min(found, key=lambda rate: found[rate]):g}")


def try_variants(text: Text, options: argparse.Namespace) -> None:
    """Train each variant with each seed: settings separated by spaces, in addition to the recipe's."""
    variants = options.variants or [""]
    warm(ours(variants[0].split(), 0)[0], text)
    runs = []
    for variant in variants:
        for seed in range(options.seed, options.seed + options.seeds):
            contender, config = ours(variant.split(), seed)
            runs.append(train(contender, text, seed, config.trainer.steps, 4))
            del contender
            torch.cuda.empty_cache()
    save(runs, options.out)


def compare(text: Text, options: argparse.Namespace) -> None:
    words = " ".join(options.variants).split()
    peer = NanoGPT(options.nanogpt)
    peer.warm(text)
    steps = PEER_TOKENS // options.batch
    theirs = [train(peer.contender(options.rate, options.batch, seed), text, seed, steps, 10) for seed in SEEDS]
    del peer
    torch.cuda.empty_cache()
    contender, _ = ours(words, 0)
    warm(contender, text)
    mine = []
    for seed in SEEDS:
        contender, config = ours(words, seed)
        mine.append(train(contender, text, seed, config.trainer.steps, 10))
    target = statistics.mean(run.losses[-1] for run in theirs)
    report(theirs, mine, target)
    save([*theirs, *mine], options.out)


def save(runs: list[Run], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "loss_per_dollar.json").write_text(json.dumps([asdict(run) for run in runs], indent=1))


def report(theirs: list[Run], mine: list[Run], target: float) -> None:
    seconds = [statistics.mean(run.seconds[-1] for run in runs) for runs in (theirs, mine)]
    tokens = [runs[0].steps[-1] * runs[0].batch_tokens for runs in (theirs, mine)]
    for name, runs, time_, count in zip(("nanoGPT", RECIPE), (theirs, mine), seconds, tokens, strict=True):
        losses = [run.losses[-1] for run in runs]
        print(
            f"{name}: loss {statistics.mean(losses):.4f} (spread {max(losses) - min(losses):.4f}), {count / 1e6:.2f}M tokens, "
            f"{time_:.1f} s, {count / time_:,.0f} tokens/s, ${time_ / 3600 * USD_PER_HOUR:.4f}, {runs[0].parameters:,} parameters"
        )
    reached = all(run.losses[-1] <= target for run in mine)
    print(f"target {target:.4f}: {'reached by every seed' if reached else 'NOT reached by every seed'}")
    print(f"tokens: 1/{tokens[0] / tokens[1]:.2f}, time: 1/{seconds[0] / seconds[1]:.2f}")


LINE = re.compile(r"(?P<name>.*), seed (?P<seed>\d+): loss \S+ after (?P<seconds>\S+) s, .* \| (?P<curve>.*)")


def plot(log: Path, out: Path) -> None:
    """Plot the losses over the seconds of nanoGPT's best run in each batch and of our runs of the longest schedule."""
    lines = [found for line in log.read_text().splitlines() if (found := LINE.match(line))]
    curves: dict[str, list[list[tuple[float, float]]]] = {}
    for line in lines:
        points = [(int(step), float(loss)) for step, loss in (pair.split(":") for pair in line["curve"].split())]
        seconds = [(step * float(line["seconds"]) / points[-1][0], loss) for step, loss in points]
        curves.setdefault(line["name"], []).append(seconds)
    theirs = [name for name in curves if name.startswith("nanoGPT")]
    half = [name for name in theirs if "65,536" in name]
    best = [min(names, key=lambda name: curves[name][0][-1][1]) for names in (set(theirs) - set(half), half) if names]
    longest = max((name for name in curves if name not in theirs), key=lambda name: curves[name][0][-1][0])
    labels = {best[0]: "nanoGPT, 131K a step", best[-1]: "nanoGPT, 65K a step", longest: "modern-124m, 65K"}
    shown = [(label, curves[name]) for name, label in labels.items()]
    (out / "loss_per_dollar_h200.svg").write_text(loss_svg("seconds of training", shown, curves[best[-1]][0][-1][1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("peer", "ours", "ratio", "plot"))
    parser.add_argument("text", type=Path)
    parser.add_argument("variants", nargs="*", default=[], help="settings of ours, each a quoted list")
    parser.add_argument("--nanogpt", type=Path)
    parser.add_argument("--rate", type=float, default=6e-4, help="nanoGPT's learning rate")
    parser.add_argument("--batch", type=int, default=131072, help="nanoGPT's tokens a step")
    parser.add_argument("--rates", type=float, nargs="+", default=list(PEER_RATES))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=1, help="seeds of each variant of ours, from --seed on")
    parser.add_argument("--stop", type=int, help="end nanoGPT's runs at this step of their schedule")
    parser.add_argument("--out", type=Path, default=Path())
    options = parser.parse_args()
    if options.part == "plot":
        return plot(options.text, options.out)
    torch.set_float32_matmul_precision("high")  # as nanoGPT allows TF32
    text = Text.read(options.text)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; {len(text.train):,} tokens of text", flush=True)
    if options.part == "peer":
        find_rate(text, options)
    elif options.part == "ours":
        try_variants(text, options)
    else:
        compare(text, options)


if __name__ == "__main__":
    main()
