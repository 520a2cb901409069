"""What is set before the first step in addition to what a checkpoint restores."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl

from ..parallel import start_at_step


class StartAtStep(pl.Callback):
    """A callback that starts weights without training state at a chosen step of schedule, data and every counter."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_fit_start(self, trainer: pl.Trainer, module: Any) -> None:
        module.set_micro_batches(self._step)
        start_at_step(trainer, self._step)

    def on_train_start(self, trainer: pl.Trainer, module: Any) -> None:
        for each in trainer.lr_scheduler_configs:
            scheduler: Any = each.scheduler
            scheduler.last_epoch = self._step
            rates = [base * f(self._step) for base, f in zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)]
            for group, rate in zip(scheduler.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate
            scheduler._last_lr = rates


class ApplyOptimizerSettings(pl.Callback):
    """A callback that replaces restored optimizer settings with the configured ones, as the user has allowed."""

    def on_train_start(self, trainer: pl.Trainer, module: Any) -> None:
        for optimizer, each in zip(trainer.optimizers, trainer.lr_scheduler_configs, strict=True):
            scheduler: Any = each.scheduler
            scheduler.base_lrs = [settings["initial_lr"] for settings in module.group_settings]
            for group, settings, factor in zip(
                optimizer.param_groups, module.group_settings, scheduler.lr_lambdas, strict=True
            ):
                group.update(settings)
                group["lr"] = settings["initial_lr"] * factor(scheduler.last_epoch)
