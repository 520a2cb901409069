"""Measures how fast this device trains: through the trainer, in a bare loop, and with Hugging Face's model."""

from __future__ import annotations

import gc
import itertools
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..config import Config, MissingExtra, SkytrainError, child_environment, has_layers
from ..models import build_model, flops_per_token, hf_config, split_auxiliary
from ..planning import find_gpu
from ..runs import Reporter, Silent
from ..tokens import Batch
from ..training import (
    GroupTime,
    apply_fp8,
    choose_device,
    choose_loss,
    device_name,
    group_table,
    learning_rate,
    make_optimizer,
    peak_resident_bytes,
    profile_groups,
    with_micro_batch,
    with_precision,
    with_size,
)
from .measurement import RandomTokens, fit_random_tokens, shortened, step_flops_per_token

WARM_STEPS = 3  # for compilation, allocation and clock rates to settle
CACHES = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH")
PEER_BATCHES = (32, 64)  # Hugging Face's model is measured with each of these, and the faster one counts


@dataclass(frozen=True)
class Speed:
    """The speed of one way to train the same steps."""

    name: str
    micro_batch: int
    tokens_per_s: float
    step_ms: float
    mfu: float | None
    peak_gb: float
    first_step_s: float


@dataclass(frozen=True)
class SingleBench:
    """The speeds of one device, and the time of its groups of kernels."""

    device: str
    path: str
    precision: str
    speeds: list[Speed]
    groups: list[GroupTime]
    cold_start_s: float | None  # from the start of a process with empty caches to the end of its first step


def bench_single(
    config: Config, reporter: Reporter, *, steps: int, peer: bool, cold: bool = False, given: Collection[str] = ()
) -> SingleBench:
    """Measure `steps` steps in each way, and with `cold` the start of a new process.

    `given` names the settings that the user has set. If the micro-batch is not among them, the fastest one is used.
    """
    config, device = with_precision(config), choose_device(config)
    if device == "cuda" and "trainer.micro_batch" not in given:
        config = replace(config, trainer=replace(config.trainer, micro_batch=None))
    config = with_micro_batch(config, device, reporter.note)
    path = choose_loss(config, device).label
    cold_start = _fresh(lambda: cold_start_seconds(config)) if cold else None
    if cold_start is not None:
        reporter.note(f"cold start: the first step was done {cold_start:.1f} s after the process started")
    speeds = [_fresh(lambda: through_trainer(config, steps, reporter))]
    reporter.note(speed_line(speeds[-1]))
    bare, groups = _fresh(lambda: bare_loop(config, steps))
    speeds.append(bare)
    reporter.note(speed_line(bare))
    if peer:
        speeds += peer_speeds(config, steps, reporter)
    return SingleBench(
        device=device_name(device),
        path=path,
        precision=config.trainer.compute_precision,
        speeds=speeds,
        groups=groups,
        cold_start_s=cold_start,
    )


def peer_speeds(config: Config, steps: int, reporter: Reporter) -> list[Speed]:
    """Measure Hugging Face's model at its faster micro-batch, with its vocabulary and one padded like Skytrain's."""
    model = config.model
    if not has_layers(model):
        raise SkytrainError(f"model={model.name} has no counterpart in Hugging Face to compare with\n  add --no-peer")
    length = config.trainer.sequence_length
    batch_tokens = config.trainer.batch_tokens
    sizes = [size for size in PEER_BATCHES if batch_tokens % (size * length) == 0]
    best = []
    for vocab_size in sorted({model.vocab_size, model.padded_vocab}):
        candidates = []
        for size in sizes:
            candidates.append(_fresh(partial(hugging_face, config, size, steps, vocab_size)))
            reporter.note(speed_line(candidates[-1]))
        best += [max(candidates, key=lambda speed: speed.tokens_per_s)] if candidates else []
    return best


def speed_line(speed: Speed) -> str:
    parts = [
        f"{speed.name:<44} {speed.tokens_per_s:>10,.0f} tokens/s",
        f"{speed.step_ms:,.1f} ms a step",
        *([f"{speed.mfu:.1%} MFU"] if speed.mfu is not None else []),
        f"{speed.peak_gb:.1f} GB",
        f"first step {speed.first_step_s:.1f} s",
        f"micro-batch {speed.micro_batch}",
    ]
    return " | ".join(parts)


