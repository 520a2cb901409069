"""Context parallelism: each rank of a group holds a part of every sequence, and attention reaches across them.

With the ring and with all-gather a sequence is split into twice as many pieces as ranks, and rank r holds the r-th and the
r-th from the end. Causal attention then costs every rank the same; with one piece each, the last rank would do most of the
work. For the pieces of two ranks, rows of queries and columns of keys, this is computed:

    keys of     the rank itself     an earlier rank         a later rank
                [x . ]              [x . ]  all queries,    [. . ]  second half of the queries,
                [x x ]              [x . ]  first half      [x x ]  all keys
                as if one sequence          of the keys

Ulysses exchanges heads for sequence instead: a rank attends with some of the heads over whole sequences, which is always
balanced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from ..models import TokenPositions, count_targets, nothing_kept, weighted
from .attention_parts import (
    AttentionPart,
    AttentionSettings,
    Together,
    attend_part,
    attend_part_backward,
    choose_kernel,
)

# torch 2.13 renamed them, and warns about the old names.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

PIECES = {"allgather": 2, "ring": 2, "ulysses": 1}  # of a sequence on each rank


@dataclass(frozen=True)
class Context:
    """The ranks that share sequences, and the part of this one."""

    group: dist.ProcessGroup
    method: str
    positions: TokenPositions

    @property
    def rank(self) -> int:
        return self.group.rank()

    @property
    def size(self) -> int:
        return self.group.size()

    def loss(self, compute: Callable[[Tensor], Tensor], targets_bt: Tensor) -> Tensor:
        """Return the loss of this rank's targets, scaled so that its mean over the ranks is the mean over all targets.

        Ranks may have different numbers of targets that count, or none.
        """
        part = self.positions.cut(targets_bt)
        mine, everyone = count_targets(part), count_targets(targets_bt)
        return weighted(compute(part), mine * self.size / everyone.clamp(min=1), part)


def join_context(mesh: DeviceMesh, size: int, method: str, length: int) -> Context:
    """Group `size` neighbours along the mesh's shard dimension, which share sequences of `length` tokens."""
    axis = (mesh.mesh_dim_names or ()).index("shard")
    mine = None
    # Every process must create every group, in the same order.
    for members in mesh.mesh.movedim(axis, -1).reshape(-1, size).tolist():
        group = dist.new_group(members)
        if dist.get_rank() in members:
            mine = group
    assert mine is not None
    return Context(mine, method, positions_of(method, length, mine.rank(), size))


def positions_of(method: str, length: int, rank: int, size: int) -> TokenPositions:
    pieces = PIECES[method] * size
    each = length // pieces
    mine = [rank] if PIECES[method] == 1 else [rank, pieces - 1 - rank]
    return TokenPositions(length, tuple(range(i * each, (i + 1) * each) for i in mine))


def attend_across(
    alone: Callable[..., Tensor], q_bhtq: Tensor, k_bgtq: Tensor, v_bgtq: Tensor, context: Context, scale: float
) -> Tensor:
    """Attend from this rank's queries to the keys of whole sequences; `alone` is attention on one rank."""
    if context.method == "ulysses":
        return _exchange_heads(alone, q_bhtq, k_bgtq, v_bgtq, context.group)
    function = RingAttention if context.method == "ring" else GatherAttention
    with nothing_kept():
        return function.apply(q_bhtq, k_bgtq, v_bgtq, context.group, scale)


def rows_and_keys(rank: int, source: int, length: int) -> tuple[slice, slice]:
    """Return which of a rank's queries attend to which of another rank's keys; each rank holds `length` of both."""
    half = length // 2
    whole = slice(0, length)
    return (whole, slice(0, half)) if source < rank else (slice(half, length), whole)


class RingAttention(torch.autograd.Function):
    """Attention that passes keys and values from rank to rank, while the previous ones are attended to.

    No rank holds more than two ranks' keys at a time. In the backward pass they are passed again, followed by their gradients.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, group: dist.ProcessGroup, scale: float) -> Tensor:
        return _forward(ctx, q, k, v, _around(torch.stack((k, v)), group), group, scale)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Any, ...]:
        (q, k, v), whole = _saved(ctx)
        group: dist.ProcessGroup = ctx.group
        pieces = _around(torch.stack((k, v)), group)
        _, kv = next(pieces)
        dq, dkv = (x.float() for x in attend_part_backward(dout, q, kv, whole, ctx.settings, causal=True))
        for source, kv in pieces:
            following = _Hop(dkv, group, tag=1)
            keys, dkv_part = _piece_backward(ctx, dq, dout, q, source, kv, whole)
            dkv = following.arrived()
            dkv[..., keys, :] += dkv_part
        dk, dv = _Hop(dkv, group, tag=1).arrived().to(q.dtype)  # back at their own rank
        return dq.to(q.dtype), dk, dv, None, None


class GatherAttention(torch.autograd.Function):
    """Attention that gathers all keys and values of a layer on every rank, in the forward and the backward pass.

    There are fewer and larger messages than with the ring, and whole sequences of keys and values in memory.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, group: dist.ProcessGroup, scale: float) -> Tensor:
        return _forward(ctx, q, k, v, _gathered(torch.stack((k, v)), group), group, scale)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Any, ...]:
        (q, k, v), whole = _saved(ctx)
        group: dist.ProcessGroup = ctx.group
        pieces = _gathered(torch.stack((k, v)), group)
        own, kv = next(pieces)
        dq, dkv = attend_part_backward(dout, q, kv, whole, ctx.settings, causal=True)
        dq, everyone = dq.float(), torch.zeros(group.size(), *kv.shape, dtype=torch.float32, device=q.device)
        everyone[own] = dkv
        for source, kv in pieces:
            keys, dkv = _piece_backward(ctx, dq, dout, q, source, kv, whole)
            everyone[source][..., keys, :] = dkv
        mine = torch.empty_like(everyone[0])
        _reduce_scatter(mine, everyone.flatten(0, 1), group=group)
        dk, dv = mine.to(q.dtype)
        return dq.to(q.dtype), dk, dv, None, None


