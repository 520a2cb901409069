"""The size of each optimizer step of a run: constant, or by a schedule over the tokens that were trained on."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from .schema import Config, TrainerConfig


@dataclass(frozen=True)
class BatchSizes:
    """The size of every step, a pure function of the step: neither ranks nor restarts change it.

    A step that begins before `until` has the size of its phase (size, until); one that begins after the last phase has
    `last`. Sizes and positions have one unit: tokens, or sequences.
    """

    last: int
    phases: tuple[tuple[int, int], ...] = ()

    @cached_property
    def _parts(self) -> tuple[tuple[int, int, int], ...]:
        """The parts of the run in which steps have one size: first step, position where it begins, size."""
        parts = []
        step = position = 0
        for size, until in self.phases:
            if position < until:
                parts.append((step, position, size))
                steps = math.ceil((until - position) / size)
                step += steps
                position += steps * size
        return (*parts, (step, position, self.last))

    def at(self, step: int) -> int:
        """Return the size of step `step` (from 0)."""
        return self._part_of(step)[2]

    def before(self, step: int) -> int:
        """Return the position at which step `step` (from 0) begins: the size of all steps before it."""
        first, position, size = self._part_of(step)
        return position + (step - first) * size

    def steps_in(self, whole: int) -> int:
        """Return how many whole steps fit into `whole`."""
        index = bisect_right(self._parts, whole, key=lambda part: part[1]) - 1
        first, position, size = self._parts[index]
        steps = first + (whole - position) // size
        return min(steps, self._parts[index + 1][0] - 1) if index + 1 < len(self._parts) else steps

    def sizes(self, steps: int) -> tuple[int, ...]:
        """Return the different sizes among the first `steps` steps, in their order."""
        return tuple(dict.fromkeys(size for first, _, size in self._parts if first < max(1, steps)))

    def counts(self, steps: int) -> list[tuple[int, int]]:
        """Return (size, number of steps) of each part of the first `steps` steps."""
        firsts = [*(first for first, _, _ in self._parts), math.inf]
        counts = [
            (size, int(min(steps, end) - first))
            for (first, _, size), end in zip(self._parts, firsts[1:], strict=True)
            if first < steps
        ]
        return counts

    def in_sequences(self, length: int) -> BatchSizes:
        """Return the same sizes, of tokens, in sequences of `length` tokens."""
        return BatchSizes(
            self.last // length, tuple((size // length, -(-until // length)) for size, until in self.phases)
        )

    def _part_of(self, step: int) -> tuple[int, int, int]:
        return self._parts[bisect_right(self._parts, step, key=lambda part: part[0]) - 1]


def batch_sizes(trainer: TrainerConfig) -> BatchSizes:
    """Return the tokens of each step."""
    phases = tuple((phase.batch_tokens, phase.until_tokens) for phase in trainer.batch_schedule)
    return BatchSizes(trainer.batch_tokens, phases)


def recorded_batches(trainer: Mapping[str, Any]) -> BatchSizes:
    """Return the tokens of each step of a run, by the settings in its record."""
    phases = ((phase["batch_tokens"], phase["until_tokens"]) for phase in trainer.get("batch_schedule") or ())
    return BatchSizes(trainer["batch_tokens"], tuple(phases))


def recorded_steps(trainer: Mapping[str, Any]) -> int:
    """Return the length of a run's schedule in steps, by the settings in its record."""
    return trainer["steps"] or recorded_batches(trainer).steps_in(trainer["tokens"] or 0)


def total_steps(config: Config) -> int:
    """Return the length of the schedule in optimizer steps."""
    if config.trainer.steps is not None:
        return config.trainer.steps
    assert config.trainer.tokens is not None
    return batch_sizes(config.trainer).steps_in(config.trainer.tokens)


def total_tokens(config: Config) -> int:
    """Return the tokens of the whole schedule."""
    return batch_sizes(config.trainer).before(total_steps(config))
