"""The LightningModule for causal language modelling. It knows one model and one batch; strategies deal with ranks."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
import torch
from torch import nn

from ..config import LRScheduleConfig, OptimizerConfig
from ..models import count_targets, lm_loss, weighted
from ..parallel import MeshStrategy, datamodule_of, recount_batches
from ..tokens import inputs_and_targets
from .guard import Guard, LateGuard
from .losses import Loss
from .master_weights import MasterWeights
from .optimizers import make_optimizer
from .schedules import learning_rate


class Clock:
    """Seconds of training, without evaluations and the time that checkpoints hold it up."""

    def __init__(self) -> None:
        self._started_at = time.perf_counter()
        self._paused_seconds = 0.0

    @contextmanager
    def pause(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.skip(time.perf_counter() - began)

    def skip(self, seconds: float) -> None:
        self._paused_seconds += seconds

    def seconds(self) -> float:
        return time.perf_counter() - self._started_at - self._paused_seconds


@dataclass(frozen=True)
class Optimization:
    """How weights are updated: by which optimizer, at which rates, with gradients clipped to which norm."""

    optimizer: OptimizerConfig
    schedule: LRScheduleConfig
    total_steps: int  # the schedule's horizon
    clip_norm: float | None = None


class CausalLM(pl.LightningModule):
    """Trains `model` to predict the next token; batches are (sequences, length + 1) token ids.

    `loss` is that of the path which `choose_loss` has chosen. A mesh strategy, which holds the model in parts,
    computes loss and gradient norm itself.
    """

    def __init__(
        self, model: nn.Module, optimization: Optimization, *, loss: Loss = lm_loss, guard: Guard | None = None
    ) -> None:
        super().__init__()
        self.model = model
        self.loss = loss
        self._optimizer = optimization.optimizer
        self._schedule = optimization.schedule
        self._total_steps = optimization.total_steps
        self._clip_norm = optimization.clip_norm
        self._guard = guard
        self._late_guard: LateGuard | None = None
        self.clock = Clock()
        self.grad_norm: torch.Tensor | None = None
        self._losses: list[torch.Tensor] = []
        self.keeps_documents_apart = False
        self._step_targets: tuple[int, int | None] | None = None  # the current step, and its targets
        self.group_settings: list[dict[str, Any]] = []  # the optimizer's settings as configured, before a restore

    def training_step(self, batch: torch.Tensor, batch_index: int) -> torch.Tensor:
        tokens, targets = inputs_and_targets(batch, keep_marks=self.keeps_documents_apart)
        loss = self._compute_loss(tokens, targets)
        share = self.share_of_step(targets)
        if share is not None:
            loss = weighted(loss, share, targets)
        self._losses.append(loss.detach())
        return loss

    def _compute_loss(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        strategy = self.trainer.strategy
        compute = strategy.compute_loss if isinstance(strategy, MeshStrategy) else self.loss
        return compute(self.model, tokens, targets)

    def _clip_gradients(self, max_norm: float) -> torch.Tensor:
        """Clips in place; returns the norm before."""
        strategy = self.trainer.strategy
        clip = strategy.clip_gradients if isinstance(strategy, MeshStrategy) else nn.utils.clip_grad_norm_
        return clip(self.model.parameters(), max_norm)

    def share_of_step(self, targets: torch.Tensor) -> torch.Tensor | None:
        """The weight of this micro-batch's mean loss in the step's loss, relative to an equal share.

        The loss of a step is the sum over its targets divided by their number. Micro-batches and ranks are averaged,
        so one with more targets must count for more. None where all have the same number.
        """
        step_targets = self._targets_in_step()
        if step_targets is None:
            return None
        ranks = (self.trainer.distributed_sampler_kwargs or {}).get("num_replicas", 1)
        return count_targets(targets) * (self.trainer.accumulate_grad_batches * ranks / max(1, step_targets))

    def _targets_in_step(self) -> int | None:
        """From the data module; a loader without one has the same number in every batch."""
        count = getattr(datamodule_of(self.trainer), "targets_in_step", None)
        if count is None:
            return None
        if self._step_targets is None or self._step_targets[0] != self.global_step:
            self._step_targets = (self.global_step, count(self.global_step))
        return self._step_targets[1]

    def take_loss(self, micro_batches: int) -> float:
        """The mean loss of the last step over all ranks.

        Waits for the device, so call it only when a line is logged.
        """
        self.check_last_update()
        mean = torch.stack(self._losses[-micro_batches:]).float().mean()
        self._losses.clear()
        # Ranks that share a batch have the same loss, so the mean over ranks is the mean over batches.
        return float(self.trainer.strategy.reduce(mean, reduce_op="mean"))

    def on_train_start(self) -> None:
        self.clock = Clock()

    def lr_at(self, step: int) -> float:
        """The learning rate that optimizer step `step` (from 1) used."""
        return self._optimizer.lr * learning_rate(self._schedule, step - 1, self._total_steps)

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: Any = None, gradient_clip_algorithm: Any = None
    ) -> None:
        """Clips the gradients and keeps their norm before clipping; without a limit the norm is still measured."""
        norm = self._clip_gradients(self._clip_norm or math.inf)
        if self._late_guard is not None:
            self.check_last_update()
            self._keep(norm)
            self._late_guard.watch(self._step_loss(), norm, self.global_step)
        elif self.must_skip_update(norm):
            for parameter in self.model.parameters():
                parameter.grad = None  # optimizers skip parameters without a gradient: no step, no decay, no momentum

    def must_skip_update(self, norm: torch.Tensor) -> bool:
        """Whether the guard rejects this step's update; keeps the norm of its gradients.

        Raises where the run must stop.
        """
        self._keep(norm)
        if self._guard is None:
            return False
        # The same loss on every rank, so that all of them decide alike.
        loss = float(self.trainer.strategy.reduce(self._step_loss(), reduce_op="mean"))
        return self._guard.rejects(loss, float(norm), self.global_step)

    def check_last_update(self) -> None:
        """Raises if the last update was skipped on the device because its gradients were not finite."""
        if self._late_guard is not None:
            self._late_guard.check_last_update()

    def _keep(self, norm: torch.Tensor) -> None:
        self.grad_norm = norm
        if len(self._losses) > 4096:  # no loss was logged for a while
            del self._losses[:-1024]

    def _step_loss(self) -> torch.Tensor:
        """This rank's mean loss of the step."""
        return torch.stack(self._losses[-self.trainer.accumulate_grad_batches :]).float().mean()

    def on_train_end(self) -> None:
        self.check_last_update()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.check_last_update()

    def validation_step(  # type: ignore[override]  # evaluators call it, not Lightning's loop
        self, batch: torch.Tensor, batch_index: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The batch's summed loss, and the number of sequences that it is summed over.

        Evaluators add them up over all ranks.
        """
        rows = len(batch)
        if not rows:  # this rank has none left, but takes part in the others' computation
            batch = batch.new_zeros(1, batch.size(1))
        batch = self._with_rows_of_all_ranks(batch)
        tokens, targets = inputs_and_targets(batch, keep_marks=self.keeps_documents_apart)
        loss = self._compute_loss(tokens, targets)
        # In whole sequences, so that batches without padding count for exactly as many as they have.
        sequences = count_targets(targets) / targets.size(1) * bool(rows)
        return weighted(loss.detach().double(), sequences, targets), sequences

    def _with_rows_of_all_ranks(self, batch: torch.Tensor) -> torch.Tensor:
        """Adds rows without targets where the strategy needs the same number of rows on every rank."""
        most_rows = getattr(self.trainer.strategy, "most_rows", None)
        if most_rows is None:
            return batch
        return nn.functional.pad(batch, (0, 0, 0, most_rows(len(batch)) - len(batch)), value=~0)

    def logits(self, tokens_bt: torch.Tensor) -> torch.Tensor:
        """The forward pass, for a strategy that wraps the module and must see every forward pass."""
        logits: torch.Tensor = self.model(tokens_bt)
        return logits

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        recount_batches(checkpoint, self.trainer.accumulate_grad_batches)

    def build_optimizer(self, *, fused: bool) -> torch.optim.Optimizer:
        optimizer = make_optimizer(self.model, self._optimizer, fused=fused)
        lowered = any(parameter.dtype != torch.float32 for parameter in self.model.parameters())
        return MasterWeights(optimizer) if lowered else optimizer

    def configure_optimizers(self) -> Any:
        optimizer = self.build_optimizer(fused=may_fuse(self.device.type, str(self.trainer.precision)))
        if self._guard is not None and LateGuard.supports(self._guard, optimizer):
            self._late_guard = LateGuard(self._guard, optimizer)
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: learning_rate(self._schedule, step, self._total_steps)
        )
        self.group_settings = [
            {key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups
        ]
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def may_fuse(device: str, precision: str) -> bool:
    """A fused optimizer unscales float16 gradients within its step, which is after they were clipped: too late."""
    return device == "cuda" and precision != "16-mixed"