Pieces = Iterator[tuple[int, Tensor]]  # the rank they belong to, and its keys and values; this rank's own first


def _around(kv: Tensor, group: dist.ProcessGroup) -> Pieces:
    rank = group.rank()
    size = group.size()
    for step in range(size):
        coming = _Hop(kv, group, tag=0) if step + 1 < size else None
        yield (rank - step) % size, kv
        if coming is not None:
            kv = coming.arrived()


def _gathered(kv: Tensor, group: dist.ProcessGroup) -> Pieces:
    rank = group.rank()
    size = group.size()
    everyone = kv.new_empty(size, *kv.shape)
    coming = _all_gather(everyone.flatten(0, 1), kv, group=group, async_op=True)
    yield rank, kv
    coming.wait()
    for step in range(1, size):
        source = (rank - step) % size
        yield source, everyone[source]


def _forward(
    ctx: Any, q: Tensor, k: Tensor, v: Tensor, pieces: Pieces, group: dist.ProcessGroup, scale: float
) -> Tensor:
    ctx.group, ctx.settings = group, AttentionSettings(scale, choose_kernel(q))
    _, kv = next(pieces)
    found = Together(attend_part(q, kv, ctx.settings, causal=True))
    for source, kv in pieces:
        rows, keys = rows_and_keys(group.rank(), source, q.size(2))
        found.add(rows, attend_part(q[:, :, rows], kv[..., keys, :], ctx.settings, causal=False))
    whole = found.part()
    # The inputs themselves, not the stacked copy of keys and values, which would take more memory.
    ctx.save_for_backward(q, k, v, whole.out_bhtq, whole.log_sum_bht, *whole.rest)
    return whole.out_bhtq


def _piece_backward(
    ctx: Any, dq: Tensor, dout: Tensor, q: Tensor, source: int, kv: Tensor, whole: AttentionPart
) -> tuple[slice, Tensor]:
    """Add the part of rank `source`'s keys and values to `dq`; return which were used, and their gradients."""
    rows, keys = rows_and_keys(ctx.group.rank(), source, q.size(2))
    seen = AttentionPart(whole.out_bhtq[:, :, rows], whole.log_sum_bht[:, :, rows], whole.rest)
    dq_part, dkv_part = attend_part_backward(
        dout[:, :, rows], q[:, :, rows], kv[..., keys, :], seen, ctx.settings, causal=False
    )
    dq[:, :, rows] += dq_part
    return keys, dkv_part


def _saved(ctx: Any) -> tuple[tuple[Tensor, Tensor, Tensor], AttentionPart]:
    q, k, v, out, log_sum, *rest = ctx.saved_tensors
    return (q, k, v), AttentionPart(out, log_sum, tuple(rest))


class _Hop:
    """An exchange that sends a tensor to the next rank while it receives the previous rank's."""

    def __init__(self, sent: Tensor, group: dist.ProcessGroup, tag: int) -> None:
        rank = group.rank()
        size = group.size()
        to, source = (dist.get_global_rank(group, (rank + i) % size) for i in (1, -1))
        # both are kept until the exchange ends
        self._sent = sent
        self._received = torch.empty_like(sent)
        self._works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, sent, to, group, tag),
                dist.P2POp(dist.irecv, self._received, source, group, tag),
            ]
        )

    def arrived(self) -> Tensor:
        for work in self._works:
            work.wait()
        return self._received


def _exchange_heads(
    attend: Callable[..., Tensor], q_bhtq: Tensor, k_bgtq: Tensor, v_bgtq: Tensor, group: dist.ProcessGroup
) -> Tensor:
    """Call `attend` over whole sequences with a share of the heads."""
    size = group.size()
    # With fewer key-value groups than ranks, each is copied to the ranks that have its queries.
    copies = size // math.gcd(k_bgtq.size(1), size)
    k_bgtq, v_bgtq = (x.repeat_interleave(copies, dim=1) if copies > 1 else x for x in (k_bgtq, v_bgtq))
    dealt = [x.unflatten(1, (size, -1)).movedim(1, 0) for x in (q_bhtq, k_bgtq, v_bgtq)]
    heads = [x.size(2) for x in dealt]
    whole = _AllToAll.apply(torch.cat(dealt, dim=2), group).movedim(0, 2).flatten(2, 3)
    y_bhtq = attend(*whole.split(heads, dim=1))
    parts = y_bhtq.unflatten(2, (size, -1)).movedim(2, 0).contiguous()
    return _AllToAll.apply(parts, group).movedim(0, 1).flatten(1, 2)


class _AllToAll(torch.autograd.Function):
    """An exchange that sends the i-th slice to rank i, and receives the i-th slice from it."""

    @staticmethod
    def forward(ctx: Any, x_n: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        received = torch.empty_like(x_n)
        dist.all_to_all_single(received, x_n, group=group)
        return received

    @staticmethod
    def backward(ctx: Any, grad_n: Tensor) -> tuple[Any, ...]:
        received = torch.empty_like(grad_n, memory_format=torch.contiguous_format)
        dist.all_to_all_single(received, grad_n.contiguous(), group=ctx.group)
        return received, None
