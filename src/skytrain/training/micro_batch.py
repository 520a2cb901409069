"""The micro-batch: measured for `trainer.micro_batch=auto`, and suggested when the configured one does not fit."""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import nn

from ..config import Config, SkytrainError, format_bytes, format_count, has_layers
from ..models import Decoder, build_model, initial_value, lm_loss, split_auxiliary
from ..planning import MIB, Mesh, job_of, largest_micro_batch, usable_bytes
from ..tokens import Batch
from .average import WeightAverage
from .factory import TrainingPlan
from .losses import choose_loss
from .memory import apply_memory_settings
from .optimizers import make_optimizer
from .step import CausalLM

WORTH = 0.005  # the least gain in speed for which a larger micro-batch is chosen
# Warm-up before a trial is timed: a GPU that was idle first runs faster than its power limit allows.
WARM_SECONDS = {"cuda": 0.6, "cpu": 0.0}
TIMED_SECONDS = {"cuda": 0.8, "cpu": 0.1}
FIRST = 32  # sequences of the first trial; fewer are tried where they do not fit


@dataclass(frozen=True)
class MicroBatchTrial:
    micro_batch: int
    tokens_per_s: float
    peak_bytes: int  # 0 on a CPU


def with_micro_batch(config: Config, device: str, tell: Callable[[str], None]) -> Config:
    """Return the configuration with a size instead of `auto`, and pass a line about it to `tell`."""
    if config.trainer.micro_batch is not None:
        return config
    sizes = _sizes(config)
    if _compiles(config, device):  # compiling a trial for each size would take longer than it gains
        limit = _estimate(config, device)
        size = max((size for size in sizes if size <= limit), default=1)
        tell(f"micro-batch: {size}, the largest that fits by estimate")
        return with_size(config, size)
    trials = find_micro_batch(lambda size: try_micro_batch(config, device, size), sizes)
    if not trials:
        raise SkytrainError(
            f"not even one sequence of {config.trainer.sequence_length} tokens fits on {_named(device)}"
        )
    best = fastest(trials)
    tried = ", ".join(f"{each.micro_batch}: {format_count(each.tokens_per_s)} tokens/s" for each in trials)
    memory = f", {format_bytes(best.peak_bytes)}" if best.peak_bytes else ""
    tell(f"micro-batch: {best.micro_batch}{memory}, the fastest measured here ({tried})")
    return with_size(config, best.micro_batch)


def find_micro_batch(attempt: Callable[[int], MicroBatchTrial | None], sizes: list[int]) -> list[MicroBatchTrial]:
    """Return the trials sorted by size, none where nothing fits. `attempt` returns None for a size that does not fit.

    Sizes are tried from `FIRST` upwards until one does not fit, or two in a row are no faster than the best before
    them: one trial may have been disturbed. Smaller sizes are tried only where `FIRST` does not fit.
    """
    begin = max([size for size in sizes if size <= FIRST] or sizes[:1])
    trials: list[MicroBatchTrial] = []
    for size in [size for size in sizes if size >= begin]:
        trial = attempt(size)
        if trial is None:
            break
        trials.append(trial)
        if len(trials) > 2 and fastest(trials).micro_batch < trials[-2].micro_batch:
            break
    if trials:
        return trials
    smaller = (attempt(size) for size in reversed([size for size in sizes if size < begin]))
    return list(itertools.islice((trial for trial in smaller if trial is not None), 1))


def fastest(trials: list[MicroBatchTrial]) -> MicroBatchTrial:
    """Return the smallest trial that is nearly as fast as the fastest: a larger one would only use more memory."""
    top = max(trial.tokens_per_s for trial in trials)
    return min(
        (trial for trial in trials if trial.tokens_per_s >= top * (1 - WORTH)), key=lambda each: each.micro_batch
    )


def try_micro_batch(config: Config, device: str, size: int) -> MicroBatchTrial | None:
    """Time steps of a temporary model with micro-batches of this size; return None where memory does not suffice."""
    config = with_size(config, size)
    try:
        return _timed(config, device)
    except torch.OutOfMemoryError as error:
        traceback.clear_frames(error.__traceback__)  # the frames hold the tensors
        return None
    finally:
        _empty(device)


