"""Models in the training loop, for evaluators: whole on each rank, in a DeepSpeed engine, or on a mesh."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..models import KVCache
from ..parallel import MeshStrategy
from .evaluators import padded
from .whole_model import WholeModel

MeanLoss = Callable[[Iterable[Tensor]], float]


class LoopModel(WholeModel):
    """A whole model in training. `mean_loss` is the training loop's, over the data of all ranks."""

    def __init__(self, model: Any, mean_loss: MeanLoss) -> None:
        super().__init__(model)
        self._mean_loss = mean_loss

    def mean_loss(self, batches: Iterable[Tensor]) -> float:
        return self._mean_loss(batches)


class EngineModel(LoopModel):
    """A model in a DeepSpeed engine, which must see every forward pass.

    All ranks compute together: the engine may gather weights for the pass.
    """

    def __init__(self, model: Any, mean_loss: MeanLoss, forward: Callable[[Tensor], Tensor]) -> None:
        super().__init__(model, mean_loss)
        self.takes_cache = False
        self._forward = forward

    def _logits(self, tokens_bt: Tensor, cache: KVCache | None = None) -> Tensor:
        return self._forward(tokens_bt)

    def last_logits(self, tokens: list[int], cache: KVCache | None = None) -> Tensor:
        return same_everywhere(super().last_logits(tokens))


class MeshModel:
    """A model distributed over a mesh. Every pass takes sequences of the length that the mesh was built for."""

    def __init__(self, strategy: MeshStrategy, config: Any, mean_loss: MeanLoss) -> None:
        self.config, self._strategy, self._mean_loss = config, strategy, mean_loss

    @property
    def window(self) -> int:
        return self._strategy.settings.sequence_length

    def mean_loss(self, batches: Iterable[Tensor]) -> float:
        return self._mean_loss(batches)

    def log_probs(self, tokens_bt: Tensor, targets_bt: Tensor) -> Tensor:
        length, device = targets_bt.size(1), self._strategy.root_device
        tokens, targets = (padded(x, self.window).to(device) for x in (tokens_bt, targets_bt))
        return self._strategy.log_probs(tokens, targets)[:, :length]

    def last_logits(self, tokens: list[int], cache: KVCache | None = None) -> Tensor:
        rows = padded(torch.tensor([tokens]), self.window).to(self._strategy.root_device)
        return same_everywhere(self._strategy.logits_at(rows, len(tokens) - 1)[0])

    def new_cache(self, tokens: int) -> KVCache | None:
        return None


def same_everywhere(logits_v: Tensor) -> Tensor:
    """Rank 0's logits on all ranks: different GPUs may round differently, and all ranks must choose the same token."""
    logits_v = logits_v.float().contiguous()
    dist.broadcast(logits_v, 0)
    return logits_v
