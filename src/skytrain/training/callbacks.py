"""What happens around a step: the log line and the metrics, samples, checkpoints, and stopping when asked."""

from __future__ import annotations

import hashlib
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch

from ..checkpoints import prune, step_key
from ..config import Interval, format_count
from ..parallel import Ranks
from ..runs import MetricsWriter, Reporter
from ..storage import Store
from .module import CausalLM


class AtStep(pl.Callback):
    """Calls `at_step` once per optimizer step, after it, and never on the micro-batches in between."""

    _last_step: int | None = None

    def on_train_start(self, trainer: pl.Trainer, module: Any) -> None:
        self._last_step = trainer.global_step

    def on_train_batch_end(self, trainer: pl.Trainer, module: Any, *_: Any) -> None:
        if trainer.global_step != self._last_step:
            self._last_step = trainer.global_step
            self.at_step(trainer, module, trainer.global_step)

    def at_step(self, trainer: pl.Trainer, module: CausalLM, step: int) -> None:
        raise AssertionError("a callback at each step says what it does there")


def is_last(trainer: pl.Trainer, step: int) -> bool:
    return step >= trainer.max_steps or trainer.should_stop


class StepLog(AtStep):
    """One dense line and one record of metrics every `every` steps, under the names that all of Skytrain uses."""

    def __init__(
        self,
        reporter: Reporter,
        metrics: MetricsWriter,
        *,
        every: int,
        batch_tokens: int,
        micro_batches: int,
        flops_per_token: int | None,
        peak_flops: float | None,
    ) -> None:
        self._reporter, self._metrics, self._every = reporter, metrics, every
        self._batch_tokens, self._micro_batches = batch_tokens, micro_batches
        self._flops_per_token, self._peak_flops = flops_per_token, peak_flops
        self._logged_step, self._logged_seconds, self._logged_wait = 0, 0.0, 0.0
        self._validation_began = 0.0
        self.last: dict[str, float] = {}

    def on_train_start(self, trainer: pl.Trainer, module: Any) -> None:
        super().on_train_start(trainer, module)
        self._logged_step, self._logged_seconds = trainer.global_step, 0.0

    def at_step(self, trainer: pl.Trainer, module: CausalLM, step: int) -> None:
        if step % self._every and not is_last(trainer, step):
            return
        loss = module.take_loss(self._micro_batches)
        seconds = module.clock.seconds()
        steps = step - self._logged_step
        step_seconds = (seconds - self._logged_seconds) / steps
        wait_seconds = getattr(getattr(trainer, "datamodule", None), "waited_seconds", 0.0)
        wait_ms = (wait_seconds - self._logged_wait) / steps * 1e3
        self._logged_step, self._logged_seconds, self._logged_wait = step, seconds, wait_seconds
        tokens_per_s = self._batch_tokens / step_seconds
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
        if self._flops_per_token and self._peak_flops:
            record["perf/mfu"] = tokens_per_s * self._flops_per_token / self._peak_flops
        self.write(trainer, step, record)
        self._reporter.progress("train", step, trainer.max_steps, step_line(record))

    def on_validation_start(self, trainer: pl.Trainer, module: Any) -> None:
        self._validation_began = time.perf_counter()

    def on_validation_end(self, trainer: pl.Trainer, module: Any) -> None:
        module.clock.skip(time.perf_counter() - self._validation_began)
        if trainer.sanity_checking or module.val_loss is None:
            return
        self.write(trainer, trainer.global_step, {"val/loss": module.val_loss})
        self._reporter.note(f"step {trainer.global_step} | validation loss {module.val_loss:.4f}")

    def write(self, trainer: pl.Trainer, step: int, record: Mapping[str, float]) -> None:
        self.last.update(record)
        if not trainer.is_global_zero:
            return
        self._metrics.write(step, record)
        for logger in trainer.loggers:
            logger.log_metrics(dict(record), step)

    def teardown(self, trainer: pl.Trainer, module: Any, stage: str) -> None:
        self._metrics.flush()


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
    return " | ".join(parts)


class Samples(AtStep):
    """A piece of the model's own text every `every` steps."""

    def __init__(self, reporter: Reporter, sample: Callable[[], str], every: int) -> None:
        self._reporter, self._sample, self._every = reporter, sample, every

    def at_step(self, trainer: pl.Trainer, module: CausalLM, step: int) -> None:
        if step % self._every or not trainer.is_global_zero:
            return
        with module.clock.pause():
            module.eval()
            text = self._sample()
            module.train()
        self._reporter.note(f"step {step} | sample: {text!r}")


