"""The rank that holds up the others. All ranks step together, so the step time by itself does not show it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from torch import nn

from ..config import Config, uses_mesh_strategy
from ..jobs import Ranks, Watchdog, host_name
from ..parallel import blocks_of
from ..runs import Reporter
from .callbacks import AtStep, StepLog

SLOW = 1.3  # a rank that takes this many times the median gives a warning,
WORTH = 0.05  # if a step would take less time by this fraction without it,
PATIENCE = 5  # in this many measurements in a row
WHOLE_STEP = 3.0  # duration in forward passes: the backward pass takes as long as two


@dataclass(frozen=True)
class RankTime:
    """The time of one rank's own work in a step, without waiting for other ranks."""

    data_ms: float  # time spent waiting for the loader
    forward_ms: float  # time in the rank's blocks
    blocks: int  # number of blocks timed; 0 where they cannot be

    def own_ms(self, blocks: float) -> float:
        """Return the time scaled to `blocks` blocks: some pipeline ranks hold more of them than others."""
        return self.data_ms + WHOLE_STEP * self.forward_ms / self.blocks * blocks


@dataclass(frozen=True)
class Straggler:
    rank: int
    own_ms: float
    median_ms: float  # median of all ranks

    @property
    def ratio(self) -> float:
        return self.own_ms / self.median_ms


def find_straggler(times: Sequence[RankTime]) -> Straggler | None:
    """Return the slowest rank compared with the median; None where nothing was timed."""
    if not all(each.blocks for each in times):
        return None
    blocks = statistics.mean(each.blocks for each in times)
    own = [each.own_ms(blocks) for each in times]
    slowest = max(range(len(own)), key=own.__getitem__)
    # Of two ranks the faster one is the median.
    return Straggler(slowest, own[slowest], statistics.median_low(own))


class BlockTimer:
    """A timer of each block's forward pass on its device, inside the hooks that gather its weights."""

    def __init__(self, blocks: Sequence[nn.Module], device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self.on = False
        self._marks: list[tuple[Any, Any]] = []
        self._began: Any = None
        for block in blocks:
            block.register_forward_pre_hook(self._begin)
            block.register_forward_hook(self._end, prepend=True)

    def _now(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _begin(self, *_: Any) -> None:
        if self.on:
            self._began = self._now()

    def _end(self, *_: Any) -> None:
        if self.on and self._began is not None:
            self._marks.append((self._began, self._now()))

    def take(self) -> tuple[float, int]:
        """Return the milliseconds and blocks timed since the last call. A GPU must have finished their work."""
        marks, self._marks = self._marks, []
        if self._cuda:
            return sum(begin.elapsed_time(end) for begin, end in marks), len(marks)
        return sum(end - begin for begin, end in marks) * 1e3, len(marks)


def watch_ranks(
    config: Config, ranks: Ranks, log: StepLog, reporter: Reporter, watchdog: Watchdog | None
) -> list[pl.Callback]:
    """Return the callback that finds stragglers, where there is more than one rank."""
    if ranks.world_size == 1:
        return []
    # A model that is compiled whole has no blocks left to time.
    timed = uses_mesh_strategy(config) or not config.trainer.compile
    return [Stragglers(ranks, config.trainer.log_every, log, reporter, watchdog, timed=timed)]


class Stragglers(AtStep):
    """A callback that tells the watchdog of each step, and logs the slowest rank every `every` steps.

    The metrics are `perf/slowest_rank` and `perf/straggler_ratio`.
    """

    def __init__(
        self, ranks: Ranks, every: int, log: StepLog, reporter: Reporter, watchdog: Watchdog | None, *, timed: bool
    ) -> None:
        self._ranks = ranks
        self._every = every
        self._log = log
        self._reporter = reporter
        self._watchdog = watchdog
        self._timed = timed
        self._in_a_row = 0
        self._waited = 0.0
        self._measured_at = 0.0
        self._measured_step = 0
        self._timer: BlockTimer | None = None
        self._hosts: list[str] = []

    def on_train_start(self, trainer: pl.Trainer, module: Any) -> None:
        super().on_train_start(trainer, module)
        self._hosts = [""] * self._ranks.world_size
        dist.all_gather_object(self._hosts, host_name())
        if self._timed:
            self._timer = BlockTimer(blocks_of(module.model), module.device)
        self._measured_at = time.perf_counter()
        self._measured_step = trainer.global_step
        self._tell_watchdog(trainer.global_step)

    def on_train_batch_start(self, trainer: pl.Trainer, module: Any, *_: Any) -> None:
        if self._timer:
            self._timer.on = (trainer.global_step + 1) % self._every == 0

    def _tell_watchdog(self, step: int) -> None:
        if self._watchdog:
            self._watchdog.at_step(step)

    def at_step(self, trainer: pl.Trainer, module: Any, step: int) -> None:
        self._tell_watchdog(step)
        if not self._timer or step % self._every:
            return
        waited = getattr(getattr(trainer, "datamodule", None), "waited_seconds", 0.0)
        steps = step - self._measured_step
        now = time.perf_counter()
        step_ms = (now - self._measured_at) / steps * 1e3
        mine = RankTime((waited - self._waited) / steps * 1e3, *self._timer.take())
        self._waited = waited
        self._measured_at = now
        self._measured_step = step
        found = find_straggler(self._gather(mine))
        if found is None:
            return
        self._log.write(trainer, step, {"perf/slowest_rank": float(found.rank), "perf/straggler_ratio": found.ratio})
        self._warn_if_slow(found, step, step_ms)

    def _gather(self, own: RankTime) -> list[RankTime]:
        """Gather the times of all ranks over the CPU, without waiting for the GPU."""
        mine = torch.tensor([own.data_ms, own.forward_ms, float(own.blocks)], dtype=torch.float64)
        of_all_ranks = [torch.empty_like(mine) for _ in range(self._ranks.world_size)]
        dist.all_gather(of_all_ranks, mine)
        return [
            RankTime(data, forward, int(blocks)) for data, forward, blocks in (each.tolist() for each in of_all_ranks)
        ]

    def _warn_if_slow(self, found: Straggler, step: int, step_ms: float) -> None:
        slow = found.ratio > SLOW and found.own_ms - found.median_ms > WORTH * step_ms
        self._in_a_row = self._in_a_row + 1 if slow else 0
        if self._in_a_row == PATIENCE:
            self._reporter.note(
                f"warning: step {step}: rank {found.rank} ({self._hosts[found.rank]}) holds up the others: "
                f"its own work takes {found.own_ms:.0f} ms a step, {found.ratio:.1f} times "
                f"the median rank's {found.median_ms:.0f} ms"
            )
