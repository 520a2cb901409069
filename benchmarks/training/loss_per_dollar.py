"""What a loss costs: nanoGPT's GPT-2 124M at its best learning rate against `recipe=modern-124m`, on one GPU and text.

    python benchmarks/training/package_text.py TEXT                                          # once, on any machine
    python benchmarks/training/loss_per_dollar.py peer TEXT --nanogpt FOLDER                 # its learning rate
    python benchmarks/training/loss_per_dollar.py record TEXT --modded FOLDER                # the same of a modded-nanogpt record
    python benchmarks/training/loss_per_dollar.py ours TEXT VARIANT ...                      # settings of ours
    python benchmarks/training/loss_per_dollar.py ratio TEXT --nanogpt FOLDER --modded FOLDER --out FOLDER  # the comparison
    python benchmarks/training/loss_per_dollar.py plot LOG --out FOLDER                      # its curves, from a log
    python benchmarks/training/loss_per_dollar.py mixture TEXT --seconds 25 --out FOLDER     # the recipe against a mixture of experts

`--nanogpt` is a checkout of github.com/karpathy/nanoGPT, of which model.py is read; `--modded` is the folder of a record of
github.com/KellerJordan/modded-nanogpt that trains on one GPU (2024-10-14_ModernArch: rotary positions, query and key norms,
squared ReLU, projections that begin at zero, Muon), of which the model and the optimizer in train_gpt2.py are read. Nothing of
them is part of this repository.

What was chosen before anything was measured:
  text     sources and documentation of installed packages, GPT-2 tokens, each window of 1,024 tokens seen once
  peer     nanoGPT as its train.py has it (no biases, no dropout, AdamW with betas 0.9 and 0.95, decay 0.1, clipping at 1,
           cosine to a tenth, bf16, torch.compile), 39.3M tokens, warm-up over a tenth of them, 131,072 tokens a step, at the
           best of five learning rates: 3e-4, 6e-4, 9e-4, 1.2e-3 and 1.8e-3
  target   the mean of its validation loss after the last step over three seeds, on the first 1,048,576 held-out tokens
  ratio    its training time over the training time of the recipe's shortest schedule whose validation loss, after its last step,
           is at the target or below for each of three seeds

What was added after the first measurement: nanoGPT with 65,536 tokens a step, the batch that had won for ours by then, at 3e-4,
4.5e-4, 6e-4, 7.5e-4 and 9e-4; then with 32,768, to which ours had come. Each is the better peer, so the comparison uses the last,
and the ratio is smaller than with the batch chosen first. The record keeps its schedule (no warm-up, no clipping, the rate falls
to zero over the last 28%) and the ratio of its rates; its steps are far fewer than its own 5,100, and smaller.

Training time is what steps take, compiled and warm: neither evaluations nor the start are in it. Both run in the same bare loop
with the text on the GPU. A seed decides the initial weights and the order of windows.

`mixture` trains the recipe's dense model and a mixture with the same active compute, 8 experts of half the MLP's width, 2 for
each token, for the same seconds: each as many steps as fit, by its own speed, with the schedule over them.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import re
import statistics
import sys
import time
import types
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from skytrain.config import Config, compose
from skytrain.models import build_model, split_auxiliary
from skytrain.planning import decoder_flops_per_token, decoder_size
from skytrain.report import loss_svg
from skytrain.training import choose_loss, learning_rate, make_optimizer

LENGTH = 1024
MICRO_BATCH = 64
VALIDATION_WINDOWS = 1024
PEER_TOKENS = 300 * 131072
PEER_RATES = (6e-4, 9e-4, 1.2e-3, 3e-4, 1.8e-3)
SEEDS = (1, 2, 3)
RECIPE = "recipe=modern-124m"
PEERS = ("nanoGPT", "modded-nanogpt")
MIXTURE = (
    "model=qwen3-30b-a3b model.layers=12 model.width=768 model.heads=6 model.kv_heads=6 model.vocab_size=50257 model.tied_head=true "
    "model.max_length=1024 model.rope_theta=10000 model.mlp_width=1024 model.experts.count=8 model.experts.per_token=2 "
    "model.experts.width=1024 model.experts.balance_loss=0.01"
)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # a CPU is for trying a script
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
            return torch.from_numpy(np.fromfile(folder / name, dtype=np.uint16).astype(np.int32)).to(DEVICE)

        return Text(load("train.bin"), load("val.bin"))

    def order(self, seed: int) -> Tensor:
        windows = (len(self.train) - 1) // LENGTH
        return torch.randperm(windows, generator=torch.Generator().manual_seed(seed)).to(DEVICE)

    @staticmethod
    def rows(tokens: Tensor, windows: Tensor) -> Tensor:
        return tokens[windows[:, None] * LENGTH + torch.arange(LENGTH + 1, device=DEVICE)].long()


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

    def clip_gradients(self) -> None:
        if self.clip < math.inf:
            nn.utils.clip_grad_norm_(self.module.parameters(), self.clip)


def synchronize() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


@torch.no_grad()
def validation_loss(contender: Contender, text: Text) -> float:
    contender.module.eval()
    losses = [
        contender.evaluate(rows[:, :-1], rows[:, 1:])
        for windows in torch.arange(VALIDATION_WINDOWS, device=DEVICE).split(MICRO_BATCH)
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
    prepare(contender, text)
    marks = {round(steps * part / evaluations) for part in range(1, evaluations + 1)}
    spent = 0.0
    synchronize()
    began = time.perf_counter()
    for step in range(stop or steps):
        for group, peak in zip(contender.optimizer.param_groups, peaks, strict=True):
            group["lr"] = peak * contender.rate(step)
        for windows in order[step * each : (step + 1) * each].split(MICRO_BATCH):
            rows = Text.rows(text.train, windows)
            (contender.loss(rows[:, :-1], rows[:, 1:]) * (len(windows) / each)).backward()
        contender.clip_gradients()
        contender.optimizer.step()
        contender.optimizer.zero_grad()
        if step + 1 in marks:
            synchronize()
            spent += time.perf_counter() - began
            run.steps.append(step + 1)
            run.seconds.append(spent)
            run.losses.append(validation_loss(contender, text))
            synchronize()
            began = time.perf_counter()
    for group, peak in zip(contender.optimizer.param_groups, peaks, strict=True):
        group["lr"] = peak
    print(run.line(), flush=True)
    return run


def prepare(contender: Contender, text: Text) -> None:
    """Run a micro-batch without an update, so that what it compiles, tunes or records is not part of the training time."""
    rows = Text.rows(text.train, torch.arange(min(MICRO_BATCH, contender.batch_tokens // LENGTH), device=DEVICE))
    for _ in range(2):
        contender.loss(rows[:, :-1], rows[:, 1:]).backward()
    contender.optimizer.zero_grad()


class NanoGPT:
    """nanoGPT's model, compiled once for all its runs; with CUDA graphs where asked."""

    def __init__(self, folder: Path, *, graphs: bool = False) -> None:
        spec = importlib.util.spec_from_file_location("nanogpt_model", folder / "model.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self._module = module
        self._model = self._fresh(0).cuda()
        self._compiled = torch.compile(self._model, mode="reduce-overhead" if graphs else None)

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

    def warm(self, text: Text, batch_tokens: int) -> None:
        """Compile, and let clocks and allocations settle."""
        warm(self.contender(6e-4, batch_tokens, 0), text)


class Optimizers(torch.optim.Optimizer):
    """Several optimizers as one: their groups in one list, their steps one after the other."""

    def __init__(self, parts: list[torch.optim.Optimizer]) -> None:
        self.parts = parts
        self.param_groups = [group for part in parts for group in part.param_groups]

    def step(self, closure: Any = None) -> None:
        for part in self.parts:
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none)


