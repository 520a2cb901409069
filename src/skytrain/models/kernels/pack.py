"""Pack the gradients of queries, keys and values for the next product, and sum the bias gradient in the same pass."""

from __future__ import annotations

import torch
from torch import Tensor

from .backend import Launch, has_triton, kernels_available, programs
from .sums import sum_partial

PACK = Launch(tile=128, warps=4, per_multiprocessor=32)

if has_triton():
    import triton
    import triton.language as tl

    @triton.jit
    def _pack(
        dq_ptr,
        dk_ptr,
        dv_ptr,
        out_ptr,
        partial_ptr,
        rows,
        heads,
        q_stride,
        k_stride,
        v_stride,
        SIZE: tl.constexpr,
        ROWS: tl.constexpr,
    ):
        """Handle the query, key or value of one head and every n-th tile of rows in each program.

        Inputs have shape (rows, heads, SIZE), with a row stride.
        """
        head, part = tl.program_id(1) // 3, tl.program_id(1) % 3
        column = tl.arange(0, SIZE)
        total = tl.zeros((SIZE,), dtype=tl.float32)
        for start in range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS):
            row = start + tl.arange(0, ROWS)
            inside = (row < rows)[:, None] & (column < SIZE)[None, :]
            along = (head * SIZE + column)[None, :]
            if part == 0:
                x = tl.load(dq_ptr + row[:, None].to(tl.int64) * q_stride + along, mask=inside, other=0.0)
            elif part == 1:
                x = tl.load(dk_ptr + row[:, None].to(tl.int64) * k_stride + along, mask=inside, other=0.0)
            else:
                x = tl.load(dv_ptr + row[:, None].to(tl.int64) * v_stride + along, mask=inside, other=0.0)
            to = row[:, None].to(tl.int64) * (heads * 3 * SIZE) + ((head * 3 + part) * SIZE + column)[None, :]
            tl.store(out_ptr + to, x, mask=inside)
            total += tl.sum(x.to(tl.float32), axis=0)
        tl.store(partial_ptr + (tl.program_id(0) * heads * 3 + head * 3 + part) * SIZE + column, total)


def reference(dq_bthq: Tensor, dk_bthq: Tensor, dv_bthq: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the reference in plain torch."""
    packed = torch.stack((dq_bthq, dk_bthq, dv_bthq), dim=3).flatten(2).flatten(0, 1)
    return packed, packed.sum(0, dtype=torch.float32)


def pack_qkv(dq_bthq: Tensor, dk_bthq: Tensor, dv_bthq: Tensor) -> tuple[Tensor, Tensor]:
    """Pack three (B, T, H, Q) tensors into (B*T, H*3*Q), and return it with the sum of its rows.

    The query, key and value of a head are adjacent.
    """
    batch, length, heads, size = dq_bthq.shape
    if not kernels_available(dq_bthq.device) or size & (size - 1):
        return reference(dq_bthq, dk_bthq, dv_bthq)
    rows = batch * length
    flat = [x.reshape(rows, heads * size) for x in (dq_bthq, dk_bthq, dv_bthq)]
    out = torch.empty(rows, heads * 3 * size, dtype=dq_bthq.dtype, device=dq_bthq.device)
    row_programs = max(1, programs(out.device, PACK.per_multiprocessor) // (heads * 3))
    partial = torch.empty(row_programs, heads * 3 * size, dtype=torch.float32, device=out.device)
    _pack[(row_programs, heads * 3)](
        *flat, out, partial, rows, heads, *(x.stride(0) for x in flat), SIZE=size, ROWS=PACK.tile, num_warps=PACK.warps
    )
    return out, sum_partial(partial)
