"""Callbacks after a step: the log line and its metrics, and a profile."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
import torch

from ..config import BatchSizes, format_count
from ..runs import Meter, Reporter
from ..storage import Store
from .guard import Diverged
from .memory import peak_resident_bytes

if TYPE_CHECKING:
    from .step import CausalLM

SMOOTHING = 0.8  # smoothing of the loss that shows whether a run has diverged
STDERR = "_stderr"  # suffix of a metric that is the standard error of another
COUNTS = ("/items", "/truncated")
METRIC_LABELS = {"val/loss": "validation loss", "val/perplexity": "perplexity"}  # names of metrics in the log


class AtStep(pl.Callback):
    """A callback that calls `at_step` once after each optimizer step, never after the micro-batches in between."""

    _last_step: int | None = None

    def on_train_start(self, trainer: pl.Trainer, module: Any) -> None:
        self._last_step = trainer.global_step

    def on_train_batch_end(self, trainer: pl.Trainer, module: Any, *_: Any) -> None:
        if trainer.global_step != self._last_step:
            self._last_step = trainer.global_step
            self.at_step(trainer, module, trainer.global_step)

    def at_step(self, trainer: pl.Trainer, module: CausalLM, step: int) -> None:
        raise NotImplementedError


def is_last(trainer: pl.Trainer, step: int) -> bool:
    return step >= trainer.max_steps or trainer.should_stop


@dataclass(frozen=True)
class StepSize:
    """The work of one step, by which its speed is measured."""

    batches: BatchSizes  # tokens of each step
    flops_per_token: int | None = None
    peak_flops: float | None = None  # peak of all devices together


class StepLog(AtStep):
    """One line and one record of metrics every `every` steps. `last` holds the last value of each metric."""

    def __init__(
        self,
        reporter: Reporter,
        write: Callable[[int, Mapping[str, float]], None],
        meter: Meter,
        size: StepSize,
        *,
        every: int,
    ) -> None:
        self._reporter = reporter
        self._write = write
        self._meter = meter
        self._size = size
        self.every = every
        self._logged_step = 0
        self._logged_seconds = 0.0
        self._logged_wait = 0.0
        # The pace is measured after the first logged step, which waits for compilers and caches.
        self._pace_step = 0
        self._pace_began = 0.0
        self._collapsed = False  # whether a router was reported
        self.last: dict[str, float] = {}

    def on_train_start(self, trainer: pl.Trainer, module: Any) -> None:
        super().on_train_start(trainer, module)
        self._logged_step = trainer.global_step
        self._logged_seconds = 0.0

    def at_step(self, trainer: pl.Trainer, module: CausalLM, step: int) -> None:
        if step % self.every and not is_last(trainer, step):
            return
        loss = module.take_loss()
        seconds = module.clock.seconds()
        steps = step - self._logged_step
        tokens = self._size.batches.before(step) - self._size.batches.before(self._logged_step)
        step_seconds = (seconds - self._logged_seconds) / steps
        wait_seconds = getattr(getattr(trainer, "datamodule", None), "waited_seconds", 0.0)
        wait_ms = (wait_seconds - self._logged_wait) / steps * 1e3
        self._logged_step = step
        self._logged_seconds = seconds
        self._logged_wait = wait_seconds
        tokens_per_s = tokens / (step_seconds * steps)
        assert module.grad_norm is not None
        record = {
            "train/loss": loss,
            "train/lr": module.lr_at(step),
            "train/grad_norm": float(module.grad_norm),
            "perf/step_ms": step_seconds * 1e3,
            "perf/data_wait_ms": wait_ms,
            "perf/tokens_per_s": tokens_per_s,
            "perf/memory_gb": _memory_gb(module.device),
        }
        record.update(routers := module.router_metrics())
        if (problem := module.collapsed_router(routers)) and not self._collapsed:
            self._collapsed = True
            self._reporter.note(f"step {step} | {problem}")
        if self._size.flops_per_token and self._size.peak_flops:
            record["perf/mfu"] = tokens_per_s * self._size.flops_per_token / self._size.peak_flops
        pace = self._seconds_a_token(step)
        tokens_left = self._size.batches.before(trainer.max_steps) - self._size.batches.before(step)
        seconds_left = tokens_left * (pace or 1 / tokens_per_s)
        if self._meter.usd_per_hour is not None:
            record.update(self._cost(step, seconds_left))
        self.write(trainer, step, record)
        # The first steps wait for compilers and caches, so they predict little.
        known = seconds_left if pace else None
        self._reporter.progress("train", step, trainer.max_steps, step_line(record), known)

    def _seconds_a_token(self, step: int) -> float | None:
        """Return the mean time of a token so far, evaluations and saves included; None after the first logged step."""
        now = time.monotonic()
        if not self._pace_step:
            self._pace_step = step
            self._pace_began = now
        done = self._size.batches.before(step) - self._size.batches.before(self._pace_step)
        return (now - self._pace_began) / done if done else None

    def _cost(self, step: int, seconds_left: float) -> dict[str, float]:
        """Return what the run has cost so far, and its projected cost."""
        usd = self._meter.usd()
        return {
            "cost/usd": usd,
            "cost/usd_per_btok": usd / (self._size.batches.before(step) / 1e9),
            "cost/projected_usd": self._meter.usd(in_seconds=seconds_left),
        }

    def evaluated(self, trainer: pl.Trainer, step: int, metrics: Mapping[str, float]) -> None:
        """Log what an evaluator has measured at this step."""
        self.write(trainer, step, metrics)
        self._reporter.note(f"step {step} | {' | '.join(_shown(metrics))}")

    def write(self, trainer: pl.Trainer, step: int, record: Mapping[str, float]) -> None:
        self.last.update(record)
        if not trainer.is_global_zero:
            return
        self._write(step, record)
        for logger in trainer.loggers:
            logger.log_metrics(dict(record), step)


def _shown(metrics: Mapping[str, float]) -> Iterator[str]:
    """Yield the text of each metric, with its standard error where it has one."""
    for name, value in metrics.items():
        if name.endswith(COUNTS):
            yield f"{name} {value:.0f}"
        elif not name.endswith(STDERR):
            error = metrics.get(name + STDERR)
            yield f"{METRIC_LABELS.get(name, name)} {value:.4f}{'' if error is None else f' ± {error:.4f}'}"


def step_line(record: Mapping[str, float]) -> str:
    parts = [
        f"loss {record['train/loss']:.4f}",
        f"lr {record['train/lr']:.2e}",
        f"norm {record['train/grad_norm']:.3f}",
        f"{record['perf/step_ms']:.0f} ms",
        f"{format_count(record['perf/tokens_per_s'])} tok/s",
    ]
    if "perf/mfu" in record:
        parts.append(f"mfu {record['perf/mfu']:.1%}")
    if "cost/usd" in record:
        parts.append(f"${record['cost/usd']:.2f} of ${record['cost/projected_usd']:.2f}")
    return " | ".join(parts)


class DivergenceWatch(AtStep):
    """A callback that ends a run whose loss, smoothed over logged steps, is `nats` above its lowest."""

    def __init__(self, log: StepLog, nats: float) -> None:
        self._log = log
        self._nats = nats
        self._smooth: float | None = None
        self._lowest = math.inf

    def at_step(self, trainer: pl.Trainer, module: CausalLM, step: int) -> None:
        if step % self._log.every:
            return
        loss = self._log.last["train/loss"]
        self._smooth = loss if self._smooth is None else SMOOTHING * self._smooth + (1 - SMOOTHING) * loss
        self._lowest = min(self._lowest, self._smooth)
        if self._smooth > self._lowest + self._nats:
            raise Diverged(
                f"step {step}: the smoothed loss is {self._smooth:.3f}, more than trainer.diverged_nats={self._nats:g} "
                f"above its lowest, {self._lowest:.3f}\n  try a lower optimizer.lr or a longer lr_schedule.warmup_steps"
            )


class Profile(AtStep):
    """A trace of three steps for Perfetto and, on a GPU, a snapshot of its memory for pytorch.org/memory_viz."""

    # First and last step of the trace, once compilation and allocation are done.
    BEGIN = 3
    END = 6

    def __init__(self, store: Store, run: str, reporter: Reporter) -> None:
        self._store = store
        self._run = run
        self._reporter = reporter
        self._profiler: Any = None
        self._first_step = 0

    def on_train_start(self, trainer: pl.Trainer, module: Any) -> None:
        super().on_train_start(trainer, module)
        self._first_step = trainer.global_step

    def at_step(self, trainer: pl.Trainer, module: CausalLM, step: int) -> None:
        done = step - self._first_step
        if done == self.BEGIN:
            if module.device.type == "cuda":
                torch.cuda.memory._record_memory_history(max_entries=200_000)
            self._profiler = torch.profiler.profile(record_shapes=True)
            self._profiler.start()
        elif self._profiler is not None and (done == self.END or is_last(trainer, step)):
            self._finish(module.device.type == "cuda")

    def _finish(self, cuda: bool) -> None:
        self._profiler.stop()
        with tempfile.TemporaryDirectory(prefix="skytrain-profile-") as scratch:
            files = [Path(scratch) / "trace.json.gz"]
            self._profiler.export_chrome_trace(str(files[0]))
            if cuda:
                files.append(Path(scratch) / "memory.pickle")
                torch.cuda.memory._dump_snapshot(str(files[1]))
                torch.cuda.memory._record_memory_history(enabled=None)
            for file in files:
                self._store.upload(file, f"runs/{self._run}/profile/{file.name}")
        self._profiler = None
        self._reporter.note(f"profile: {self._store.url(f'runs/{self._run}/profile')}")


def _memory_gb(device: torch.device) -> float:
    """Return the peak memory so far, of the GPU or of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e9
    return peak_resident_bytes() / 1e9
