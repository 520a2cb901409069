"""Fused bias and tanh-GELU; the backward pass computes the bias gradient in the same kernel."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .backend import Launch, has_triton, kernels_available, programs
from .sums import sum_partial

FORWARD = Launch(tile=2048, warps=4)
BACKWARD = Launch(tile=32, warps=4, per_multiprocessor=16, stages=3)
STRIP = 128  # columns per program in the backward pass

if has_triton():
    import triton
    import triton.language as tl

    @triton.jit
    def _tanh(x):
        # tanh from the GPU's exp; exact at both extremes, where exp overflows or underflows.
        return 1.0 - 2.0 / (tl.exp2(2.8853900817779268 * x) + 1.0)

    @triton.jit
    def _gelu_forward(x_ptr, bias_ptr, y_ptr, count, columns, BLOCK: tl.constexpr):
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = at < count
        x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32) + tl.load(bias_ptr + at % columns).to(tl.float32)
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        tl.store(y_ptr + at, 0.5 * x * (1.0 + _tanh(inner)), mask=inside)

    @triton.jit
    def _gelu_backward(
        dy_ptr,
        x_ptr,
        bias_ptr,
        dx_ptr,
        partial_ptr,
        rows,
        columns,
        ROWS: tl.constexpr,
        COLUMNS: tl.constexpr,
        STAGES: tl.constexpr,
    ):
        """Handle a strip of columns and every n-th tile of rows in each program, which sums its columns in registers."""
        column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        column_inside = column < columns
        bias = tl.load(bias_ptr + column, mask=column_inside, other=0.0).to(tl.float32)
        total = tl.zeros((COLUMNS,), dtype=tl.float32)
        for start in tl.range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS, num_stages=STAGES):
            row = start + tl.arange(0, ROWS)
            at = row[:, None].to(tl.int64) * columns + column[None, :]
            inside = (row < rows)[:, None] & column_inside[None, :]
            dy = tl.load(dy_ptr + at, mask=inside, other=0.0).to(tl.float32)
            x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32) + bias[None, :]
            t = _tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))
            slope = 0.7978845608028654 * (1.0 + 0.134145 * x * x)
            dx = dy * (0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope)
            tl.store(dx_ptr + at, dx, mask=inside)
            total += tl.sum(tl.where(inside, dx, 0.0), axis=0)
        tl.store(partial_ptr + tl.program_id(0) * columns + column, total, mask=column_inside)


def reference(x_nf: Tensor, bias_f: Tensor) -> Tensor:
    """Compute the reference in plain torch."""
    return F.gelu(x_nf.float() + bias_f.float(), approximate="tanh").to(x_nf.dtype)


class BiasGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_nf: Tensor, bias_f: Tensor) -> Tensor:
        ctx.save_for_backward(x_nf, bias_f)
        y_nf = torch.empty_like(x_nf)
        count, columns = x_nf.numel(), x_nf.shape[1]
        grid = (triton.cdiv(count, FORWARD.tile),)
        _gelu_forward[grid](x_nf, bias_f, y_nf, count, columns, BLOCK=FORWARD.tile, num_warps=FORWARD.warps)
        return y_nf

    @staticmethod
    def backward(ctx: Any, dy_nf: Tensor) -> tuple[Tensor, Tensor]:
        x_nf, bias_f = ctx.saved_tensors
        rows, columns = x_nf.shape
        strips = triton.cdiv(columns, STRIP)
        row_programs = max(1, programs(x_nf.device, BACKWARD.per_multiprocessor) // strips)
        dx_nf = torch.empty_like(x_nf)
        partial = torch.empty(row_programs, columns, dtype=torch.float32, device=x_nf.device)
        _gelu_backward[(row_programs, strips)](
            dy_nf.contiguous(), x_nf, bias_f, dx_nf, partial, rows, columns,
            ROWS=BACKWARD.tile, COLUMNS=STRIP, STAGES=BACKWARD.stages, num_warps=BACKWARD.warps,
        )  # fmt: skip
        return dx_nf, sum_partial(partial).to(bias_f.dtype)


def bias_gelu(x_nf: Tensor, bias_f: Tensor) -> Tensor:
    """Return gelu(x + bias), rounded only once."""
    if kernels_available(x_nf.device):
        return BiasGelu.apply(x_nf, bias_f)
    return reference(x_nf, bias_f)
