"""Garbage collection between steps only: a pass over all that torch keeps alive can take longer than a micro-batch."""

from __future__ import annotations

import gc
from typing import Any

import lightning.pytorch as pl

EVERY_STEPS = 100  # cycles hold little memory by then; only objects created since the start are scanned


class KeepGarbageOut(pl.Callback):
    """A callback that collects garbage once before the first step, then every `every` steps between two steps.

    All ranks collect at the same step: otherwise all of them would wait for each in turn.
    """

    def __init__(self, every: int = EVERY_STEPS) -> None:
        self._every = every
        self._was_on = False

    def on_train_start(self, trainer: pl.Trainer, module: Any) -> None:
        self._was_on = gc.isenabled()
        gc.collect()
        gc.freeze()
        gc.disable()

    def on_train_batch_end(self, trainer: pl.Trainer, module: Any, outputs: Any, batch: Any, batch_index: int) -> None:
        steps, ended = divmod(batch_index + 1, trainer.accumulate_grad_batches)
        if not ended and not steps % self._every:
            gc.collect()

    def on_train_end(self, trainer: pl.Trainer, module: Any) -> None:
        self._restore()

    def on_exception(self, trainer: pl.Trainer, module: Any, exception: BaseException) -> None:
        self._restore()

    def _restore(self) -> None:
        gc.unfreeze()
        if self._was_on:
            gc.enable()
