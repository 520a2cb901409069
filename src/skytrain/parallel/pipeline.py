"""Pipeline parallelism: the stages of a rank, the schedule of micro-batches, and weights that two stages share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    PipelineScheduleSingle,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)

from ..config import ConfigError
from ..models import WithAuxiliary, count_targets, split_auxiliary, stage_layers, weighted
from ..tokens import IGNORED_TARGET
from .clip import local_part

if TYPE_CHECKING:
    from .apply import Settings

SCHEDULES: dict[str, Any] = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved-1f1b": ScheduleInterleaved1F1B,
    "zbv": ScheduleZBVZeroBubble,
}


def stages_of_rank(settings: Settings, ranks: int, rank: int) -> tuple[list[int], int]:
    """Return the stages that a rank of the pipeline holds, and how many there are in all."""
    if settings.schedule == "zbv":  # a V: the rank of the first stage has the last one too
        return [rank, 2 * ranks - 1 - rank], 2 * ranks
    count = settings.chunks * ranks
    return list(range(rank, count, ranks)), count


def cut_stages(model: nn.Module, mesh: DeviceMesh, settings: Settings) -> list[nn.Module]:
    """Return this rank's stages of the model, in order."""
    whole: Any = model
    if not hasattr(whole, "stage"):
        raise ConfigError("parallel.pipeline", f"{type(model).__name__} cannot be split into stages")
    mine, count = stages_of_rank(settings, mesh.size(), mesh.get_local_rank())
    layers = stage_layers(whole.config.layers, count)
    return [whole.stage(layers[i], settings.sequence_length, first=i == 0, last=i == count - 1) for i in mine]


class StageParts(nn.Module):
    """The stages of one rank as one module. Parameters have their names in the whole model."""

    def __init__(self, stages: list[Any]) -> None:
        super().__init__()
        self.config = stages[0].config
        self.blocks = nn.ModuleDict()
        for stage in stages:
            self.blocks.update(dict(stage.blocks.items()))
            for name in ("embedding", "head"):
                if getattr(stage, name) is not None:
                    setattr(self, name, getattr(stage, name))


