"""Gradient clipping by the norm of all gradients, for any mix of placements and over all pipeline stages."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


@torch.no_grad()
def clip_gradients(
    parameters: Iterable[nn.Parameter],
    limit: float,
    *,
    stage_ranks: int,
    repeated: frozenset[nn.Parameter] = frozenset(),
) -> Tensor:
    """Scale gradients so that their norm is at most `limit`, and return the norm before scaling.

    torch's own function refuses a mix of plain tensors and DTensors of different meshes. `stage_ranks` share a stage
    of the pipeline, or the whole model. `repeated` parameters are copies whose original is counted elsewhere: scaled,
    but not counted.
    """
    local: list[Tensor] = []
    counted: dict[int, list[Tensor]] = {}  # by the number of ranks that hold the same part
    for parameter in parameters:
        if parameter.grad is None:
            continue
        part, pieces = local_part(parameter.grad)
        local.append(part)
        if parameter not in repeated:
            counted.setdefault(stage_ranks // pieces, []).append(part)
    total = torch.zeros((), dtype=torch.float32, device=local[0].device)
    for holders, parts in counted.items():
        total += torch.stack(torch._foreach_norm(parts)).float().square().sum() / holders
    # One sum over all ranks, so that every rank has the same bits. Sums of replicated tensors may differ between ranks
    # in the last bit, which depends on memory alignment, and weights that must stay equal would then differ.
    dist.all_reduce(total)
    norm = total.sqrt()
    if math.isfinite(limit):
        torch._foreach_mul_(local, (limit / (norm + 1e-6)).clamp(max=1.0))
    return norm


def local_part(gradient: Tensor) -> tuple[Tensor, int]:
    """Return this rank's part of a tensor, and into how many parts it is sharded."""
    if not isinstance(gradient, DTensor):
        return gradient, 1
    assert not any(placement.is_partial() for placement in gradient.placements), "gradients are reduced before clipping"
    mesh = gradient.device_mesh
    cut = [mesh.size(axis) for axis, placement in enumerate(gradient.placements) if not placement.is_replicate()]
    return gradient.to_local(), math.prod(cut)
