"""The norm of all gradients and its limit, right for any mix of placements and over all pipeline stages."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

Axes = tuple[dist.ProcessGroup, ...]


@torch.no_grad()
def clip_gradients(
    parameters: Iterable[nn.Parameter],
    limit: float,
    *,
    repeated: frozenset[nn.Parameter] = frozenset(),
    pipeline: dist.ProcessGroup | None = None,
) -> Tensor:
    """Scales gradients so that their norm is at most `limit`, and returns the norm from before.

    Torch's own refuses a mix of plain tensors and DTensors of different meshes. `repeated` parameters are copies whose
    original is counted elsewhere: they are scaled but not counted.
    """
    local: list[Tensor] = []
    counted: dict[Axes, list[Tensor]] = {}
    for parameter in parameters:
        if parameter.grad is None:
            continue
        part, axes = local_part(parameter.grad)
        local.append(part)
        if parameter not in repeated:
            counted.setdefault(axes, []).append(part)
    total = torch.zeros((), dtype=torch.float32, device=local[0].device)
    # Each rank of a stage holds the same parameters, so the ranks that share an axis meet in the same order.
    for axes, parts in counted.items():
        square = torch.stack(torch._foreach_norm(parts)).float().square().sum()
        for group in axes:
            dist.all_reduce(square, group=group)
        total += square
    if pipeline is not None:
        dist.all_reduce(total, group=pipeline)
    norm = total.sqrt()
    if math.isfinite(limit):
        torch._foreach_mul_(local, (limit / (norm + 1e-6)).clamp(max=1.0))
    return norm


def local_part(gradient: Tensor) -> tuple[Tensor, Axes]:
    """What this rank holds of a tensor, and the groups of ranks over which the rest is spread."""
    if not isinstance(gradient, DTensor):
        return gradient, ()
    assert not any(placement.is_partial() for placement in gradient.placements), "gradients are reduced before clipping"
    spread = [i for i, placement in enumerate(gradient.placements) if not placement.is_replicate()]
    return gradient.to_local(), tuple(gradient.device_mesh.get_group(i) for i in spread)
