"""Mixtures of experts on a mesh: experts on different ranks, and loads that are counted over whole sequences.

With expert parallelism each rank of a group holds some of the experts of every layer. A layer's rows, sorted by expert, are
then sorted by rank as well: ranks tell each other how many rows come, exchange them, compute, and send the results back. In an
expert the rows of the first rank come first, each rank's in the order of its tokens, so that their order is fixed.

Expert ranks are neighbours among those that shard the state. What experts of one group hold is sharded further over the other
ranks; all other weights are sharded as without expert parallelism.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement, Replicate, Shard

from ..models import Experts, MixtureOfExperts, Permute, Router
from .tensor import hold_locally


def expert_mesh(mesh: DeviceMesh, expert: int) -> DeviceMesh:
    """Return the mesh with its shard dimension cut in two: `expert` neighbours, and the groups of them."""
    groups = mesh["shard"].size() // expert
    return mesh._unflatten("shard", (groups, expert), ("expert_shard", "expert"))


def spread_experts(part: nn.Module, mesh: DeviceMesh) -> None:
    """Give each rank of the mesh's expert dimension its experts, and let layers reach those of the others.

    Tensor-parallel ranks hold the same experts, for different parts of the sequence.
    """
    tensor = mesh["tensor"].size() > 1
    over = mesh["expert", "tensor"] if tensor else mesh["expert"]
    group = mesh["expert"].get_group()
    for module in part.modules():
        if isinstance(module, MixtureOfExperts):
            placements: list[Placement] = [Shard(0), *([Replicate()] if tensor else [])]
            hold_locally(module.experts, over, placements)
            module.run_experts = _run_across(module.experts, group)  # type: ignore[method-assign, assignment]


def replicate_mixtures(part: nn.Module, mesh: DeviceMesh) -> None:
    """Let tensor-parallel ranks run whole mixtures on their parts of the sequence; gradients are summed over them.

    Experts that `spread_experts` has distributed already stay as they are.
    """
    for module in part.modules():
        if isinstance(module, MixtureOfExperts):
            hold_locally(module, mesh, [Replicate()])


def _run_across(experts: Experts, group: dist.ProcessGroup) -> Callable[[Tensor, Tensor], Tensor]:
    ranks = group.size()

    # How many rows there are is only known on the host: outside compiled code.
    @torch.compiler.disable
    def run(rows_rd: Tensor, load_e: Tensor) -> Tensor:
        sent_re = load_e.view(ranks, -1)
        received_re = torch.empty_like(sent_re)
        dist.all_to_all_single(received_re, sent_re.contiguous(), group=group)
        sent, received = sent_re.sum(1).tolist(), received_re.sum(1).tolist()
        rows_rd = RowExchange.apply(rows_rd, sent, received, group)
        # They come by rank and then by expert; experts want them by expert and then by rank.
        numbers = torch.arange(received_re.size(1), device=rows_rd.device).repeat(ranks)
        order_r = numbers.repeat_interleave(received_re.flatten()).argsort(stable=True)
        back_r = order_r.argsort()
        out_rd = experts(Permute.apply(rows_rd, order_r, back_r), received_re.sum(0))
        returned: Tensor = RowExchange.apply(Permute.apply(out_rd, back_r, order_r), received, sent, group)
        return returned

    return run


class RowExchange(torch.autograd.Function):
    """Send so many rows to each rank, and receive so many from each; gradients take the way back."""

    @staticmethod
    def forward(ctx: Any, rows_rd: Tensor, send: list[int], receive: list[int], group: Any) -> Tensor:
        ctx.send, ctx.receive, ctx.group = send, receive, group
        return _exchange(rows_rd, send, receive, group)

    @staticmethod
    def backward(ctx: Any, grad_rd: Tensor) -> tuple[Tensor, None, None, None]:
        return _exchange(grad_rd, ctx.receive, ctx.send, ctx.group), None, None, None


def _exchange(rows_rd: Tensor, send: list[int], receive: list[int], group: Any) -> Tensor:
    found = rows_rd.new_empty(sum(receive), rows_rd.size(1))
    dist.all_to_all_single(found, rows_rd.contiguous(), receive, send, group=group)
    return found


def count_over(part: nn.Module, groups: Sequence[dist.ProcessGroup]) -> None:
    """Let routers count loads of whole sequences, of which the ranks of these groups hold parts."""

    @torch.compiler.disable
    def sum_load(load_be: Tensor) -> Tensor:
        whole = load_be.clone()
        for group in groups:
            dist.all_reduce(whole, group=group)
        return whole

    for module in part.modules():
        if isinstance(module, Router):
            module.sum_load = sum_load  # type: ignore[method-assign]
