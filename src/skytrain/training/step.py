"""One training step, from top to bottom.

Lightning's fit loop drives it. For each micro-batch it moves the batch to the device, calls `training_step` and runs the
backward pass; after the last micro-batch of a step it clips, updates the weights and the schedule, and calls the
callbacks:

    for each step:
        for each of trainer.accumulate_grad_batches micro-batches:
            batch           next(TrainLoader)                  this rank's windows, as a Batch
            to device       Batch.to
            forward, loss   CausalLM.training_step -> compute_loss
            backward        strategy.backward                  gradients are accumulated; STEPS says when they are reduced
        clipping, guard     CausalLM.configure_gradient_clipping -> clip_to_norm, then must_skip_update
        optimizer           strategy.optimizer_step
        schedule            CausalLM.learning_rate_factor      the learning rate of the next step
        callbacks           AtStep.on_train_batch_end          interruptions, metrics (StepLog), ... as fitting.py lists them

`CausalLM` has these methods in this order, and each says when Lightning calls it. What a mode does in its own way is in
`STEPS` at the end of this file: one device, DDP, a mesh (FSDP, HSDP, tensor, context), a pipeline, DeepSpeed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from torch import nn

from ..config import BatchSizes, LRScheduleConfig, OptimizerConfig
from ..models import WithAuxiliary, count_targets, lm_loss, split_auxiliary, weighted
from ..parallel import (
    MeshStrategy,
    Pipeline,
    StateByName,
    ZeroStrategy,
    count_batches_of_step,
    datamodule_of,
    ends_step,
    recount_batches,
)
from ..tokens import Batch, as_batch
from .average import WeightAverage
from .callbacks import StepLog
from .guard import Guard, LateGuard
from .losses import Loss
from .master_weights import MasterWeights
from .optimizers import make_optimizer
from .routers import RouterLoads
from .schedules import learning_rate


class Clock:
    """Training time in seconds, without evaluations and time blocked on checkpoints."""

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
    """The settings by which weights are updated: optimizer, rates and the norm that gradients are clipped to."""

    optimizer: OptimizerConfig
    schedule: LRScheduleConfig
    total_steps: int  # the schedule's horizon
    clip_norm: float | None = None
    batches: BatchSizes | None = None  # tokens of each step; None: always as many
    average: WeightAverage | None = None  # of the weights, over the end of the run


class CausalLM(pl.LightningModule):
    """A Lightning module that trains `model` to predict the next token.

    `loss` is the loss function that `choose_loss` selected. A mesh strategy, which holds the model in parts,
    computes loss and gradient norm itself.
    """

    def __init__(
        self, model: nn.Module, optimization: Optimization, *, loss: Loss = lm_loss, guard: Guard | None = None
    ) -> None:
        super().__init__()
        self.model = model
        self.loss = loss
        self._optimization = optimization
        self._guard = guard
        self._late_guard: LateGuard | None = None
        self.clock = Clock()
        self.grad_norm: torch.Tensor | None = None
        self._losses: list[torch.Tensor] = []
        self._first_micro_batches = 1  # of the run's first step
        self._step_targets: tuple[int, int | None] | None = None  # the current step, and its targets
        self._loads = RouterLoads(model)
        self.group_settings: list[dict[str, Any]] = []  # the optimizer's settings as configured, before a restore
        self.logs = False  # whether Lightning's logger gets the losses: for a Trainer of the user's own
        self._validated = (torch.zeros(()), torch.zeros(()))  # summed loss, and the number of sequences

    # A micro-batch.

    def training_step(self, batch: Batch | torch.Tensor, batch_index: int) -> torch.Tensor:
        """Return the loss of a micro-batch, weighted so that the mean over micro-batches and ranks is the step's.

        Lightning calls it for each micro-batch, through the wrapper of DDP or DeepSpeed, divides the result by
        the number of micro-batches and calls `strategy.backward` with it.
        """
        batch = as_batch(batch)
        loss, auxiliary = split_auxiliary(self.compute_loss(batch))
        if self.targets_in_step() is not None:
            targets = batch.targets
            loss = weighted(loss, self.share_of_step(targets), targets)
        if auxiliary is not None:
            loss = loss + auxiliary
        self._losses.append(loss.detach())
        return loss

    def compute_loss(self, batch: Batch) -> WithAuxiliary:
        """Return the mean loss over the targets, and the blocks' auxiliary loss where they have one."""
        strategy = self.trainer.strategy
        if isinstance(strategy, MeshStrategy):
            return strategy.compute_loss(self.model, batch)
        return self.loss(self.model, batch.tokens, batch.targets, batch.document_starts)

    def share_of_step(self, targets: torch.Tensor) -> torch.Tensor:
        """Return the weight of this micro-batch's mean loss in the step's loss, relative to an equal share.

        The loss of a step is the sum over its targets divided by their number. Micro-batches and ranks are averaged,
        so one with more targets must count for more.
        """
        step_targets = self.targets_in_step()
        assert step_targets is not None
        ranks = (self.trainer.distributed_sampler_kwargs or {}).get("num_replicas", 1)
        return count_targets(targets) * (self.trainer.accumulate_grad_batches * ranks / max(1, step_targets))

    def targets_in_step(self) -> int | None:
        """Return the number of targets in the current step, over all ranks; None if every batch has the same number.

        The data module knows it; a loader without one has the same number in every batch.
        """
        count = getattr(datamodule_of(self.trainer), "targets_in_step", None)
        if count is None:
            return None
        if self._step_targets is None or self._step_targets[0] != self.global_step:
            self._step_targets = (self.global_step, count(self.global_step))
        return self._step_targets[1]

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any) -> None:
        """Clear the gradients. Lightning calls it before the backward pass of a step's first micro-batch."""
        if not getattr(self.trainer.strategy, "clears_gradients", False):
            super().optimizer_zero_grad(epoch, batch_idx, optimizer)

    # The update, after the backward pass of the last micro-batch.

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """Log the step's loss where `logs` asks for it. Lightning calls it before clipping."""
        if self.logs:
            self.log("train/loss", self._step_loss(), prog_bar=True, sync_dist=True)

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: Any = None, gradient_clip_algorithm: Any = None
    ) -> None:
        """Clip the gradients and let the guard judge the step.

        Lightning calls it within `strategy.optimizer_step`, before the optimizer's own step. DeepSpeed's engine clips
        within its step instead, and `ZeroStrategy.optimizer_step` asks the guard after it.
        """
        if getattr(self.trainer.strategy, "clips_gradients", False):
            return
        norm = self.clip_to_norm(self._optimization.clip_norm or math.inf)
        if self._late_guard is not None:
            self.check_last_update()
            self._record_norm(norm)
            self._late_guard.watch(self._step_loss(), norm, self.global_step)
        elif self.must_skip_update(norm):
            for parameter in self.model.parameters():
                parameter.grad = None  # optimizers skip parameters without a gradient: no step, no decay, no momentum

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Update the weights, and then their average and the routers' biases where a run has them."""
        super().optimizer_step(*args, **kwargs)
        if self._optimization.average is not None and ends_step(self.trainer):
            self._optimization.average.update(self.model, self.global_step + 1)
        if self._loads.moves_biases and ends_step(self.trainer):
            self._loads.collect()
            self._loads.move_biases()

    def clip_to_norm(self, max_norm: float) -> torch.Tensor:
        """Clip the gradients in place, and return the norm before clipping; an infinite limit only measures it."""
        strategy = self.trainer.strategy
        clip = strategy.clip_gradients if isinstance(strategy, MeshStrategy) else nn.utils.clip_grad_norm_
        return clip(self.model.parameters(), max_norm)

    def must_skip_update(self, norm: torch.Tensor) -> bool:
        """Return whether the guard rejects this step's update; keep the norm of its gradients.

        An error is raised where the run must stop.
        """
        self._record_norm(norm)
        if self._guard is None:
            return False
        # The same loss on every rank, so that all of them decide alike.
        loss = float(self.trainer.strategy.reduce(self._step_loss(), reduce_op="mean"))
        return self._guard.rejects(loss, float(norm), self.global_step)

    def check_last_update(self) -> None:
        """Raise an error if the last update was skipped on the device because its gradients were not finite."""
        if self._late_guard is not None:
            self._late_guard.check_last_update()

    def _record_norm(self, norm: torch.Tensor) -> None:
        self.grad_norm = norm
        if len(self._losses) > 4096:  # bounds memory if nothing is logged
            del self._losses[:-1024]

    def _step_loss(self) -> torch.Tensor:
        """Return this rank's mean loss of the step."""
        return torch.stack(self._losses[-self.trainer.accumulate_grad_batches :]).float().mean()

    def learning_rate_factor(self, step: int) -> float:
        """Return the factor on the peak learning rate after `step` steps. Lightning asks after each optimizer step."""
        wanted = self._optimization
        return learning_rate(wanted.schedule, step, wanted.total_steps, wanted.batches)

    # What callbacks read after a step.

    def take_loss(self) -> float:
        """Return the mean loss of the last step over all ranks.

        This waits for the device and forgets the losses, so call it only when a line is logged.
        """
        self.check_last_update()
        mean = self._step_loss()
        self._losses.clear()
        # Ranks that share a batch have the same loss, so the mean over ranks is the mean over batches.
        return float(self.trainer.strategy.reduce(mean, reduce_op="mean"))

    def router_metrics(self) -> dict[str, float]:
        """Return how evenly routers spread tokens, since the last call or in the last step; all ranks call this.

        A model without experts has none.
        """
        if not self._loads:
            return {}
        if not self._loads.moves_biases:
            self._loads.collect()
        return self._loads.metrics()

    def collapsed_router(self, metrics: dict[str, float]) -> str | None:
        """Return what is wrong where a router uses hardly more experts than one token does."""
        return self._loads.collapsed(metrics)

    def lr_at(self, step: int) -> float:
        """Return the learning rate that optimizer step `step` (from 1) used."""
        return self._optimization.optimizer.lr * self.learning_rate_factor(step - 1)

    # Before the first step, and around checkpoints.

    def setup(self, stage: str) -> None:
        """Keep how many micro-batches the first step has. Lightning calls it before it restores a checkpoint."""
        self._first_micro_batches = self.trainer.accumulate_grad_batches

    def configure_optimizers(self) -> Any:
        """Build the optimizer and its schedule. Lightning calls it once, when the strategy has placed the model."""
        self._loads = RouterLoads(self.model)  # the strategy may have replaced the model by its stages
        if self._optimization.average is not None:
            self._optimization.average.reserve(self.model)
        optimizer = self.build_optimizer(fused=may_fuse(self.device.type, str(self.trainer.precision)))
        if self._guard is not None and LateGuard.supports(self._guard, optimizer):
            self._late_guard = LateGuard(self._guard, optimizer)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: self.learning_rate_factor(step))
        self.group_settings = [
            {key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups
        ]
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def build_optimizer(self, *, fused: bool) -> torch.optim.Optimizer:
        """Return the optimizer of the model's parameters, with float32 copies of those in lower precision.

        DeepSpeed's strategy made one before it divided the parameters, and adapts it.
        """
        adapted = getattr(self.trainer.strategy, "adapted_optimizer", None)
        if adapted is not None:
            return adapted(fused=fused)
        optimizer = make_optimizer(self.model, self._optimization.optimizer, fused=fused)
        lowered = any(parameter.dtype != torch.float32 for parameter in self.model.parameters())
        return MasterWeights(optimizer) if lowered else optimizer

    def on_train_start(self) -> None:
        self.clock = Clock()

    def on_train_end(self) -> None:
        self.check_last_update()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.check_last_update()
        average = self._optimization.average
        if average is not None and average.begun:
            checkpoint["average"] = self._strategy_by_name().own_values(average.values)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if self._optimization.average is not None:
            same = self._strategy_by_name().same_names()
            self._optimization.average.restore(self.model, checkpoint["average"], same)
        self.set_micro_batches(checkpoint["global_step"])
        recount_batches(checkpoint, self.trainer.accumulate_grad_batches)

    def on_train_batch_end(self, *_: Any) -> None:
        """Set how many micro-batches the next step has. Lightning calls it after the callbacks."""
        if self._steps_differ and ends_step(self.trainer):
            before = self.trainer.accumulate_grad_batches
            self.set_micro_batches(self.global_step)
            if self.trainer.accumulate_grad_batches != before:
                count_batches_of_step(self.trainer)

    def set_micro_batches(self, step: int) -> None:
        """Let a step consist of as many micro-batches as step `step` (from 0) has; the trainer was given the first one's."""
        if self._steps_differ:
            batches = self._optimization.batches
            assert batches is not None
            self.trainer.accumulate_grad_batches = self._first_micro_batches * batches.at(step) // batches.at(0)

    @property
    def _steps_differ(self) -> bool:
        """Whether trainer.batch_schedule gives steps several sizes."""
        return self._optimization.batches is not None and bool(self._optimization.batches.phases)

    def _strategy_by_name(self) -> StateByName:
        strategy = self.trainer.strategy
        assert isinstance(strategy, StateByName), "the capability table refuses an average with other strategies"
        return strategy

    def averaged(self) -> AbstractContextManager[None]:
        """Let the model have the average of its weights, where the run has one; afterwards it has its own again."""
        average = self._optimization.average
        return nullcontext() if average is None else average.in_place(self.model)

    # Evaluation. In `train` evaluators call this; only a Trainer of the user's own has Lightning's loop, and its hooks.

    def validation_step(  # type: ignore[override]
        self, batch: Batch | torch.Tensor, batch_index: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the batch's summed loss, and the number of sequences that it is summed over.

        Evaluators add them up over all ranks.
        """
        batch = as_batch(batch)
        rows = batch.rows
        if not rows:  # this rank has none left, but takes part in the others' computation
            batch = Batch(batch.windows.new_zeros(1, batch.windows.size(1)), document_starts=_no_starts(batch))
        batch = self._with_rows_of_all_ranks(batch)
        targets = batch.targets
        loss, _ = split_auxiliary(self.compute_loss(batch))
        # Counted in whole sequences, so that batches without padding count for exactly as many as they have.
        sequences = count_targets(targets) / targets.size(1) * bool(rows)
        return weighted(loss.detach().double(), sequences, targets), sequences

    def on_validation_epoch_start(self) -> None:
        self._validated = (torch.zeros((), device=self.device), torch.zeros((), device=self.device))

    def on_validation_batch_end(self, outputs: Any, *_: Any) -> None:
        loss, sequences = self._validated
        self._validated = (loss + outputs[0], sequences + outputs[1])

    def on_validation_epoch_end(self) -> None:
        """Log the mean loss of the validation split, as an evaluation of `train` measures it."""
        loss, sequences = (self.trainer.strategy.reduce(each, reduce_op="sum") for each in self._validated)
        if sequences:
            self.log("val/loss", (loss / sequences).float(), prog_bar=True)

    def _with_rows_of_all_ranks(self, batch: Batch) -> Batch:
        """Add rows without targets where the strategy needs the same number of rows on every rank."""
        most_rows = getattr(self.trainer.strategy, "most_rows", None)
        return batch if most_rows is None else batch.padded_to(most_rows(batch.rows))

    def logits(self, tokens_bt: torch.Tensor) -> torch.Tensor:
        """Return the logits, for a strategy that wraps the module and must see every forward pass."""
        logits: torch.Tensor = self.model(tokens_bt)
        return logits


def may_fuse(device: str, precision: str) -> bool:
    """Return whether the optimizer may be fused.

    A fused optimizer unscales float16 gradients within its step, which is after they were clipped: too late.
    """
    return device == "cuda" and precision != "16-mixed"


def _no_starts(batch: Batch) -> torch.Tensor | None:
    starts = batch.document_starts
    return None if starts is None else starts.new_zeros(1, starts.size(1))


@dataclass(frozen=True)
class StepPart:
    """A part of a step and the function that does it."""

    name: str
    owner: Any
    function: str
    note: str = ""

    def __post_init__(self) -> None:
        assert callable(getattr(self.owner, self.function)), f"{self.owner} has no {self.function}"


@dataclass(frozen=True)
class StepOrder:
    """The parts of a step, ordered by when each function returns: a nested call comes before its caller."""

    micro_batch: tuple[StepPart, ...]
    update: tuple[StepPart, ...]


Mode = Literal["one device", "ddp", "mesh", "pipeline", "deepspeed"]
TO_DEVICE = StepPart(
    "to device", Batch, "to", "by strategy.batch_to_device; tokens and targets are copied as one tensor"
)
LOSS = StepPart("forward, loss", CausalLM, "compute_loss", "by the path of choose_loss: fused, compiled or eager")
SHARE = StepPart("loss weight", CausalLM, "training_step", "by its number of targets; plus the auxiliary loss")
CLIP = StepPart("clipping", CausalLM, "clip_to_norm", "by the norm of all gradients")
GUARD = StepPart("guard", CausalLM, "must_skip_update", "LateGuard.watch instead where the host must not wait")
SCHEDULE = StepPart("schedule", CausalLM, "learning_rate_factor")
METRICS = StepPart(
    "metrics", StepLog, "at_step", "after the callback for interruptions; see fitting.py for all of them"
)
STEPS: dict[Mode, StepOrder] = {
    "one device": StepOrder(
        micro_batch=(TO_DEVICE, LOSS, SHARE, StepPart("backward", SingleDeviceStrategy, "backward")),
        update=(
            CLIP,
            GUARD,
            StepPart("optimizer", SingleDeviceStrategy, "optimizer_step"),
            SCHEDULE,
            METRICS,
        ),
    ),
    "ddp": StepOrder(
        micro_batch=(
            TO_DEVICE,
            LOSS,
            SHARE,
            StepPart(
                "backward, reduction", DDPStrategy, "backward", "DDP all-reduces buckets, on the last micro-batch"
            ),
        ),
        update=(CLIP, GUARD, StepPart("optimizer", DDPStrategy, "optimizer_step"), SCHEDULE, METRICS),
    ),
    "mesh": StepOrder(
        micro_batch=(
            TO_DEVICE,
            StepPart("forward, loss", MeshStrategy, "compute_loss", "FSDP gathers each block's weights"),
            SHARE,
            StepPart(
                "backward, reduction",
                MeshStrategy,
                "backward",
                "FSDP reduce-scatters: on the last micro-batch, or on each with parallel.reduce_once=false",
            ),
        ),
        update=(
            StepPart("clipping", MeshStrategy, "clip_gradients", "over all parts of the mesh"),
            GUARD,
            StepPart("optimizer", MeshStrategy, "optimizer_step"),
            SCHEDULE,
            METRICS,
        ),
    ),
    "pipeline": StepOrder(
        micro_batch=(
            TO_DEVICE,
            StepPart(
                "forward, loss, backward, reduction",
                Pipeline,
                "train",
                "all micro-batches of its schedule; a stage reduces its gradients after its last one",
            ),
            SHARE,
            StepPart("tied weights", MeshStrategy, "backward", "adds the gradients of weights that two stages hold"),
        ),
        update=(
            StepPart("clipping", MeshStrategy, "clip_gradients"),
            GUARD,
            StepPart("optimizer", MeshStrategy, "optimizer_step", "clears the gradients too"),
            SCHEDULE,
            METRICS,
        ),
    ),
    # Lightning calls optimizer_step for each micro-batch; the engine counts them, and acts on the last.
    "deepspeed": StepOrder(
        micro_batch=(
            TO_DEVICE,
            LOSS,
            SHARE,
            StepPart(
                "backward, reduction",
                ZeroStrategy,
                "backward",
                "the engine reduces: on the last micro-batch with ZeRO-1, on each with ZeRO-2 and -3",
            ),
        ),
        update=(
            StepPart("guard", CausalLM, "must_skip_update", "after the engine has clipped and updated"),
            StepPart("clipping, optimizer", ZeroStrategy, "optimizer_step", "the engine's step"),
            SCHEDULE,
            METRICS,
        ),
    ),
}
