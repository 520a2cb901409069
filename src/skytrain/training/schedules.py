"""Learning-rate schedules as pure functions of the step, so that a resumed run needs no state for them."""

from __future__ import annotations

import math

from ..config import BatchSizes, ConstantScheduleConfig, LRScheduleConfig, PowerScheduleConfig, WSDScheduleConfig

SHORTENED_WARMUP = 0.1  # fraction of the run, where the configured warm-up is longer than the whole run


def warmup_steps(schedule: LRScheduleConfig, total_steps: int) -> int:
    """Return the steps of warm-up: as configured, or a tenth of a run that is shorter than its recipe's warm-up."""
    if schedule.warmup_steps <= total_steps:
        return schedule.warmup_steps
    return max(1, round(SHORTENED_WARMUP * total_steps))


def learning_rate(schedule: LRScheduleConfig, step: int, total_steps: int, batches: BatchSizes | None = None) -> float:
    """Return the fraction of the peak learning rate that optimizer step `step` (from 0) uses.

    Warm-up is linear in steps and reaches the peak at its last step; its first step is already above zero, as in llm.c.
    The decay follows the tokens: where `batches` says that steps differ in size, a step counts for its share of a full one.
    """
    warmup = warmup_steps(schedule, total_steps)
    if step < warmup:
        return (step + 1) / warmup
    if isinstance(schedule, ConstantScheduleConfig):
        return 1.0
    begin, now, end = (_full_steps(batches, number) for number in (warmup, step, total_steps))
    if isinstance(schedule, WSDScheduleConfig):
        decay_steps = max(1, round(schedule.decay_fraction * end))
        into_decay = min(max(0, now - (end - decay_steps)), decay_steps)
        return _blend(_powered(into_decay / decay_steps, schedule.decay_power), schedule.final_fraction)
    progress = min(1.0, (now - begin) / max(1, end - begin))
    if isinstance(schedule, PowerScheduleConfig):
        progress = _powered(progress, schedule.power)
    elif schedule.name == "cosine":
        progress = 0.5 * (1.0 - math.cos(math.pi * progress))
    return _blend(progress, schedule.final_fraction)


def _full_steps(batches: BatchSizes | None, steps: int) -> float:
    """Return the tokens of the first `steps` steps, in steps of the last and usual size."""
    return steps if batches is None or not batches.phases else batches.before(steps) / batches.last


def _powered(progress: float, power: float) -> float:
    """Return the progress of a decay in which the rest of the way falls as the rest of the time to a power."""
    return progress if power == 1 else 1.0 - (1.0 - progress) ** power


def _blend(progress: float, final: float) -> float:
    """Return a factor that falls from 1 at progress 0 to `final` at progress 1, linearly."""
    return 1.0 + (final - 1.0) * progress