def cold_start_seconds(config: Config) -> float:
    """Return the seconds from the start of a new process to the end of its first step, with empty caches."""
    with tempfile.TemporaryDirectory(prefix="skytrain-cold-") as scratch:
        saved = Path(scratch) / "config.pickle"
        saved.write_bytes(pickle.dumps(config))
        caches = {name: str(Path(scratch) / name) for name in CACHES}
        program = f"from skytrain.bench.single import first_step; print(first_step({str(saved)!r}))"
        began = time.time()
        done = subprocess.run(
            [sys.executable, "-c", program], env=child_environment(caches), capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SkytrainError(f"the process that was started for a first step failed:\n{done.stderr[-2000:]}")
        return float(done.stdout.split()[-1]) - began


def first_step(saved: str) -> float:
    """Return the time at which one step of the pickled configuration was done in this process."""
    config = shortened(pickle.loads(Path(saved).read_bytes()), 1)  # noqa: S301 - written by this process, in a folder of its own
    clock = fit_random_tokens(config, Silent())
    return time.time() - (time.perf_counter() - clock.first_at)


def through_trainer(config: Config, steps: int, reporter: Reporter) -> Speed:
    """Measure what `skytrain train` runs: LightningModule, Trainer, clipping and schedule, on random tokens."""
    began = time.perf_counter()
    config = shortened(config, steps + WARM_STEPS)
    clock = fit_random_tokens(config, reporter)
    return _speed(
        "skytrain train",
        config,
        config.trainer.micro_sequences,
        clock.seconds,
        clock.first_at - began,
        step_flops_per_token(config),
    )


def bare_loop(config: Config, steps: int) -> tuple[Speed, list[GroupTime]]:
    """Measure the same computation without Lightning, and the time of its groups of kernels."""
    began = time.perf_counter()
    device = choose_device(config)
    model = build_model(config.model, seed=config.seed).to(device)
    apply_fp8(config, device, model)
    path = choose_loss(config, device)
    lowered = config.trainer.compute_precision == "bf16-mixed" and not path.lowers_precision

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=lowered):
            return split_auxiliary(path.loss(model, x, y, None))[0]

    loop = Loop(config=config, model=model, micro_batch=config.trainer.micro_sequences, loss_of=loss_of, device=device)
    speed, step = loop.timed("bare loop", steps, began, flops_per_token(model, config.trainer.sequence_length))
    gpu = find_gpu(torch.cuda.get_device_name()) if device == "cuda" else None
    if gpu is None or not has_layers(config.model):
        return speed, []
    return speed, group_table(
        profile_groups(step),
        config.model,
        gpu,
        config.trainer.batch_tokens,
        config.trainer.sequence_length,
    )


def hugging_face(config: Config, micro_batch: int, steps: int, vocab_size: int) -> Speed:
    """Measure the peer: Hugging Face's model of the same shape, compiled, with the same optimizer and clipping."""
    try:
        from transformers import AutoConfig, AutoModelForCausalLM
    except ImportError:
        raise MissingExtra("transformers", "export") from None
    assert has_layers(config.model)
    began = time.perf_counter()
    device = choose_device(config)
    fields = {**hf_config(config.model), "vocab_size": vocab_size}
    theirs = AutoConfig.for_model(fields.pop("model_type"), **fields)
    theirs.use_cache = False
    model = AutoModelForCausalLM.from_config(theirs).to(device)

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=config.trainer.precision == "bf16-mixed"):
            logits = model(x).logits
            return nn.functional.cross_entropy(logits.flatten(0, 1).float(), y.flatten())

    compiled = torch.compile(loss, dynamic=False) if device == "cuda" else loss
    reference = step_flops_per_token(config)
    name = f"Hugging Face{', compiled' if device == 'cuda' else ''}, vocabulary of {vocab_size:,}"
    return Loop(config=config, model=model, micro_batch=micro_batch, loss_of=compiled, device=device).timed(
        name, steps, began, reference
    )[0]


@dataclass(frozen=True)
class Loop:
    """Steps without a trainer, with the same tokens, learning rates, clipping and optimizer."""

    config: Config
    model: nn.Module
    micro_batch: int
    loss_of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    device: str

    def timed(self, name: str, steps: int, began: float, flops: int) -> tuple[Speed, Callable[[], None]]:
        """Return the median of `steps` steps after warm-up, and a function that runs one more step, for a profiler."""
        config = shortened(self.config, steps + WARM_STEPS)
        optimizer = make_optimizer(self.model, config.optimizer, fused=self.device == "cuda")
        starting_rates = [group["lr"] for group in optimizer.param_groups]
        accumulate = config.trainer.batch_tokens // (self.micro_batch * config.trainer.sequence_length)
        tokens = iter(RandomTokens(with_size(config, self.micro_batch), accumulate * (steps + WARM_STEPS)))
        seconds: list[float] = []
        first = 0.0
        for number in range(steps + WARM_STEPS):
            batches = [batch.to(self.device) for batch in itertools.islice(tokens, accumulate)]
            factor = learning_rate(config.lr_schedule, number, steps + WARM_STEPS)
            for group, rate in zip(optimizer.param_groups, starting_rates, strict=True):
                group["lr"] = rate * factor
            start = self._now()
            self._step(optimizer, batches)
            seconds.append(self._now() - start)
            if number == 0:
                first = time.perf_counter() - began
        return _speed(name, config, self.micro_batch, seconds, first, flops), partial(self._step, optimizer, batches)

    def _step(self, optimizer: torch.optim.Optimizer, batches: list[Batch]) -> None:
        for batch in batches:
            (self.loss_of(batch.tokens, batch.targets) / len(batches)).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.config.trainer.clip_norm or float("inf"))
        optimizer.step()
        optimizer.zero_grad()

    def _now(self) -> float:
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


def _speed(name: str, config: Config, micro_batch: int, seconds: list[float], first: float, flops: int) -> Speed:
    step_seconds = statistics.median(seconds[WARM_STEPS:])
    tokens_per_s = config.trainer.batch_tokens / step_seconds
    cuda = choose_device(config) == "cuda"
    gpu = find_gpu(torch.cuda.get_device_name()) if cuda else None
    mfu = tokens_per_s * flops / gpu.peak_flops if gpu and gpu.peak_flops else None
    peak = torch.cuda.max_memory_allocated() / 1e9 if cuda else peak_resident_bytes() / 1e9
    return Speed(
        name=name,
        micro_batch=micro_batch,
        tokens_per_s=tokens_per_s,
        step_ms=step_seconds * 1e3,
        mfu=mfu,
        peak_gb=peak,
        first_step_s=first,
    )


def _fresh(work: Callable[[], Any]) -> Any:
    """Call `work` with an empty GPU, and nothing compiled by the previous measurement."""
    gc.collect()
    torch.compiler.reset()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    return work()
