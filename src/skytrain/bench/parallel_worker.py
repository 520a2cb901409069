"""One rank of `skytrain bench parallel`: trains a few steps of one mode; rank 0 writes the result.

torchrun starts it: python -m skytrain.bench.parallel_worker TASK.json
"""

from __future__ import annotations

import dataclasses
import gc
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from ..config import Config, SkytrainError, compose, uses_process_group
from ..jobs import Ranks
from ..runs import Silent
from ..storage import open_store
from ..tokens import read_tokenizer_settings
from ..training import choose_device, make_module, make_trainer, outline, peak_resident_bytes, plan_training
from .measurement import RandomTokens, StepClock, shortened

WARM_STEPS = 2
PROFILED_STEPS = 2


@dataclass(frozen=True)
class BenchTask:
    """The work of the ranks: a mode, measured with one batch size after another."""

    overrides: list[str]
    config_dirs: list[str]
    preset: str
    batch_tokens: list[int]
    steps: int
    result: str  # the file to write


@dataclass(frozen=True)
class Steps:
    """The measurement of one batch size; memory is that of the rank that uses the most."""

    batch_tokens: int
    micro_batch: int
    mesh: str
    step_seconds: float
    peak_bytes: int  # of a rank: on a GPU what torch allocated, on a CPU how much the process grew
    communication: float  # share of a step in which a collective was running on rank 0


def mode_config(task: BenchTask, batch_tokens: int) -> Config:
    """Return the given configuration with the mesh of one preset."""
    folders = [Path(folder) for folder in task.config_dirs]
    config = compose(task.overrides, folders, read_tokenizer=read_tokenizer_settings).config
    parallel = compose([f"parallel={task.preset}"], folders).config.parallel
    short = shortened(config, WARM_STEPS + task.steps + PROFILED_STEPS)
    trainer = dataclasses.replace(short.trainer, batch_tokens=batch_tokens)
    return dataclasses.replace(short, trainer=trainer, parallel=parallel)


def measure_steps(config: Config, ranks: Ranks) -> Steps:
    plan = plan_training(config, ranks)
    before = _resident_bytes()
    torch.manual_seed(config.seed)
    module = make_module(config, plan, outline(config), lambda text: None)
    clock = StepClock(Silent())
    profile = Communication(plan.device == "cuda")
    if plan.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    with tempfile.TemporaryDirectory(prefix="skytrain-bench-") as scratch:
        trainer = make_trainer(config, plan, open_store(scratch), [clock, profile], [])
        # The loader yields a device's micro-batches, or all those that pass through its pipeline together.
        device_config = dataclasses.replace(
            config, trainer=dataclasses.replace(config.trainer, micro_batch=plan.micro_batch)
        )
        trainer.fit(
            module, DataLoader(RandomTokens(device_config, plan.total_steps * plan.micro_batches), batch_size=None)
        )
    peak = torch.cuda.max_memory_allocated() if plan.device == "cuda" else peak_resident_bytes() - before
    return Steps(
        batch_tokens=config.trainer.batch_tokens,
        micro_batch=config.trainer.micro_sequences,
        mesh=str(plan.mesh),
        step_seconds=statistics.median(clock.seconds[WARM_STEPS:-PROFILED_STEPS]),
        peak_bytes=_largest(peak, ranks),
        communication=profile.share,
    )


class Communication(pl.Callback):
    """A profile of the last steps, after the timed ones: `share` is the part of the time in which collectives run."""

    def __init__(self, cuda: bool) -> None:
        activity = torch.profiler.ProfilerActivity
        self._profiler = torch.profiler.profile(activities=[activity.CPU, *([activity.CUDA] if cuda else [])])
        self._cuda = cuda
        self._began = 0.0
        self._running = False
        self.share = 0.0

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        if not self._running and trainer.global_step == trainer.max_steps - PROFILED_STEPS:
            self._running = True
            self._profiler.start()
            self._began = time.perf_counter()

    def on_train_end(self, *_: Any) -> None:
        if self._cuda:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - self._began
        self._profiler.stop()
        self.share = min(1.0, covered(self._spans()) / 1e6 / seconds)

    def _spans(self) -> Iterable[tuple[float, float]]:
        for event in self._profiler.events() or []:
            if self._cuda:
                is_collective = event.device_type == torch.autograd.DeviceType.CUDA and "nccl" in event.name
            else:
                is_collective = event.name.startswith(("gloo:", "c10d::", "_c10d_functional::"))
            if is_collective:
                yield event.time_range.start, event.time_range.end


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of spans: collectives that overlap count once."""
    total = 0.0
    reached = float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _largest(value: int, ranks: Ranks) -> int:
    if ranks.world_size == 1:
        return value
    largest = torch.tensor(value)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return int(largest)


def _resident_bytes() -> int:
    """Return the current memory of this process, or its peak so far if /proc does not have it."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return peak_resident_bytes()
    import resource

    return int(statm.read_text().split()[1]) * resource.getpagesize()


def run(task: BenchTask) -> None:
    ranks = Ranks.from_environment()
    first = mode_config(task, task.batch_tokens[0])
    if uses_process_group(first):
        with ranks.joined(choose_device(first), timeout_seconds=first.parallel.timeout):
            results = [_measure_batch(task, batch_tokens, ranks) for batch_tokens in task.batch_tokens]
    else:
        results = [_measure_batch(task, batch_tokens, ranks) for batch_tokens in task.batch_tokens]
    if ranks.first:
        Path(task.result).write_text(json.dumps(results))


def _measure_batch(task: BenchTask, batch_tokens: int, ranks: Ranks) -> dict[str, Any]:
    try:
        return dataclasses.asdict(measure_steps(mode_config(task, batch_tokens), ranks))
    except SkytrainError as error:  # the same on every rank
        return {"problem": str(error)}
    finally:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


if __name__ == "__main__":
    run(BenchTask(**json.loads(Path(sys.argv[1]).read_text())))