class Modded:
    """The model and the optimizers of a modded-nanogpt record, compiled once for all its runs."""

    DECAY = 1450 / 5100  # the last part of the record's steps, in which its rate falls to zero

    def __init__(self, folder: Path) -> None:
        definitions, marker, _ = (folder / "train_gpt2.py").read_text().partition("# int main")
        assert marker, "the record's definitions end at '# int main'"
        self._names: dict[str, Any] = {"__name__": "modded_record"}
        sys.modules["modded_record"] = types.ModuleType("modded_record")  # where its dataclass looks for its own module
        exec(compile(definitions, "train_gpt2.py", "exec"), self._names)
        self._model = self._fresh(0)
        self._compiled = torch.compile(self._model)

    def _fresh(self, seed: int) -> Any:
        torch.manual_seed(seed)
        return self._names["GPT"](self._names["GPTConfig"]()).cuda()

    def contender(self, rate: float, batch_tokens: int, steps: int, seed: int) -> Contender:
        model = self._model
        model.load_state_dict(self._fresh(seed).state_dict())
        model.zero_grad()
        adamw = torch.optim.AdamW(model.lm_head.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0, fused=True)
        muon = self._names["Muon"](model.transformer.h.parameters(), lr=0.1 * rate, momentum=0.95)

        def loss_of(model: Any) -> Callable[[Tensor, Tensor], Tensor]:
            def loss(x: Tensor, y: Tensor) -> Tensor:
                with torch.autocast("cuda", torch.bfloat16):
                    return model(x.contiguous(), y.contiguous(), return_logits=False)[1]

            return loss

        return Contender(
            name=f"modded-nanogpt, {rate:g}, {batch_tokens:,} tokens a step",
            batch_tokens=batch_tokens,
            module=model,
            loss=loss_of(self._compiled),
            evaluate=loss_of(self._model),
            optimizer=Optimizers([adamw, muon]),
            rate=lambda step: min(1.0, (steps - step) / (self.DECAY * steps)),
            clip=math.inf,
        )


