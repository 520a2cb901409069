"""Evaluators in the training loop: when they run, on which view of the model, and who receives their metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
import torch

from ..evaluation import EngineModel, Evaluator, LoopModel, MeshModel, Scorer
from ..parallel import MeshStrategy, call_through_wrapper
from ..tokens import Batch
from .callbacks import AtStep
from .evaluation_limits import EvaluationLimits, EvaluationStopped
from .random_state import random_state, restore_random_state
from .step import CausalLM

Listener = Callable[[pl.Trainer, int, Mapping[str, float]], None]


@dataclass(frozen=True)
class Scheduled:
    """An evaluator and when it runs: every so many steps, and after the last step where `at_end`."""

    evaluator: Evaluator
    every: int | None
    at_end: bool = False
    at_start: bool = False  # the run was killed between the checkpoint it resumes from and the evaluation due there
    steps: float = 0.0  # steps of training that surely take longer: the budget's estimate until the time is measured

    def due(self, step: int, last_step: int) -> bool:
        return bool(self.every and step % self.every == 0) or (self.at_end and step >= last_step)


class Evaluations(AtStep):
    """A callback that runs evaluators after the steps at which they are due, and leaves training exactly as it was.

    `stopped` says whether one was ended early, because training must stop. Then `end` is called to stop and save here,
    so that the attempt which resumes makes up for it.
    """

    def __init__(
        self,
        scheduled: Sequence[Scheduled],
        listeners: Sequence[Listener],
        limits: EvaluationLimits,
        end: Callable[[pl.Trainer, CausalLM, int], None],
    ) -> None:
        self._scheduled = scheduled
        self._listeners = listeners
        self._limits = limits
        self._end = end
        self.stopped = False

    def on_train_start(self, trainer: pl.Trainer, module: Any) -> None:
        super().on_train_start(trainer, module)
        with _undisturbed(trainer, module):
            for each in self._scheduled:
                each.evaluator.prepare()
        self._run(trainer, module, [each for each in self._scheduled if each.at_start])

    def at_step(self, trainer: pl.Trainer, module: CausalLM, step: int) -> None:
        if trainer.should_stop and step < trainer.max_steps:
            return  # interrupted: no time is left, and the attempt that resumes runs what is due
        self._run(trainer, module, [each for each in self._scheduled if each.due(step, trainer.max_steps)])

    def _run(self, trainer: pl.Trainer, module: CausalLM, due: Sequence[Scheduled]) -> None:
        if not due:
            return
        with module.clock.pause(), _undisturbed(trainer, module):
            model = view_of(trainer, module)
            for each in due:
                try:
                    metrics = self._limits.run(each.evaluator, model, each.steps)
                except EvaluationStopped:
                    self.stopped = True
                    break
                for listener in self._listeners if metrics else ():
                    listener(trainer, trainer.global_step, metrics)
        if self.stopped:
            self._end(trainer, module, trainer.global_step)


class EvaluateRestored(pl.Callback):
    """A callback that runs evaluators on a checkpoint that `trainer.validate` restored, where no training follows."""

    def __init__(
        self,
        evaluators: Sequence[Evaluator],
        listen: Callable[[pl.Trainer, Mapping[str, float]], None],
        limits: EvaluationLimits,
        end: Callable[[pl.Trainer, CausalLM], None],
    ) -> None:
        self._evaluators = evaluators
        self._listen = listen
        self._limits = limits
        self._end = end

    def on_validation_start(self, trainer: pl.Trainer, module: Any) -> None:
        self._limits.receive_signals()
        for evaluator in self._evaluators:
            evaluator.prepare()
        with _undisturbed(trainer, module):
            for evaluator in self._evaluators:
                try:
                    metrics = self._limits.run(evaluator, view_of(trainer, module))
                except EvaluationStopped:
                    self._end(trainer, module)
                    return
                if metrics:
                    self._listen(trainer, metrics)


@contextmanager
def _undisturbed(trainer: pl.Trainer, module: CausalLM) -> Iterator[None]:
    """Evaluate the average of the weights where there is one, without gradients and dropout, and leave training as it was.

    At the end, random generators and training mode are restored, and gathered weights are released.
    """
    random = random_state()
    was_training = module.training
    module.eval()
    try:
        with (
            torch.no_grad(),
            module.averaged(),
        ):  # not inference mode: a mesh may create here what it keeps between steps
            yield
    finally:
        module.train(was_training)
        trainer.strategy.on_validation_end()
        restore_random_state(random)


def view_of(trainer: pl.Trainer, module: CausalLM) -> Scorer:
    """Return the model as evaluators see it, under the trainer's strategy."""
    strategy: Any = trainer.strategy

    def mean_loss(batches: Iterable[Batch | torch.Tensor]) -> float:
        losses = [
            strategy.validation_step(strategy.batch_to_device(batch), index) for index, batch in enumerate(batches)
        ]
        nats = torch.stack([loss for loss, _ in losses]).sum()
        sequences = torch.stack([count for _, count in losses]).sum().to(nats)
        total, count = strategy.reduce(torch.stack([nats, sequences]), reduce_op="sum")
        return float(total / count)

    if isinstance(strategy, MeshStrategy):
        return MeshModel(strategy, module.model.config, mean_loss)
    if strategy.model is module or not hasattr(strategy, "deepspeed_engine"):
        return LoopModel(module.model, mean_loss, str(trainer.precision))
    return EngineModel(
        module.model,
        mean_loss,
        lambda tokens: call_through_wrapper(strategy, module, "logits", tokens),
    )