class Pipeline:
    """This rank's stages and the schedule by which they run over a batch, forward and backward.

    `loss` is that of logits and targets, `auxiliary` the auxiliary loss of all ranks that share the stages' tokens.
    """

    def __init__(
        self,
        stages: list[Any],
        mesh: DeviceMesh,
        settings: Settings,
        device: torch.device,
        loss: Callable[..., Tensor],
        auxiliary: Callable[[Tensor], Tensor],
    ) -> None:
        self._group = mesh["pipeline"].get_group()
        self._settings = settings
        ranks = mesh["pipeline"].size()
        rank = mesh["pipeline"].get_local_rank()
        tensor = mesh["tensor"].size()
        indices, count = stages_of_rank(settings, ranks, rank)
        self._first = 0 in indices
        self._last = count - 1 in indices
        self._loss = loss
        self._auxiliary = auxiliary
        self._weight: float | Tensor = 1.0  # of a micro-batch's mean loss, or of each of its targets
        self._equal_weight = 1.0  # of a micro-batch's auxiliary loss
        self._between = (settings.part_length // tensor, stages[0].config.width)
        self._holder = {i: r for r in range(ranks) for i in stages_of_rank(settings, ranks, r)[0]}
        self._stages = [
            PipelineStage(
                part, index, count, device, *_examples(part, index, count, settings, tensor), group=self._group
            )
            for part, index in zip(stages, indices, strict=True)
        ]
        kind = SCHEDULES[settings.schedule]
        self._schedule = kind(
            self._stages[0] if issubclass(kind, PipelineScheduleSingle) else self._stages,
            n_microbatches=settings.micro_batches,
            loss_fn=self._scaled_loss,
            # The schedule would divide all gradients after each run, and those of earlier runs again.
            scale_grads=False,
        )

    def _scaled_loss(self, output: WithAuxiliary, targets: Tensor) -> Tensor:
        logits, auxiliary = split_auxiliary(output)
        loss = self._loss(logits, targets)
        if isinstance(self._weight, float):
            loss = loss * self._weight
        else:
            loss = weighted(loss, self._weight * count_targets(targets), targets)
        return loss if auxiliary is None else loss + self._auxiliary(auxiliary.squeeze()) * self._equal_weight

    def train(self, tokens: Tensor, targets: Tensor, runs: int, share: Tensor | None = None) -> Tensor:
        """Compute gradients of the mean loss, divided by the `runs` of a step; return that mean on every rank.

        `share` is the weight of this run's mean in the step's, if runs have different numbers of targets. FSDP reduces the
        gradients (`apply.py`): torch's stage holds it back until the stage's last micro-batch of the run.
        """
        self._equal_weight = 1.0 / (self._settings.micro_batches * runs)
        if share is None:
            self._weight = self._equal_weight
            whole: float | Tensor = runs
        else:
            self._weight = share / (count_targets(targets).clamp(min=1) * runs)
            whole = torch.where(share > 0, runs / share, 0.0)
        losses: list[Tensor] = []
        self._schedule.step(*((tokens,) if self._first else ()), **self._targets(targets, losses), return_outputs=False)
        return self._everywhere(torch.stack(losses).sum().detach() * whole if self._last else None, tokens.device)

    def evaluate(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of a batch of any number of rows, on every rank; forward only.

        torch's schedules are not used: with two neighbouring stages on a rank they need a backward pass.
        """
        total = torch.zeros((), device=tokens.device)
        each = self._settings.micro_batch
        for start in range(0, self._passes(tokens) * each, each):
            rows, wanted = tokens[start : start + each], targets[start : start + each]
            if not len(rows):  # other ranks still have some, and exchange tokens with this rank's experts
                rows, wanted = (
                    tokens.new_zeros(1, tokens.size(1)),
                    targets.new_full((1, targets.size(1)), IGNORED_TARGET),
                )
            logits = self.logits(rows)
            if logits is not None:
                share = count_targets(wanted) / count_targets(targets).clamp(min=1)
                total += weighted(self._loss(logits, wanted).float(), share, wanted)
        dist.all_reduce(total, group=self._group)
        return total

    def _passes(self, tokens: Tensor) -> int:
        """Return how many passes a batch takes: ranks that exchange tokens with experts take as many as the fullest."""
        passes = torch.tensor(max(1, -(-len(tokens) // self._settings.micro_batch)), device=tokens.device)
        if self._settings.expert > 1:
            dist.all_reduce(passes, op=dist.ReduceOp.MAX)
        return int(passes)

    def logits(self, rows: Tensor) -> Tensor | None:
        """Return the logits of at most one micro-batch; None on ranks without the last stage."""
        x, logits = rows, None
        for stage in self._stages:
            if not stage.is_first and not self._holds(stage.stage_index - 1):
                shape = (len(rows), *self._between)
                x = torch.empty(shape, dtype=self._settings.dtype, device=rows.device)
                dist.recv(x, self._rank_of(stage.stage_index - 1), group=self._group)
            x, _ = split_auxiliary(stage.submod(x))
            if stage.is_last:
                logits = x
            elif not self._holds(stage.stage_index + 1):
                dist.send(x.contiguous(), self._rank_of(stage.stage_index + 1), group=self._group)
        return logits

    def _holds(self, stage: int) -> bool:
        return any(mine.stage_index == stage for mine in self._stages)

    def _rank_of(self, stage: int) -> int:
        return dist.get_global_rank(self._group, self._holder[stage])

    def _targets(self, targets: Tensor, losses: list[Tensor]) -> dict[str, Any]:
        return {"target": targets, "losses": losses} if self._last else {}

    def _everywhere(self, loss: Tensor | None, device: torch.device) -> Tensor:
        loss = torch.zeros((), device=device) if loss is None else loss.float()
        dist.all_reduce(loss, group=self._group)
        return loss


def _examples(part: Any, index: int, count: int, settings: Settings, tensor: int) -> tuple[Any, Any]:
    """Return example inputs and outputs of a stage. Without them torch would run it once more to find the shapes."""
    batch, length, width = settings.micro_batch, settings.part_length, part.config.width

    def example(*shape: int, dtype: torch.dtype = settings.dtype) -> Tensor:
        return torch.empty(*shape, dtype=dtype, device="meta", requires_grad=dtype.is_floating_point)

    tokens = example(batch, length, dtype=torch.long)
    between = example(batch, length // tensor, width)
    logits = example(batch, length, part.config.padded_vocab)
    # A stage passes on the auxiliary losses of the stages up to it; the first one is given none.
    auxiliary = (example(1, dtype=torch.float32),) if part.passes_auxiliary_loss else ()
    inputs = (tokens,) if index == 0 else (between, *auxiliary)
    return inputs, (logits if index == count - 1 else between, *auxiliary)


class TiedWeights:
    """A weight that the first and the last stage both hold: one in the whole model, two parameters here.

    Each stage computes a part of the gradient. Both get the sum before the optimizer step. So the two stay equal bit for
    bit, since they start equal and the sum of two numbers does not depend on their order.
    """

    def __init__(
        self, original: nn.Parameter | None, copy: nn.Parameter | None, mesh: DeviceMesh, schedule: str
    ) -> None:
        self.original = original
        self.copy = copy
        self._group = None
        if schedule == "zbv":
            return  # one rank holds both
        # Every process takes part in making every group, in the same order.
        for pair in mesh.mesh.flatten(1)[[0, -1]].T.tolist():
            group = dist.new_group(pair)
            if dist.get_rank() in pair:
                self._group = group

    @torch.no_grad()
    def add_gradients(self) -> None:
        held = [parameter for parameter in (self.original, self.copy) if parameter is not None]
        if not held:
            return
        assert all(parameter.grad is not None for parameter in held)
        parts = [local_part(parameter.grad)[0] for parameter in held if parameter.grad is not None]
        if self._group is not None:
            dist.all_reduce(parts[0], group=self._group)
        else:
            total = parts[0] + parts[1]
            parts[0].copy_(total)
            parts[1].copy_(total)
