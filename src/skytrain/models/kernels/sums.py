"""Sums over the rows of a matrix in float32, for bias gradients and for the partial sums of other kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from .backend import Launch, has_triton, kernels_available, programs

SUMS = Launch(tile=64, warps=4, per_multiprocessor=16)
WIDE, NARROW = 128, 16  # columns per program: for large matrices, and for a few hundred rows

if has_triton():
    import triton
    import triton.language as tl

    @triton.jit
    def _sum_rows(x_ptr, out_ptr, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
        """Sum a strip of columns over every n-th tile of rows in each program."""
        column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
        for start in range(tl.program_id(1) * ROWS, rows, tl.num_programs(1) * ROWS):
            row = start + tl.arange(0, ROWS)
            inside = (row < rows)[:, None] & (column < columns)[None, :]
            at = row[:, None].to(tl.int64) * columns + column[None, :]
            total += tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(out_ptr + tl.program_id(1) * columns + column, tl.sum(total, axis=0), mask=column < columns)


def sum_partial(partial_pm: Tensor) -> Tensor:
    """Return the sum of a few hundred contiguous rows, a shape for which torch's reduction does not fill the GPU."""
    rows, columns = len(partial_pm), partial_pm[0].numel()
    out = torch.empty(partial_pm.shape[1:], dtype=torch.float32, device=partial_pm.device)
    grid = (triton.cdiv(columns, NARROW), 1)
    _sum_rows[grid](partial_pm, out, rows, columns, ROWS=SUMS.tile, COLUMNS=NARROW, num_warps=SUMS.warps)
    return out


def sum_rows(x_nm: Tensor) -> Tensor:
    """Return the sum over the rows of a contiguous matrix, in float32."""
    if not kernels_available(x_nm.device):
        return x_nm.sum(0, dtype=torch.float32)
    rows, columns = x_nm.shape
    strips = triton.cdiv(columns, WIDE)
    parts = max(1, programs(x_nm.device, SUMS.per_multiprocessor) // strips)
    partial = torch.empty(parts, columns, dtype=torch.float32, device=x_nm.device)
    _sum_rows[(strips, parts)](x_nm, partial, rows, columns, ROWS=SUMS.tile, COLUMNS=WIDE, num_warps=SUMS.warps)
    return sum_partial(partial)
