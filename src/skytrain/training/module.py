"""The LightningModule for causal language modelling. It knows one model and one batch; ranks are somebody else's business."""

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
from ..models import count_targets, lm_loss
from ..parallel import MeshStrategy, datamodule_of, recount_batches
from ..tokens import inputs_and_targets
from .guard import Guard, LateGuard
from .losses import Loss
from .master_weights import MasterWeights
from .optimizers import make_optimizer
from .schedules import learning_rate


class Clock:
    """Seconds of training, without the validations, samples and checkpoints in between."""

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

    `loss` is that of the path which `choose_loss` has chosen. A mesh strategy, which holds the model in parts, computes loss
    and gradient norm itself.
    """

    def __init__(
        self, model: nn.Module, optimization: Optimization, *, loss: Loss = lm_loss, guard: Guard | None = None
    ) -> None:
        super().__init__()
        self.model, self.loss = model, loss
        self._optimizer, self._schedule = optimization.optimizer, optimization.schedule
        self._total_steps, self._clip_norm = optimization.total_steps, optimization.clip_norm
        self._guard = guard
        self._late_guard: LateGuard | None = None
        self.clock = Clock()
        self.grad_norm: torch.Tensor | None = None
        self._losses: list[torch.Tensor] = []
        self._val_losses: list[torch.Tensor] = []
        self._val_sequences: list[torch.Tensor] = []
        self.val_loss: float | None = None
        self.keeps_documents_apart = False
        self._step_targets: tuple[int, int | None] | None = None  # of the step in hand
        self.group_settings: list[dict[str, Any]] = []  # the optimizer's, by the configuration, before any restore

    def training_step(self, batch: torch.Tensor, batch_index: int) -> torch.Tensor:
        tokens, targets = inputs_and_targets(batch, keep_marks=self.keeps_documents_apart)
        loss = self._compute_loss(tokens, targets)
        share = self.share_of_step(targets)
        if share is not None:
            loss = loss * share
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
        """What the mean loss of this micro-batch counts for in the step's loss, relative to an equal share.

        The loss of a step is the sum over its targets divided by their number. Micro-batches and ranks are averaged, so one that
        has more targets than another must count for more. None where all have the same number.
        """
        step_targets = self._targets_in_step()
        if step_targets is None:
            return None
        ranks = (self.trainer.distributed_sampler_kwargs or {}).get("num_replicas", 1)
        return count_targets(targets) * (self.trainer.accumulate_grad_batches * ranks / step_targets)

    def _targets_in_step(self) -> int | None:
        """As the data module knows it; a loader that was given without one has the same number in every batch."""
        ask = getattr(datamodule_of(self.trainer), "targets_in_step", None)
        if ask is None:
            return None
        if self._step_targets is None or self._step_targets[0] != self.global_step:
            self._step_targets = (self.global_step, ask(self.global_step))
        return self._step_targets[1]

    def take_loss(self, micro_batches: int) -> float:
        """The mean loss of the last step, over all ranks. Waits for the device, so it is asked for only when a line is written."""
        self.judge()
        mean = torch.stack(self._losses[-micro_batches:]).float().mean()
        self._losses.clear()
        # Ranks that share a batch have the same loss, so the mean over all is that over the batches.
        return float(self.trainer.strategy.reduce(mean, reduce_op="mean"))

    def on_train_start(self) -> None:
        self.clock = Clock()

    def lr_at(self, step: int) -> float:
        """The learning rate that optimizer step `step` (from 1) used."""
        return self._optimizer.lr * learning_rate(self._schedule, step - 1, self._total_steps)

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: Any = None, gradient_clip_algorithm: Any = None
    ) -> None:
        """Clips and keeps the norm from before, in one pass; with no limit the norm is still measured."""
        norm = self._clip_gradients(self._clip_norm or math.inf)
        if self._late_guard is not None:
            self.judge()  # the step before this one
            self._keep(norm)
            self._late_guard.note(self._step_loss(), norm, self.global_step)
        elif self.refuses(norm):
            for parameter in self.model.parameters():
                parameter.grad = None  # an optimizer passes over what has no gradient: no step, no decay, no momentum

    def refuses(self, norm: torch.Tensor) -> bool:
        """Keeps the norm of the step's gradients, and says whether the update must not happen."""
        self._keep(norm)
        if self._guard is None:
            return False
        # The same loss on every rank, so that all of them judge alike.
        loss = float(self.trainer.strategy.reduce(self._step_loss(), reduce_op="mean"))
        return self._guard.refuses(loss, float(norm), self.global_step)

    def judge(self) -> None:
        """Raises if the last update was held back because its gradients were not finite; nothing where that was seen at once."""
        if self._late_guard is not None:
            self._late_guard.judge()

    def _keep(self, norm: torch.Tensor) -> None:
        self.grad_norm = norm
        if len(self._losses) > 4096:  # nobody asked for a loss in a while
            del self._losses[:-1024]

    def _step_loss(self) -> torch.Tensor:
        """This rank's mean loss of the step."""
        return torch.stack(self._losses[-self.trainer.accumulate_grad_batches :]).float().mean()

    def on_train_end(self) -> None:
        self.judge()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.judge()

    def validation_step(self, batch: torch.Tensor, batch_index: int) -> None:
        rows = len(batch)
        if not rows:  # this rank has none left, but takes part in what the others compute
            batch = batch.new_zeros(1, batch.size(1))
        batch = self._with_rows_of_all_ranks(batch)
        tokens, targets = inputs_and_targets(batch, keep_marks=self.keeps_documents_apart)
        loss = self._compute_loss(tokens, targets)
        # In whole sequences, so that batches without padding count for exactly as many as they have.
        sequences = count_targets(targets) / targets.size(1) * bool(rows)
        self._val_losses.append(loss.detach().double() * sequences)
        self._val_sequences.append(sequences)

    def _with_rows_of_all_ranks(self, batch: torch.Tensor) -> torch.Tensor:
        """Adds rows without targets where the strategy needs the same number of rows on every rank."""
        most_rows = getattr(self.trainer.strategy, "most_rows", None)
        if most_rows is None:
            return batch
        return nn.functional.pad(batch, (0, 0, 0, most_rows(len(batch)) - len(batch)), value=~0)

    def on_validation_epoch_end(self) -> None:
        nats = torch.stack(self._val_losses).sum()
        both = torch.stack([nats, torch.stack(self._val_sequences).sum().to(nats)])
        total, sequences = self.trainer.strategy.reduce(both, reduce_op="sum")
        self.val_loss = float(total / sequences)
        self._val_losses.clear()
        self._val_sequences.clear()

    def logits(self, tokens_bt: torch.Tensor) -> torch.Tensor:
        """For a strategy that must see every forward pass, and calls this through its wrapper."""
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
        if self._guard is not None and LateGuard.serves(self._guard, optimizer):
            self._late_guard = LateGuard(self._guard, optimizer)
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: learning_rate(self._schedule, step, self._total_steps)
        )
        self.group_settings = [
            {key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups
        ]
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def may_fuse(device: str, precision: str) -> bool:
    """A fused optimizer takes the loss's scale out of the gradients within its step: after they were clipped, which is too late."""
    return device == "cuda" and precision != "16-mixed"
