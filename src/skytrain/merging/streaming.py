"""Merging, tensor by tensor: at any time one tensor of each model is in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .inputs import MergeInput
from .methods import MergeMethod, combine

Progress = Callable[[int, int], None]


def _silent(done: int, total: int) -> None:
    return


@dataclass(frozen=True)
class MergePlan:
    """What is merged how. `base` is what differences are taken from."""

    inputs: Sequence[MergeInput]
    method: MergeMethod
    base: MergeInput | None = None

    def tensor(self, name: str) -> Tensor:
        """One merged tensor. A model with weight 0 is not read."""
        weights = self.method.weights
        kept = [number for number, weight in enumerate(weights) if weight or self.method.name == "slerp"]
        base = self.base.read(name) if self.base is not None and self.method.needs_base else None
        values = [self.inputs[number].read(name) for number in kept]
        return combine(self.method.choose(kept), name, values, base)


def merged_tensors(plan: MergePlan, progress: Progress = _silent) -> Iterator[tuple[str, Tensor]]:
    """The merged tensors by name, each computed when it is asked for."""
    names = list(plan.inputs[0].tensors)
    for number, name in enumerate(names):
        yield name, plan.tensor(name)
        progress(number + 1, len(names))


@torch.no_grad()
def load_merged(model: nn.Module, plan: MergePlan) -> None:
    """Fills a model with the merged weights."""
    places = model.state_dict(keep_vars=True)
    for name, tensor in merged_tensors(plan):
        places[name].copy_(tensor)
