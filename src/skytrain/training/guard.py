"""A look at loss and gradient norm before the update: a number that is not finite, or a spike, does not reach the weights."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Literal

from ..config import SkytrainError, TrainerConfig

HISTORY, ENOUGH = 128, 32  # steps that a spike is judged by, and how many there must be
PATIENCE = 20  # skips in a row after which a run will not recover by itself


class Guard:
    """Judges one step after another. Costs one wait for the device per step."""

    def __init__(
        self,
        action: Literal["stop", "skip"],
        spike_zscore: float | None,
        note: Callable[[str], None],
        *,
        norm_may_overflow: bool = False,
    ) -> None:
        self._action, self._zscore, self._note = action, spike_zscore, note
        self._norm_may_overflow = norm_may_overflow
        self._history: dict[str, deque[float]] = {"loss": deque(maxlen=HISTORY), "gradient norm": deque(maxlen=HISTORY)}
        self.skipped_in_a_row = 0

    def refuses(self, loss: float, norm: float, step: int) -> bool:
        """Whether the update after `step` steps must not happen; raises where the run is to stop."""
        problem = self._problem({"loss": loss, "gradient norm": norm})
        if problem is None:
            self.skipped_in_a_row = 0
            return False
        self.skipped_in_a_row += 1
        if self._action == "stop":
            raise SkytrainError(
                f"step {step + 1}: {problem}; the update was not made\n"
                "  try a lower optimizer.lr or a longer lr_schedule.warmup_steps, or trainer.on_anomaly=skip; the newest checkpoint is from before"
            )
        if self.skipped_in_a_row >= PATIENCE:
            raise SkytrainError(
                f"step {step + 1}: {problem}; {PATIENCE} updates in a row were skipped, so the run cannot recover by itself"
            )
        self._note(f"step {step + 1} | {problem}: update skipped")
        return True

    def _problem(self, values: dict[str, float]) -> str | None:
        for name, value in values.items():
            if not math.isfinite(value):
                if name == "gradient norm" and self._norm_may_overflow:
                    continue  # float16 overflows on purpose while its loss scale is sought, and skips such steps itself
                return f"the {name} is {value}"
        for name, value in values.items():
            past = self._history[name]
            if self._zscore is not None and len(past) >= ENOUGH and value > (limit := _limit(past, self._zscore)):
                return f"the {name} {value:.4g} is a spike (over {limit:.4g}, {self._zscore:g} deviations above the last {len(past)} steps)"
        # What was refused is no measure of what is usual.
        for name, value in values.items():
            if math.isfinite(value):
                self._history[name].append(value)
        return None


def _limit(past: deque[float], zscore: float) -> float:
    mean = sum(past) / len(past)
    return mean + zscore * math.sqrt(sum((value - mean) ** 2 for value in past) / len(past))


def make_guard(trainer: TrainerConfig, note: Callable[[str], None]) -> Guard | None:
    if trainer.on_anomaly == "ignore":
        return None
    return Guard(trainer.on_anomaly, trainer.spike_zscore, note, norm_may_overflow=trainer.precision == "16-mixed")