def _timed(config: Config, device: str) -> MicroBatchTrial:
    trainer = config.trainer
    on_gpu = device == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    model = _model(config, device)
    apply_memory_settings(model, trainer)
    optimizer = make_optimizer(model, config.optimizer, fused=on_gpu)
    average = None if trainer.ema_decay is None else WeightAverage(trainer.ema_decay, 1)
    if average is not None:
        average.reserve(model)  # it takes memory like the optimizer's state
    compute = choose_loss(config, device).loss
    autocast = torch.autocast(device, torch.bfloat16, enabled=trainer.compute_precision == "bf16-mixed")
    windows = torch.randint(
        config.model.vocab_size, (trainer.micro_sequences, trainer.sequence_length + 1), device=device
    )
    batch = Batch(windows)

    def micro_batch() -> None:
        with autocast:
            loss, auxiliary = split_auxiliary(compute(model, batch.tokens, batch.targets, batch.document_starts))
        (loss if auxiliary is None else loss + auxiliary).backward()

    for _ in range(2):  # twice: gradients are first allocated, then accumulated
        micro_batch()
    optimizer.step()
    optimizer.zero_grad()

    def per_second(at_least: float) -> float:
        count = 0
        began = time.perf_counter()
        while True:
            micro_batch()
            count += 1
            if on_gpu:
                torch.cuda.synchronize()
            if (elapsed := time.perf_counter() - began) >= at_least:
                return count / elapsed

    per_second(WARM_SECONDS[device])
    rate = per_second(TIMED_SECONDS[device])
    peak = torch.cuda.max_memory_allocated() if on_gpu else 0
    return MicroBatchTrial(trainer.micro_sequences, rate * trainer.micro_sequences * trainer.sequence_length, peak)


def _model(config: Config, device: str) -> nn.Module:
    """Return a model with initial weights, created on the device: the time of a step does not depend on their seed."""
    if not has_layers(config.model):
        model = build_model(config.model, seed=config.seed).to(device)
    else:
        with torch.device("meta"):
            model = Decoder(config.model)
        model = model.to_empty(device=device)
        model.tie()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.ndim > 1:
                    parameter.normal_(std=0.02)
                else:
                    parameter.copy_(initial_value(config.model, name, parameter.shape, config.seed))
    return model.bfloat16() if config.trainer.compute_precision == "bf16-true" else model


@contextlib.contextmanager
def explaining_memory(config: Config, plan: TrainingPlan, module: CausalLM) -> Iterator[None]:
    """Turn running out of GPU memory into an error that names the largest micro-batch that fits."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        traceback.clear_frames(error.__traceback__)
        used = torch.cuda.max_memory_allocated() if plan.device == "cuda" else 0
        _release(module)
        _empty(plan.device)
        raise SkytrainError(out_of_memory(config, plan, used)) from None


def out_of_memory(config: Config, plan: TrainingPlan, used_bytes: int) -> str:
    trainer = config.trainer
    smaller = [size for size in _sizes(config) if size < trainer.micro_sequences]
    searched = plan.ranks.world_size == 1 and not _compiles(config, plan.device)
    if searched:
        fitting = (size for size in reversed(smaller) if try_micro_batch(config, plan.device, size) is not None)
        largest = next(fitting, None)
    else:
        limit = _estimate(config, plan.device, plan)
        largest = max((size for size in smaller if size <= limit), default=None)
    how = "" if searched else " by estimate"
    message = (
        f"{_named(plan.device)} ran out of memory with micro-batches of {trainer.micro_batch} sequences of "
        f"{trainer.sequence_length} tokens (trainer.micro_batch), after {format_bytes(used_bytes)}"
    )
    if largest is not None:
        return (
            f"{message}\n  the largest that fits{how} is {largest}: trainer.micro_batch={largest} makes the same steps"
        )
    return (
        f"{message}\n  no smaller micro-batch fits{how}: try trainer.activation_checkpointing=full, "
        "trainer.loss_chunk_tokens=8192, or parallel=fsdp on more GPUs"
    )


def _release(module: CausalLM) -> None:
    """Free the memory of a failed run, so that trials have an empty GPU."""
    trainer = module.trainer
    trainer.strategy.optimizers = []
    module.loss = lm_loss  # the former loss may hold graphs
    for parameter in module.parameters():
        parameter.grad = None
        parameter.data = torch.empty(0, device=parameter.device)


def _estimate(config: Config, device: str, plan: TrainingPlan | None = None) -> int:
    """Return the largest micro-batch by the planner's estimate of memory."""
    if not has_layers(config.model):
        return 1
    memory = torch.cuda.get_device_properties(0).total_memory if device == "cuda" else 8 * 1024 * MIB
    return largest_micro_batch(job_of(config), plan.mesh if plan else Mesh(), usable_bytes(int(memory / MIB)))


def _compiles(config: Config, device: str) -> bool:
    """Return whether the loss is compiled. The size of the micro-batch does not decide that, so any will do."""
    return choose_loss(with_size(config, 1), device).kind == "compiled"


def _sizes(config: Config) -> list[int]:
    """Return the powers of two that divide the sequences of every step."""
    trainer = config.trainer
    tokens = [trainer.batch_tokens, *(phase.batch_tokens for phase in trainer.batch_schedule)]
    sequences = math.gcd(*tokens) // trainer.sequence_length
    return [1 << power for power in range(sequences.bit_length()) if sequences % (1 << power) == 0]


def with_size(config: Config, size: int) -> Config:
    return replace(config, trainer=replace(config.trainer, micro_batch=size))


def _named(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else "this machine"


def _empty(device: str) -> None:
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
