"""Every use of Lightning beyond its documented interface, so that an upgrade of Lightning is a change of this file.

tests/parallel/test_lightning_internals.py states what each function relies on: if an upgrade breaks one, a test names it.
scripts/check_codebase.py forbids such uses elsewhere.
"""

from __future__ import annotations

import logging
import warnings
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.distributed import _sync_ddp_if_available
from lightning.pytorch.strategies import DeepSpeedStrategy, Strategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from torch import Tensor

# Advice about workers, loaders, loggers and clipping, which Skytrain has settled.
QUIET_LOGGERS = (
    "lightning.pytorch.utilities.rank_zero",
    "lightning.pytorch.accelerators.cuda",
    "lightning.fabric.utilities.seed",
)
QUIET_WARNINGS = (
    "does not have many workers",
    "dataloader is not resumable",
    "litlogger",
    "DeepSpeed handles gradient clipping internally",
    "The `srun` command is available on your system but is not used",
    "have no `val_dataloader`",  # evaluators run outside Lightning's own validation
)


class DeepSpeedBase(DeepSpeedStrategy):
    """Lightning's strategy for DeepSpeed; a subclass makes the engine in `make_engine`."""

    def make_engine(self, model: Any, optimizer: Any, lr_scheduler: Any) -> tuple[Any, Any]:
        """Return the engine around `model`, and its optimizer."""
        raise NotImplementedError

    def _setup_model_and_optimizer(self, model: Any, optimizer: Any, lr_scheduler: Any = None) -> tuple[Any, Any]:
        return self.make_engine(model, optimizer, lr_scheduler)


def reduce_over_ranks(tensor: Tensor, group: Any, reduce_op: Any) -> Tensor:
    """Return the sum or mean over ranks, in place; the tensor as it is where there is no process group."""
    return _sync_ddp_if_available(tensor, group, reduce_op=reduce_op)


def set_rank_zero(rank: int) -> None:
    """Tell Lightning's `rank_zero_*` functions which rank this process is."""
    rank_zero_only.rank = rank  # type: ignore[attr-defined]  # kept on the function


def set_module_device(module: pl.LightningModule, device: torch.device) -> None:
    """Set `module.device`, which Lightning sets only where it moves the module itself."""
    module._device = device


def forget_module(strategy: Strategy) -> None:
    """Keep the strategy's teardown from moving the module's parameters to the CPU."""
    strategy._lightning_module = None


def is_fitting(trainer: pl.Trainer) -> bool:
    """Return whether `trainer.fit` runs, rather than `validate`."""
    return trainer.state.fn == TrainerFn.FITTING


def ends_step(trainer: pl.Trainer) -> bool:
    """Return whether the optimizer steps after the micro-batch that is being computed."""
    return not trainer.fit_loop._should_accumulate()


def call_through_wrapper(strategy: Strategy, module: pl.LightningModule, method: str, *args: Any) -> Any:
    """Call a method of the module through the forward pass of the wrapper that the strategy put around it."""
    assert strategy.model is not None
    return strategy._forward_redirection(strategy.model, module, method, *args)


def datamodule_of(trainer: pl.Trainer) -> Any:
    """Return the data module of the running `fit`; None where it was given loaders."""
    return trainer.datamodule  # type: ignore[attr-defined]


def dump_checkpoint(trainer: pl.Trainer) -> dict[str, Any]:
    """Return the dictionary that `trainer.save_checkpoint` would save now."""
    return trainer._checkpoint_connector.dump_checkpoint(weights_only=False)


def start_at_step(trainer: pl.Trainer, step: int) -> None:
    """Start `trainer.global_step`, and the count of batches that ends steps, at `step`; for `on_fit_start`."""
    loop = trainer.fit_loop.epoch_loop
    steps = loop.automatic_optimization.optim_progress.optimizer.step.total
    steps.ready = steps.completed = step
    batches: Any = loop.batch_progress.total
    count = step * trainer.accumulate_grad_batches
    batches.ready = batches.started = batches.processed = batches.completed = count
    assert trainer.global_step == step


def recount_batches(checkpoint: dict[str, Any], batches_per_step: int) -> None:
    """Rewrite a checkpoint's count of batches for another number of micro-batches per step.

    Lightning derives from this count where a step ends, and on another mesh a step may have more or fewer of them.
    """
    progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
    more = checkpoint["global_step"] * batches_per_step - progress["total"]["processed"]
    for counts in (progress["total"], progress["current"]):
        for key in counts:
            counts[key] += more


def count_batches_of_step(trainer: pl.Trainer) -> None:
    """Count the batches of the run so far as if all of its steps had had as many as the next one; for `on_train_batch_end`.

    Lightning derives from this count where a step begins and ends.
    """
    count = trainer.global_step * trainer.accumulate_grad_batches
    progress = trainer.fit_loop.epoch_loop.batch_progress
    for counts in (progress.total, progress.current):
        counts.ready = counts.started = counts.processed = count  # type: ignore[attr-defined]
        counts.completed = count - 1  # Lightning counts the batch that ends after this hook


def quieten_lightning() -> None:
    """Silence the advice in QUIET_LOGGERS and QUIET_WARNINGS."""
    for name in QUIET_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    for text in QUIET_WARNINGS:
        warnings.filterwarnings("ignore", f".*{text}.*")
