"""Models in the training loop, for evaluators: whole on each rank, in a DeepSpeed engine, or on a mesh."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..models import Branches, KVCache
from ..parallel import MeshStrategy
from ..tokens import Batch
from .evaluators import padded
from .scorer import DataShare, RowLengths, TargetScores
from .whole_model import WholeModel

ROW_STEP = 64  # divisible by any number of ranks that divide a sequence in a tensor-parallel region
MeanLoss = Callable[[Iterable[Batch | Tensor]], float]


class LoopModel(WholeModel):
    """A whole model in training. `mean_loss` is the training loop's, over the data of all ranks."""

    def __init__(self, model: Any, mean_loss: MeanLoss, precision: str = "32-true") -> None:
        super().__init__(model, precision=precision)
        self._mean_loss = mean_loss

    def mean_loss(self, batches: Iterable[Batch | Tensor]) -> float:
        return self._mean_loss(batches)

    @property
    def share(self) -> DataShare:
        return DataShare(dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else DataShare()

    def add_up(self, values: Tensor) -> Tensor:
        if not dist.is_initialized():
            return values
        values = values.to(self.device)
        dist.all_reduce(values)
        return values


class EngineModel(LoopModel):
    """A model in a DeepSpeed engine, which must see every forward pass.

    All ranks compute together: the engine may gather weights for the pass.
    """

    def __init__(self, model: Any, mean_loss: MeanLoss, forward: Callable[[Tensor], Tensor]) -> None:
        super().__init__(model, mean_loss)
        self.takes_cache = False
        self._forward = forward

    @property
    def packed_rows(self) -> RowLengths | None:
        return None

    def _logits(self, tokens_bt: Tensor, cache: KVCache | None = None) -> Tensor:
        return self._forward(tokens_bt)

    def last_logits(self, tokens: list[int], cache: KVCache | None = None) -> Tensor:
        return same_everywhere(super().last_logits(tokens))


class MeshModel:
    """A model distributed over a mesh. Every pass takes sequences of the length that the mesh was built for."""

    def __init__(self, strategy: MeshStrategy, config: Any, mean_loss: MeanLoss) -> None:
        self.config = config
        self._strategy = strategy
        self._mean_loss = mean_loss

    @property
    def window(self) -> int:
        return self._strategy.settings.sequence_length

    def mean_loss(self, batches: Iterable[Batch | Tensor]) -> float:
        return self._mean_loss(batches)

    def log_probs(self, tokens_bt: Tensor, targets_bt: Tensor) -> Tensor:
        return self.target_scores(tokens_bt, targets_bt).log_probs

    def target_scores(self, tokens_bt: Tensor, targets_bt: Tensor) -> TargetScores:
        length = targets_bt.size(1)
        device = self._strategy.root_device
        tokens, targets = (padded(x, self.row_length(length)).to(device) for x in (tokens_bt, targets_bt))
        log_probs, below = self._strategy.target_scores(tokens, targets)[:, :, :length]
        return TargetScores(log_probs, below <= 0)

    @property
    def share(self) -> DataShare:
        kwargs = self._strategy.distributed_sampler_kwargs
        return DataShare(kwargs["rank"], kwargs["num_replicas"])

    def add_up(self, values: Tensor) -> Tensor:
        """Sum over the dimensions of the mesh that see different data; ranks along the others hold the same values.

        Ranks that divide sequences are neighbours in the dimension that also divides the state: one of them counts.
        """
        counts = self._strategy.mesh.get_local_rank("shard") % self._strategy.spec.context == 0
        values = values.to(self._strategy.root_device) * float(counts)
        for dimension in ("replicate", "shard"):
            dist.all_reduce(values, group=self._strategy.mesh[dimension].get_group())
        return values

    @property
    def batch_tokens(self) -> int:
        return self._strategy.settings.micro_batch * self.window

    @property
    def packed_rows(self) -> RowLengths | None:
        return None

    def branch_scores(self, tokens_bt: Tensor, branches: Branches, targets_n: Tensor) -> TargetScores:
        raise NotImplementedError("rows of several texts are not for this mesh: see packed_rows")

    def row_length(self, tokens: int) -> int:
        """Return the padded length of rows.

        Stages, parts of sequences and compiled blocks take only the length that they were made for.
        """
        settings = self._strategy.settings
        spec = self._strategy.spec
        fixed = spec.pipeline > 1 or spec.context > 1 or settings.compile_blocks or settings.kernels is not None
        return self.window if fixed else min(self.window, -(-tokens // ROW_STEP) * ROW_STEP)

    def last_logits(self, tokens: list[int], cache: KVCache | None = None) -> Tensor:
        rows = padded(torch.tensor([tokens]), self.window).to(self._strategy.root_device)
        return same_everywhere(self._strategy.logits_at(rows, len(tokens) - 1)[0])

    def new_cache(self, tokens: int) -> KVCache | None:
        return None


def same_everywhere(logits_v: Tensor) -> Tensor:
    """Return rank 0's logits on all ranks: GPUs may round differently, and all ranks must choose the same token."""
    logits_v = logits_v.float().contiguous()
    dist.broadcast(logits_v, 0)
    return logits_v