class Checkpoints(AtStep):
    """Saves to the store every so many steps or seconds and at the end; keeps the newest few."""

    def __init__(self, store: Store, run: str, every: Interval | None, keep: int, ranks: Ranks) -> None:
        self._store, self._run, self._every, self._keep, self._ranks = store, run, every, keep, ranks
        self._saved_at = time.monotonic()

    def at_step(self, trainer: pl.Trainer, module: CausalLM, step: int) -> None:
        if not (is_last(trainer, step) or self._due(step)):
            return
        with module.clock.pause():
            trainer.save_checkpoint(step_key(self._run, step), weights_only=False)
            if trainer.is_global_zero:
                prune(self._store, self._run, self._keep)
        self._saved_at = time.monotonic()

    def _due(self, step: int) -> bool:
        if self._every is None:
            return False
        if self._every.steps is not None:
            return step % self._every.steps == 0
        assert self._every.seconds is not None
        # The first rank's clock is everybody's: saving takes all of them.
        return self._ranks.any(self._ranks.first and time.monotonic() - self._saved_at >= self._every.seconds)


class StopOnSignal(AtStep):
    """SIGINT and SIGTERM, on any rank, end the run after the step in hand, with a checkpoint; a second SIGINT ends it at once.

    Lightning's own SIGTERM handler broadcasts inside the handler and can deadlock, so ours replaces it while training.
    """

    def __init__(self, reporter: Reporter, ranks: Ranks) -> None:
        self._reporter, self._ranks = reporter, ranks
        self._former: dict[int, Any] = {}
        self.received: int | None = None

    def on_train_start(self, trainer: pl.Trainer, module: Any) -> None:
        super().on_train_start(trainer, module)
        for number in (signal.SIGINT, signal.SIGTERM):
            self._former[number] = signal.signal(number, self._handle)

    def _handle(self, number: int, frame: Any) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number

    def at_step(self, trainer: pl.Trainer, module: CausalLM, step: int) -> None:
        if self._ranks.any(self.received is not None) and not trainer.should_stop:
            self.received = self.received or signal.SIGTERM  # another rank's
            self._reporter.note(f"{signal.Signals(self.received).name} received: saving at step {step}, then stopping")
            trainer.should_stop = True

    def teardown(self, trainer: pl.Trainer, module: Any, stage: str) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)
        self._former.clear()


class Profile(AtStep):
    """A trace of three steps for chrome://tracing or Perfetto and, on a GPU, a snapshot of its memory for pytorch.org/memory_viz."""

    BEGIN, END = 3, 6  # after compilation and allocation have settled

    def __init__(self, store: Store, run: str, reporter: Reporter) -> None:
        self._store, self._run, self._reporter = store, run, reporter
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


class RandomState(pl.Callback):
    """Random generators of every rank travel with the checkpoint, so that dropout continues where it was."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._loaded: list[dict[str, Any]] = []

    def state_dict(self) -> dict[str, Any]:
        if self._ranks.world_size == 1:
            return random_state()
        states: list[Any] = [None] * self._ranks.world_size
        torch.distributed.all_gather_object(states, random_state())
        return {"ranks": states}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._loaded = state_dict.get("ranks", [state_dict])

    def on_train_start(self, trainer: pl.Trainer, module: Any) -> None:
        """Restored last, when building the loaders has drawn all it wants."""
        if not self._loaded:
            return
        rank = self._ranks.rank
        if rank < len(self._loaded):
            restore_random_state(self._loaded[rank])
        else:  # there are more ranks than before: a new one begins where no other is
            torch.manual_seed(seed_of_rank(bytes(self._loaded[0]["torch"].tolist()), rank))


def seed_of_rank(base: bytes, rank: int) -> int:
    """A seed for each rank, far from the others'."""
    return int.from_bytes(hashlib.sha256(base + rank.to_bytes(4, "big")).digest()[:7], "big")


def random_state() -> dict[str, Any]:
    version, words, gauss = random.getstate()
    numpy_state = np.random.get_state(legacy=True)
    assert isinstance(numpy_state, tuple)
    state = {
        "python": [version, list(words), gauss],
        "numpy": [numpy_state[0], numpy_state[1].tolist(), *numpy_state[2:]],
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore_random_state(state: Mapping[str, Any]) -> None:
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
    torch.set_rng_state(state["torch"].cpu())
    if torch.cuda.is_available() and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"].cpu())


def _memory_gb(device: torch.device) -> float:
    """The peak so far: of the accelerator, or of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e9
    import resource  # not on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e9 if sys.platform == "darwin" else peak * 1024 / 1e9
