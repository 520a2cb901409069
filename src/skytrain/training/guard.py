"""Checks loss and gradient norm before an update: values that are not finite, or spikes, do not reach the weights."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Literal

import torch
from torch.distributed.tensor import DTensor

from ..config import SkytrainError, TrainerConfig

# Number of earlier steps that a spike is compared with, and how many there must be.
HISTORY = 128
ENOUGH = 32
PATIENCE = 20  # skips in a row after which a run will not recover by itself


class Diverged(SkytrainError):
    """The error of a run that has diverged: loss or gradients are not finite, or the loss rose and stayed high."""


class Guard:
    """A check of one step after another. Reading loss and norm waits for the device; `LateGuard` avoids that."""

    def __init__(
        self,
        action: Literal["stop", "skip"],
        spike_zscore: float | None,
        note: Callable[[str], None],
        *,
        norm_may_overflow: bool = False,
    ) -> None:
        self._action = action
        self._zscore = spike_zscore
        self._note = note
        self._norm_may_overflow = norm_may_overflow
        self._history: dict[str, deque[float]] = {"loss": deque(maxlen=HISTORY), "gradient norm": deque(maxlen=HISTORY)}
        self.skipped_in_a_row = 0

    @property
    def may_be_late(self) -> bool:
        """Whether a step may be checked after the next has started.

        That is so where only values that are not finite matter, and end the run.
        """
        return self._action == "stop" and self._zscore is None and not self._norm_may_overflow

    def rejects(self, loss: float, norm: float, step: int) -> bool:
        """Return whether the update after `step` steps must be skipped; raise where the run must stop."""
        problem = self._problem({"loss": loss, "gradient norm": norm})
        if problem is None:
            self.skipped_in_a_row = 0
            return False
        self.skipped_in_a_row += 1
        if self._action == "stop":
            raise Diverged(
                f"step {step + 1}: {problem}; the update was not made\n"
                "  no checkpoint contains this step; try a lower optimizer.lr, a longer"
                " lr_schedule.warmup_steps or trainer.on_anomaly=skip"
            )
        if self.skipped_in_a_row >= PATIENCE:
            raise Diverged(
                f"step {step + 1}: {problem}; {PATIENCE} updates in a row were skipped, "
                "so the run cannot recover by itself"
            )
        self._note(f"step {step + 1} | {problem}: update skipped")
        return True

    def _problem(self, values: dict[str, float]) -> str | None:
        for name, value in values.items():
            if not math.isfinite(value):
                if name == "gradient norm" and self._norm_may_overflow:
                    continue  # float16 overflows while its loss scale is searched, and skips such steps itself
                return f"the {name} is {value}"
        for name, value in values.items():
            past = self._history[name]
            if self._zscore is not None and len(past) >= ENOUGH and value > (limit := _limit(past, self._zscore)):
                usual = f"{self._zscore:g} deviations above the last {len(past)} steps"
                return f"the {name} {value:.4g} is a spike (over {limit:.4g}, {usual})"
        # Rejected steps are left out of the history.
        for name, value in values.items():
            if math.isfinite(value):
                self._history[name].append(value)
        return None


class LateGuard:
    """A check of each step while the next one is computed, so that the host never waits for the device within a step.

    The optimizer's kernel itself skips a step whose gradients are not finite: it reads a flag on the device
    (`found_inf`), as with float16's loss scaling. Only the norm decides, since it is the same on all ranks.
    """

    def __init__(self, guard: Guard, optimizer: torch.optim.Optimizer) -> None:
        self._guard = guard
        self._optimizer = optimizer
        self._step: int | None = None  # the step that is not checked yet
        self._values = torch.zeros(2)
        self._copied: torch.cuda.Event | None = None

    @staticmethod
    def supports(guard: Guard, optimizer: torch.optim.Optimizer) -> bool:
        """Return whether steps can be checked late: only fused AdamW reads the flag, and only for whole tensors."""
        fused = type(optimizer) is torch.optim.AdamW and all(group["fused"] for group in optimizer.param_groups)
        sharded = any(isinstance(each, DTensor) for group in optimizer.param_groups for each in group["params"])
        return guard.may_be_late and fused and not sharded

    def watch(self, loss: torch.Tensor, norm: torch.Tensor, step: int) -> None:
        """Let the kernel skip the update after `step` steps if the norm is not finite. Call this before the update."""
        self._optimizer.found_inf = (~torch.isfinite(norm)).float()  # type: ignore[attr-defined]
        values = torch.stack([loss.float(), norm.float()])
        self._step = step
        if values.is_cuda:
            self._values = torch.empty(2, pin_memory=True).copy_(values, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record()
        else:
            self._values = values

    def check_last_update(self) -> None:
        """Raise an error if the last update was skipped.

        Later calls raise again, so that such a state is never taken for a trained one.
        """
        if self._step is None:
            return
        if self._copied is not None:
            self._copied.synchronize()
        loss, norm = self._values.tolist()
        if not math.isfinite(norm):
            self._guard.rejects(loss, norm, self._step)
        self._step = None


def _limit(past: deque[float], zscore: float) -> float:
    mean = sum(past) / len(past)
    return mean + zscore * math.sqrt(sum((value - mean) ** 2 for value in past) / len(past))


def make_guard(trainer: TrainerConfig, note: Callable[[str], None]) -> Guard | None:
    if trainer.on_anomaly == "ignore":
        return None
    return Guard(
        trainer.on_anomaly, trainer.spike_zscore, note, norm_may_overflow=trainer.compute_precision == "16-mixed"
    )
