"""Token and learned position embeddings, looked up and added in one pass, with gradients in float32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .backend import Launch, has_triton, kernels_available

LOOKUP = Launch(tile=1, warps=2)

if has_triton():
    import triton
    import triton.language as tl

    @triton.jit
    def _lookup(
        tokens_ptr,
        places_ptr,
        table_ptr,
        positions_ptr,
        out_ptr,
        length,
        width,
        PLACED: tl.constexpr,
        ADD: tl.constexpr,
        WIDTH: tl.constexpr,
    ):
        row = tl.program_id(0).to(tl.int64)
        column = tl.arange(0, WIDTH)
        inside = column < width
        token = tl.load(tokens_ptr + row)
        x = tl.load(table_ptr + token * width + column, mask=inside, other=0.0).to(tl.float32)
        if ADD:
            place = tl.load(places_ptr + row) if PLACED else row % length
            x += tl.load(positions_ptr + place * width + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(out_ptr + row * width + column, x, mask=inside)

    @triton.jit
    def _scatter(tokens_ptr, dout_ptr, dtable_ptr, width, WIDTH: tl.constexpr):
        row = tl.program_id(0).to(tl.int64)
        column = tl.arange(0, WIDTH)
        inside = column < width
        token = tl.load(tokens_ptr + row)
        dx = tl.load(dout_ptr + row * width + column, mask=inside, other=0.0).to(tl.float32)
        tl.atomic_add(dtable_ptr + token * width + column, dx, mask=inside, sem="relaxed")


def reference(
    tokens_bt: Tensor,
    table_vd: Tensor,
    positions_td: Tensor | None,
    dtype: torch.dtype,
    places_bt: Tensor | None = None,
) -> Tensor:
    """Compute the reference in plain torch."""
    if positions_td is None:
        return table_vd[tokens_bt].to(dtype).flatten(0, 1)
    places = positions_td[: tokens_bt.shape[1]] if places_bt is None else positions_td[places_bt]
    return (table_vd[tokens_bt] + places).to(dtype).flatten(0, 1)


class Lookup(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        tokens_bt: Tensor,
        table_vd: Tensor,
        positions_td: Tensor | None,
        dtype: torch.dtype,
        places_bt: Tensor | None,
    ) -> Tensor:
        rows, width = tokens_bt.numel(), table_vd.shape[1]
        tokens = tokens_bt.contiguous()
        places = None if places_bt is None else places_bt.contiguous()
        out = torch.empty(rows, width, dtype=dtype, device=table_vd.device)
        _lookup[(rows,)](
            tokens,
            tokens if places is None else places,
            table_vd,
            table_vd if positions_td is None else positions_td,
            out,
            tokens.shape[1],
            width,
            PLACED=places is not None,
            ADD=positions_td is not None,
            WIDTH=triton.next_power_of_2(width),
            num_warps=LOOKUP.warps,
        )
        ctx.save_for_backward(tokens, *([] if places is None else [places]))
        ctx.sizes = (table_vd.shape[0], None if positions_td is None else positions_td.shape[0])
        return out

    @staticmethod
    def backward(ctx: Any, dout_nd: Tensor) -> tuple[Any, ...]:
        tokens, *places = ctx.saved_tensors
        vocab, length = ctx.sizes
        dout_nd = dout_nd.contiguous()
        dpositions: Tensor | None = None
        if length is not None and places:
            dpositions = table_gradient(places[0], dout_nd, length)
        elif length is not None:
            dpositions = torch.zeros(length, dout_nd.shape[1], dtype=torch.float32, device=dout_nd.device)
            torch.sum(dout_nd.view(*tokens.shape, -1), 0, dtype=torch.float32, out=dpositions[: tokens.shape[1]])
        return None, table_gradient(tokens, dout_nd, vocab), dpositions, None, None


def table_gradient(tokens_bt: Tensor, dout_nd: Tensor, rows: int) -> Tensor:
    if torch.are_deterministic_algorithms_enabled():  # the order of atomic additions is not deterministic
        wide = dout_nd.view(*tokens_bt.shape, -1).float()
        return torch.ops.aten.embedding_dense_backward(wide, tokens_bt, rows, -1, False)
    table = torch.zeros(rows, dout_nd.shape[1], dtype=torch.float32, device=dout_nd.device)
    scatter_rows(tokens_bt, dout_nd, table)
    return table


def scatter_rows(tokens: Tensor, dout_nd: Tensor, dtable_vd: Tensor) -> None:
    """Add each gradient row to the table row of its token.

    The tokens are not sorted: on a GPU atomic additions are as fast as plain ones unless many rows share a token.
    """
    rows, width = dout_nd.shape
    _scatter[(rows,)](tokens, dout_nd, dtable_vd, width, WIDTH=triton.next_power_of_2(width), num_warps=LOOKUP.warps)


def lookup(
    tokens_bt: Tensor,
    table_vd: Tensor,
    positions_td: Tensor | None,
    dtype: torch.dtype,
    places_bt: Tensor | None = None,
) -> Tensor:
    """Return token plus position embeddings, (B*T, D) in `dtype`; without a table of positions, only those of tokens.

    Positions are those in `places_bt` if given, otherwise 0 to T-1.
    """
    if kernels_available(table_vd.device):
        return Lookup.apply(tokens_bt, table_vd, positions_td, dtype, places_bt)
    return reference(tokens_bt, table_vd, positions_td, dtype, places_bt)
