"""Evaluators in the training loop: when they run, on which view of the model, and where their metrics go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
import torch

from ..evaluation import EngineModel, Evaluator, LoopModel, MeshModel, Scorer
from ..parallel import MeshStrategy, call_through_wrapper
from .callbacks import AtStep
from .module import CausalLM
from .random_state import random_state, restore_random_state

Listener = Callable[[pl.Trainer, int, Mapping[str, float]], None]


@dataclass(frozen=True)
class Scheduled:
    """When an evaluator runs: every so many steps, and after the last step where `at_end`."""

    evaluator: Evaluator
    every: int | None
    at_end: bool = False
    at_start: bool = False  # the run was cut off between the checkpoint it resumes from and the evaluation due there

    def due(self, step: int, last_step: int) -> bool:
        return bool(self.every and step % self.every == 0) or (self.at_end and step >= last_step)


class Evaluations(AtStep):
    """Runs evaluators after the steps at which they are due, and leaves training exactly as it was."""

    def __init__(self, scheduled: Sequence[Scheduled], listeners: Sequence[Listener]) -> None:
        self._scheduled, self._listeners = scheduled, listeners

    def on_train_start(self, trainer: pl.Trainer, module: Any) -> None:
        super().on_train_start(trainer, module)
        with _undisturbed(trainer, module):
            for each in self._scheduled:
                each.evaluator.prepare()
        self._run(trainer, module, [each for each in self._scheduled if each.at_start])

    def at_step(self, trainer: pl.Trainer, module: CausalLM, step: int) -> None:
        if trainer.should_stop and step < trainer.max_steps:
            return  # interrupted: there is no time, and the attempt that resumes does what is due
        self._run(trainer, module, [each for each in self._scheduled if each.due(step, trainer.max_steps)])

    def _run(self, trainer: pl.Trainer, module: CausalLM, due: Sequence[Scheduled]) -> None:
        if not due:
            return
        with module.clock.pause(), _undisturbed(trainer, module):
            model = view_of(trainer, module)
            for each in due:
                metrics = each.evaluator.run(model)
                for listener in self._listeners if metrics else ():
                    listener(trainer, trainer.global_step, metrics)


@contextmanager
def _undisturbed(trainer: pl.Trainer, module: CausalLM) -> Iterator[None]:
    """Without gradients or dropout; random generators and mode are put back, and gathered weights released."""
    random, was_training = random_state(), module.training
    module.eval()
    try:
        with torch.no_grad():  # no inference mode: what a mesh keeps between steps may first be made here
            yield
    finally:
        module.train(was_training)
        trainer.strategy.on_validation_end()
        restore_random_state(random)


def view_of(trainer: pl.Trainer, module: CausalLM) -> Scorer:
    """The model as evaluators see it, under the trainer's strategy."""
    strategy: Any = trainer.strategy

    def mean_loss(batches: Iterable[torch.Tensor]) -> float:
        for index, batch in enumerate(batches):
            strategy.validation_step(strategy.batch_to_device(batch), index)
        module.on_validation_epoch_end()
        assert module.val_loss is not None
        return module.val_loss

    if isinstance(strategy, MeshStrategy):
        return MeshModel(strategy, module.model.config, mean_loss)
    if strategy.model is module or not hasattr(strategy, "deepspeed_engine"):
        return LoopModel(module.model, mean_loss)
    return EngineModel(
        module.model,
        mean_loss,
        lambda tokens: call_through_wrapper(strategy, module, "logits", tokens),
    )
