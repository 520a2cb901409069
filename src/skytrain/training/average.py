"""An average of the weights over the end of a run, which evaluators and exports see in place of the last weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


class WeightAverage:
    """An exponential average of a model's parameters, a tensor for each, placed as the parameter is.

    It begins as a copy of the weights after `first_step` steps. Then each step moves it towards them by `1 - decay`.
    Training never reads it.
    """

    def __init__(self, decay: float, first_step: int) -> None:
        self.decay = decay
        self.first_step = first_step
        self.begun = False
        self.values: dict[str, Tensor] = {}  # by the parameter's name

    def reserve(self, model: nn.Module) -> None:
        """Allocate the average before the first step: a run that fits into memory then fits to its end."""
        self.values = {
            name: torch.zeros_like(parameter, requires_grad=False, memory_format=torch.preserve_format).detach()
            for name, parameter in model.named_parameters()
        }

    @torch.no_grad()
    def update(self, model: nn.Module, steps: int) -> None:
        """Take in the weights after `steps` steps of the run."""
        if steps < self.first_step:
            return
        named = dict(model.named_parameters())
        ours = [_local(self.values[name]) for name in named]
        theirs = [_local(parameter) for parameter in named.values()]
        if self.begun:
            torch._foreach_lerp_(ours, theirs, 1.0 - self.decay)
        else:
            torch._foreach_copy_(ours, theirs)
        self.begun = True

    def restore(self, model: nn.Module, saved: Any, same: Mapping[str, str]) -> None:
        """Read this rank's part of a saved average, if it had begun.

        `same` maps further names of a parameter to the one it was saved under.
        """
        if not saved.described():
            return
        if not self.values:  # an evaluation without training
            self.reserve(model)
        saved.read_into((same.get(name, name), value) for name, value in self.values.items())
        self.begun = True

    @contextmanager
    def in_place(self, model: nn.Module) -> Iterator[None]:
        """Let the model have the average as its weights; afterwards it has its own again, to the last bit."""
        # A sharded model has other parameters while they are gathered, so they are looked up once.
        pairs = [(self.values[name], parameter) for name, parameter in model.named_parameters()] if self.begun else []
        _swap(pairs)
        try:
            yield
        finally:
            _swap(pairs)


@torch.no_grad()
def _swap(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    for one, other in pairs:
        first, second = _local(one), _local(other)
        kept = first.clone()
        first.copy_(second)
        second.copy_(kept)


def _local(tensor: Any) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
