"""The LightningModule for causal language modelling. It knows one model and one batch; ranks are somebody else's business."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import lightning.pytorch as pl
import torch
from torch import nn

from ..config import LRScheduleConfig, OptimizerConfig
from ..models import lm_loss
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


class CausalLM(pl.LightningModule):
    """Trains `model` to predict the next token; batches are (sequences, length + 1) token ids."""

    def __init__(
        self,
        model: nn.Module,
        *,
        optimizer: OptimizerConfig,
        schedule: LRScheduleConfig,
        total_steps: int,
        clip_norm: float | None,
        compile_model: bool = False,
    ) -> None:
        super().__init__()
        self.model = model
        self._optimizer, self._schedule, self._total_steps, self._clip_norm = (
            optimizer,
            schedule,
            total_steps,
            clip_norm,
        )
        self._loss = torch.compile(lm_loss, dynamic=False) if compile_model else lm_loss
        self.clock = Clock()
        self.grad_norm: torch.Tensor | None = None
        self._losses: list[torch.Tensor] = []
        self._val_losses: list[torch.Tensor] = []
        self._val_sequences = 0
        self.val_loss: float | None = None

    def training_step(self, batch: torch.Tensor, batch_index: int) -> torch.Tensor:
        loss: torch.Tensor = self._loss(self.model, batch[:, :-1], batch[:, 1:])
        self._losses.append(loss.detach())
        return loss

    def take_loss(self, micro_batches: int) -> float:
        """The mean loss of the last step. Waits for the device, so it is asked for only when a line is written."""
        mean = torch.stack(self._losses[-micro_batches:]).float().mean()
        self._losses.clear()
        return float(mean)

    def on_train_start(self) -> None:
        self.clock = Clock()

    def lr_at(self, step: int) -> float:
        """The learning rate that optimizer step `step` (from 1) used."""
        return self._optimizer.lr * learning_rate(self._schedule, step - 1, self._total_steps)

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: Any = None, gradient_clip_algorithm: Any = None
    ) -> None:
        """Clips and keeps the norm from before, in one pass; with no limit the norm is still measured."""
        self.grad_norm = nn.utils.clip_grad_norm_(self.model.parameters(), self._clip_norm or math.inf)
        if len(self._losses) > 4096:  # nobody asked for a loss in a while
            del self._losses[:-1024]

    def validation_step(self, batch: torch.Tensor, batch_index: int) -> None:
        loss = self._loss(self.model, batch[:, :-1], batch[:, 1:])
        self._val_losses.append(loss.detach().double() * len(batch))
        self._val_sequences += len(batch)

    def on_validation_epoch_end(self) -> None:
        self.val_loss = float(torch.stack(self._val_losses).sum() / self._val_sequences)
        self._val_losses.clear()
        self._val_sequences = 0

    def configure_optimizers(self) -> Any:
        optimizer = make_optimizer(self.model, self._optimizer, fused=self.device.type == "cuda")
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: learning_rate(self._schedule, step, self._total_steps)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}
