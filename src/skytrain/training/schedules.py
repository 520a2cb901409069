"""Learning-rate schedules as pure functions of the step, so that a resumed run needs no state for them."""

from __future__ import annotations

import math

from ..config import ConstantScheduleConfig, LRScheduleConfig, WSDScheduleConfig

SHORTENED_WARMUP = 0.1  # fraction of the run, where the configured warm-up is longer than the whole run


def warmup_steps(schedule: LRScheduleConfig, total_steps: int) -> int:
    """Return the steps of warm-up: as configured, or a tenth of a run that is shorter than its warm-up."""
    if schedule.warmup_steps <= total_steps:
        return schedule.warmup_steps
    return max(1, round(SHORTENED_WARMUP * total_steps))


def learning_rate(schedule: LRScheduleConfig, step: int, total_steps: int) -> float:
    """Return the fraction of the peak learning rate that optimizer step `step` (from 0) uses.

    Warm-up is linear and reaches the peak at its last step; its first step is already above zero, as in llm.c.
    """
    warmup = warmup_steps(schedule, total_steps)
    if step < warmup:
        return (step + 1) / warmup
    if isinstance(schedule, ConstantScheduleConfig):
        return 1.0
    if isinstance(schedule, WSDScheduleConfig):
        decay_steps = max(1, round(schedule.decay_fraction * total_steps))
        into_decay = min(max(0, step - (total_steps - decay_steps)), decay_steps)
        return _blend(into_decay / decay_steps, schedule.final_fraction)
    progress = min(1.0, (step - warmup) / max(1, total_steps - warmup))
    if schedule.name == "cosine":
        progress = 0.5 * (1.0 - math.cos(math.pi * progress))
    return _blend(progress, schedule.final_fraction)


def _blend(progress: float, final: float) -> float:
    """Return a factor that falls from 1 at progress 0 to `final` at progress 1, linearly."""
    return 1.0 + (final - 1.0) * progress
