"""What a trial may cost: twenty measured steps of its model, and everything that comes with a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..config import Config, Interval, total_steps
from ..planning import (
    EVALUATION_COST,
    planned_precision,
    saved_weight_bytes,
    seconds_ahead,
    task_tokens,
    warm_worst,
)
from .ledger import HourlyPrice

SAVE_BYTES_PER_SECOND = 100e6  # a slow disk or a shared network
EVALUATION_SLACK = 2.0  # validation starts cold, and its loader is made anew
LEAST_START_SECONDS = 2.0


@dataclass(frozen=True)
class StepEstimate:
    """The worst of steps 10 to 19 of a dry run, and the time around its steps."""

    step_seconds: float
    first_seconds: float  # of the first step, which compiles and allocates
    start_seconds: float  # before the first step

    @classmethod
    def of(cls, step_seconds: Sequence[float], wall_seconds: float) -> StepEstimate:
        start = max(LEAST_START_SECONDS, wall_seconds - sum(step_seconds))
        return cls(warm_worst(step_seconds), step_seconds[0], start)

    def seconds(self, config: Config, parameters: float) -> float:
        """Return the longest that a run of this configuration takes, from its start to its last checkpoint."""
        training, evaluating, saving = self._parts(config, parameters)
        # A run stops a step and a save before its limit, so both must fit in once more.
        around = 2 * self.start_seconds + 2 * self.first_seconds
        return around + training + EVALUATION_SLACK * evaluating + saving

    def probable_seconds(self, config: Config, parameters: float) -> tuple[float, float]:
        """Return how long the steps of such a run will probably take, with everything around them."""
        training, evaluating, saving = self._parts(config, parameters)
        return training, self.start_seconds + self.first_seconds + evaluating + saving

    def _parts(self, config: Config, parameters: float) -> tuple[float, float, float]:
        """Return the seconds of training, of evaluating and of saving."""
        trainer = config.trainer
        steps = total_steps(config)
        training = steps * self.step_seconds
        evaluations = 1 + (steps // trainer.validate_every if trainer.validate_every else 0)
        batches = math.ceil(trainer.validate_tokens / trainer.batch_tokens)
        tasks = task_tokens(config.evaluation, steps) / trainer.batch_tokens * self.step_seconds * EVALUATION_COST
        evaluating = evaluations * (batches * self.step_seconds * EVALUATION_COST + 0.2) + tasks
        return training, evaluating, _save_seconds(config, parameters) * (2 + _saves(config, steps, training))

    def ending_seconds(self, config: Config, parameters: float) -> float:
        """Return what a run's own budget keeps back: without so much more it would leave out its last validation."""
        validation_steps = config.trainer.validate_tokens / config.trainer.batch_tokens
        return seconds_ahead(self.step_seconds, _save_seconds(config, parameters), steps=validation_steps)

    def usd(self, config: Config, parameters: float, price: HourlyPrice) -> float:
        return price.usd(self.seconds(config, parameters))

    def probable_usd(self, config: Config, parameters: float, price: HourlyPrice) -> tuple[float, float]:
        steps, around = self.probable_seconds(config, parameters)
        return price.charged(steps), price.charged(around)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def _save_seconds(config: Config, parameters: float) -> float:
    """Return the seconds of a save; of a plugged-in model only the number of parameters is known."""
    weight = saved_weight_bytes(planned_precision(config.trainer.precision))
    return 0.5 + parameters * (weight + config.optimizer.facts.state_bytes) / SAVE_BYTES_PER_SECOND


def _saves(config: Config, steps: int, training_seconds: float) -> int:
    every = config.trainer.checkpoint_every
    if every is None or every == Interval():
        return 0 if every is None else math.ceil(training_seconds / 600)
    return steps // every.steps if every.steps else math.ceil(training_seconds / (every.seconds or 600))