def ours(words: list[str], seed: int) -> tuple[Contender, Config]:
    config = compose([RECIPE, f"trainer.device={DEVICE}", f"seed={seed}", *words]).config
    model = build_model(config.model, seed=seed).to(DEVICE)
    path = choose_loss(config, DEVICE)
    assert path.kind == "fused" or DEVICE == "cpu"

    optimizer = make_optimizer(model, config.optimizer, fused=DEVICE == "cuda")

    def loss(x: Tensor, y: Tensor) -> Tensor:
        found, auxiliary = split_auxiliary(path.loss(model, x, y, None))  # a model in evaluation has no auxiliary loss
        return found if auxiliary is None else found + auxiliary

    made = Contender(
        name=" ".join(words) or RECIPE,
        batch_tokens=config.trainer.batch_tokens,
        module=model,
        loss=loss,
        evaluate=loss,
        optimizer=optimizer,
        rate=lambda step: learning_rate(config.lr_schedule, step, config.trainer.steps),
        clip=config.trainer.clip_norm or math.inf,
    )
    return made, config


def warm(contender: Contender, text: Text) -> float:
    """Run a few steps and return the seconds of one, at the end."""
    rows = Text.rows(text.train, torch.arange(min(MICRO_BATCH, contender.batch_tokens // LENGTH), device=DEVICE))
    for step in range(14):
        if step == 6:
            synchronize()
            began = time.perf_counter()
        contender.loss(rows[:, :-1], rows[:, 1:]).backward()
        contender.clip_gradients()
        contender.optimizer.step()
        contender.optimizer.zero_grad()
    synchronize()
    return (time.perf_counter() - began) / 8


def find_rate(text: Text, options: argparse.Namespace) -> None:
    peer = NanoGPT(options.nanogpt, graphs=options.graphs)
    began = time.perf_counter()
    peer.warm(text, options.batch)
    print(f"nanoGPT compiled after {time.perf_counter() - began:.0f} s", flush=True)
    steps = PEER_TOKENS // options.batch
    found = {}
    for rate in options.rates:
        contender = peer.contender(rate, options.batch, options.seed)
        found[rate] = train(contender, text, options.seed, steps, 3, options.stop).losses[-1]
    print(f"best: {min(found, key=lambda rate: found[rate]):g}")


def find_record_rate(text: Text, options: argparse.Namespace) -> None:
    """Train the record for each number of steps that --schedules names, at each rate."""
    record = Modded(options.modded)
    began = time.perf_counter()
    warm(record.contender(options.rates[0], options.batch, 100, 0), text)
    print(f"modded-nanogpt compiled after {time.perf_counter() - began:.0f} s", flush=True)
    for steps in options.schedules:
        for rate in options.rates:
            train(record.contender(rate, options.batch, steps, options.seed), text, options.seed, steps, 4)


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


def shortest(
    schedules: list[int], target: float, text: Text, make: Callable[[int, int], Contender]
) -> tuple[list[Run], list[Run]]:
    """Return the runs of the first schedule with which every seed ends at the target or below, and those that missed."""
    missed: list[Run] = []
    for steps in schedules:
        runs: list[Run] = []
        for seed in SEEDS:
            contender = make(steps, seed)
            runs.append(train(contender, text, seed, steps, 10))
            del contender
            torch.cuda.empty_cache()
            if runs[-1].losses[-1] > target:
                break
        else:
            return runs, missed
        missed += runs
    return [], missed


def compare(text: Text, options: argparse.Namespace) -> None:
    words = " ".join(options.variants).split()
    peer = NanoGPT(options.nanogpt, graphs=options.graphs)
    peer.warm(text, options.batch)
    steps = PEER_TOKENS // options.batch
    theirs = [train(peer.contender(options.rate, options.batch, seed), text, seed, steps, 10) for seed in SEEDS]
    target = statistics.mean(run.losses[-1] for run in theirs)
    print(f"target {target:.4f}", flush=True)
    del peer
    torch.cuda.empty_cache()

    def mine(steps: int, seed: int) -> Contender:
        return ours([*words, f"trainer.steps={steps}"], seed)[0]

    warm(mine(100, 0), text)
    reached, missed = shortest(options.schedules, target, text, mine)
    save([*theirs, *reached, *missed], options.out)
    report(theirs, reached, target, RECIPE)
    if options.modded is None:
        return
    torch.cuda.empty_cache()
    record = Modded(options.modded)

    def its(steps: int, seed: int) -> Contender:
        return record.contender(options.record_rate, options.record_batch, steps, seed)

    warm(its(100, 0), text)
    recorded, missed = shortest(options.record_schedules, target, text, its)
    save([*theirs, *reached, *recorded, *missed], options.out)
    report(theirs, recorded, target, "modded-nanogpt")


def compare_mixture(text: Text, options: argparse.Namespace) -> None:
    """Train the dense model and the mixture for the same seconds, with each seed."""
    shared = "trainer.batch_tokens=65536 lr_schedule.warmup_steps=20 " + " ".join(options.variants)
    runs: dict[str, list[Run]] = {}
    for name, words in {"dense": shared.split(), "mixture": [*MIXTURE.split(), *shared.split()]}.items():
        contender, config = ours(words, 0)
        each = warm(contender, text)
        steps = int(options.seconds / each)
        size = decoder_size(config.model)
        print(
            f"{name}: {size.parameters:,} parameters, {size.active_parameters:,} active, "
            f"{decoder_flops_per_token(config.model, LENGTH) / 1e9:.3f} GFLOP a token, {each * 1e3:.1f} ms a step: {steps} steps",
            flush=True,
        )
        for seed in range(options.seed, options.seed + options.seeds):
            contender, _ = ours([*words, f"trainer.steps={steps}"], seed)
            contender.name = name
            runs.setdefault(name, []).append(train(contender, text, seed, steps, 6))
            del contender
            torch.cuda.empty_cache()
    gaps = [mine.losses[-1] - its.losses[-1] for mine, its in zip(runs["mixture"], runs["dense"], strict=True)]
    for name, found in runs.items():
        seconds = statistics.mean(run.seconds[-1] for run in found)
        print(
            f"{name}: loss {statistics.mean(run.losses[-1] for run in found):.4f} after {seconds:.1f} s, "
            f"${seconds / 3600 * USD_PER_HOUR:.4f}"
        )
    print("mixture less dense, by seed: " + ", ".join(f"{gap:+.4f}" for gap in gaps))
    curves = [
        (name, [list(zip(run.seconds, run.losses, strict=True)) for run in found]) for name, found in runs.items()
    ]
    options.out.mkdir(parents=True, exist_ok=True)
    best = min(run.losses[-1] for run in runs["dense"])
    (options.out / "mixture_h200.svg").write_text(loss_svg("seconds of training", curves, best))
    save([run for found in runs.values() for run in found], options.out)


def save(runs: list[Run], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "loss_per_dollar.json").write_text(json.dumps([asdict(run) for run in runs], indent=1))


def report(theirs: list[Run], mine: list[Run], target: float, name: str) -> None:
    if not mine:
        print(f"{name}: no schedule reached {target:.4f} with every seed", flush=True)
        return
    seconds = [statistics.mean(run.seconds[-1] for run in runs) for runs in (theirs, mine)]
    tokens = [runs[0].steps[-1] * runs[0].batch_tokens for runs in (theirs, mine)]
    for who, runs, time_, count in zip(("nanoGPT", name), (theirs, mine), seconds, tokens, strict=True):
        losses = [run.losses[-1] for run in runs]
        print(
            f"{who}: loss {statistics.mean(losses):.4f} (spread {max(losses) - min(losses):.4f}), {count / 1e6:.2f}M tokens, "
            f"{time_:.1f} s, {count / time_:,.0f} tokens/s, ${time_ / 3600 * USD_PER_HOUR:.4f}, {runs[0].parameters:,} parameters"
        )
    print(
        f"{name}, to {target:.4f}: tokens 1/{tokens[0] / tokens[1]:.2f}, time 1/{seconds[0] / seconds[1]:.2f}",
        flush=True,
    )


LINE = re.compile(r"(?P<name>.*), seed (?P<seed>\d+): loss \S+ after (?P<seconds>\S+) s, .* \| (?P<curve>.*)")


def plot(log: Path, out: Path) -> None:
    """Plot the losses over the seconds of each seed, from the last call of a log that compared both."""
    lines: list[re.Match[str]] = []
    for line in log.read_text().splitlines():
        if line.startswith("#") and "loss_per_dollar.py ratio" in line:
            lines = []
        elif (found := LINE.match(line)) is not None:
            lines.append(found)
    curves: dict[str, dict[int, list[list[tuple[float, float]]]]] = {}
    for line in lines:
        points = [(int(step), float(loss)) for step, loss in (pair.split(":") for pair in line["curve"].split())]
        seconds = [(step * float(line["seconds"]) / points[-1][0], loss) for step, loss in points]
        name = next((peer for peer in PEERS if line["name"].startswith(peer)), RECIPE)
        curves.setdefault(name, {}).setdefault(points[-1][0], []).append(seconds)
    target = statistics.mean(run[-1][1] for runs in curves["nanoGPT"].values() for run in runs)
    # Of each, the schedule that was run with every seed: the ones before it missed the target.
    whole = [(name, runs) for name, found in curves.items() for runs in found.values() if len(runs) == len(SEEDS)]
    (out / "loss_per_dollar_h200.svg").write_text(loss_svg("seconds of training", whole, target))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("peer", "record", "ours", "ratio", "plot", "mixture"))
    parser.add_argument("text", type=Path)
    parser.add_argument("variants", nargs="*", default=[], help="settings of ours, each a quoted list")
    parser.add_argument("--nanogpt", type=Path)
    parser.add_argument("--modded", type=Path)
    parser.add_argument("--rate", type=float, default=6e-4, help="nanoGPT's learning rate")
    parser.add_argument(
        "--schedules", type=int, nargs="+", default=[236, 260, 284, 308, 340], help="steps of ours, the shortest first"
    )
    parser.add_argument("--record-rate", type=float, default=3.6e-3)
    parser.add_argument("--record-batch", type=int, default=32768)
    parser.add_argument("--record-schedules", type=int, nargs="+", default=[236, 284, 340])
    parser.add_argument("--batch", type=int, default=131072, help="nanoGPT's tokens a step")
    parser.add_argument("--rates", type=float, nargs="+", default=list(PEER_RATES))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=1, help="seeds of each variant of ours, from --seed on")
    parser.add_argument("--graphs", action="store_true", help="record nanoGPT's steps as CUDA graphs")
    parser.add_argument("--seconds", type=float, default=25.0, help="training time of each run of `mixture`")
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
    elif options.part == "record":
        find_record_rate(text, options)
    elif options.part == "mixture":
        compare_mixture(text, options)
    elif options.part == "ours":
        try_variants(text, options)
    else:
        compare(text, options)


if __name__ == "__main__":
    main()
