"""Fused residual addition, bias and LayerNorm: x' = x + (branch + bias), y = norm(x').

The bias of the branch's last linear layer is added here, because the backward kernel already reads the gradient that
has to be summed for it: the gradients of the three vectors (bias, gain, shift) need no extra read.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .backend import Launch, has_triton, kernels_available, programs
from .sums import sum_partial

FORWARD = Launch(tile=4, warps=4)
BACKWARD = Launch(tile=8, warps=4, per_multiprocessor=4, stages=2)

if has_triton():
    import triton
    import triton.language as tl

    @triton.jit
    def _norm_forward(
        x_ptr,
        branch_ptr,
        bias_ptr,
        gain_ptr,
        shift_ptr,
        sum_ptr,
        y_ptr,
        mean_ptr,
        rstd_ptr,
        rows,
        width,
        eps,
        ADD: tl.constexpr,
        ROWS: tl.constexpr,
        WIDTH: tl.constexpr,
    ):
        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        column = tl.arange(0, WIDTH)
        at = row[:, None].to(tl.int64) * width + column[None, :]
        column_inside = column < width
        inside = (row < rows)[:, None] & column_inside[None, :]
        x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
        if ADD:
            bias = tl.load(bias_ptr + column, mask=column_inside, other=0.0).to(tl.float32)
            x += tl.load(branch_ptr + at, mask=inside, other=0.0).to(tl.float32) + bias[None, :]
            rounded = x.to(sum_ptr.dtype.element_ty)
            tl.store(sum_ptr + at, rounded, mask=inside)
            x = rounded.to(tl.float32)  # normalize the rounded values, which are what later layers read
        mean = tl.sum(x, axis=1) / width
        centred = tl.where(inside, x - mean[:, None], 0.0)
        rstd = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=1) / width + eps)
        gain = tl.load(gain_ptr + column, mask=column_inside, other=0.0).to(tl.float32)
        shift = tl.load(shift_ptr + column, mask=column_inside, other=0.0).to(tl.float32)
        tl.store(y_ptr + at, centred * rstd[:, None] * gain[None, :] + shift[None, :], mask=inside)
        tl.store(mean_ptr + row, mean, mask=row < rows)
        tl.store(rstd_ptr + row, rstd, mask=row < rows)

    @triton.jit
    def _norm_backward(
        dy_ptr,
        dsum_ptr,
        x_ptr,
        gain_ptr,
        mean_ptr,
        rstd_ptr,
        dx_ptr,
        dbranch_ptr,
        partial_ptr,
        rows,
        width,
        PASS: tl.constexpr,
        TWICE: tl.constexpr,
        ROWS: tl.constexpr,
        WIDTH: tl.constexpr,
        STAGES: tl.constexpr,
    ):
        """Handle every n-th tile of rows in each program, which sums the gradients of the three vectors in registers."""
        column = tl.arange(0, WIDTH)
        column_inside = column < width
        gain = tl.load(gain_ptr + column, mask=column_inside, other=0.0).to(tl.float32)
        dgain = tl.zeros((WIDTH,), dtype=tl.float32)
        dshift = tl.zeros((WIDTH,), dtype=tl.float32)
        dbias = tl.zeros((WIDTH,), dtype=tl.float32)
        for start in tl.range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS, num_stages=STAGES):
            row = start + tl.arange(0, ROWS)
            at = row[:, None].to(tl.int64) * width + column[None, :]
            inside = (row < rows)[:, None] & column_inside[None, :]
            mean = tl.load(mean_ptr + row, mask=row < rows, other=0.0)
            rstd = tl.load(rstd_ptr + row, mask=row < rows, other=0.0)
            dy = tl.load(dy_ptr + at, mask=inside, other=0.0).to(tl.float32)
            x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
            normal = tl.where(inside, (x - mean[:, None]) * rstd[:, None], 0.0)
            dnormal = dy * gain[None, :]
            along = tl.sum(dnormal * normal, axis=1) / width
            level = tl.sum(dnormal, axis=1) / width
            dx = (dnormal - level[:, None] - normal * along[:, None]) * rstd[:, None]
            if PASS:
                dx += tl.load(dsum_ptr + at, mask=inside, other=0.0).to(tl.float32)
            tl.store(dx_ptr + at, dx, mask=inside)
            if TWICE:
                tl.store(dbranch_ptr + at, dx, mask=inside)
            dgain += tl.sum(dy * normal, axis=0)
            dshift += tl.sum(dy, axis=0)
            dbias += tl.sum(tl.where(inside, dx, 0.0), axis=0)
        base = partial_ptr + tl.program_id(0) * 3 * width + column
        tl.store(base, dgain, mask=column_inside)
        tl.store(base + width, dshift, mask=column_inside)
        tl.store(base + 2 * width, dbias, mask=column_inside)


def reference(
    x_nd: Tensor,
    branch_nd: Tensor | None,
    bias_d: Tensor | None,
    gain_d: Tensor,
    shift_d: Tensor,
    eps: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Compute the reference in plain torch."""
    if branch_nd is not None and bias_d is not None:
        x_nd = (x_nd.float() + (branch_nd.float() + bias_d.float())).to(x_nd.dtype)
    y_nd = F.layer_norm(x_nd.float(), gain_d.shape, gain_d.float(), shift_d.float(), eps)
    return x_nd, y_nd.to(dtype)


class AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_nd: Tensor,
        branch_nd: Tensor | None,
        bias_d: Tensor | None,
        gain_d: Tensor,
        shift_d: Tensor,
        eps: float,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        rows, width = x_nd.shape
        adds = branch_nd is not None
        sum_nd = torch.empty_like(x_nd) if adds else x_nd
        y_nd = torch.empty_like(x_nd, dtype=dtype)
        mean, rstd = torch.empty(2, rows, dtype=torch.float32, device=x_nd.device)
        _norm_forward[(triton.cdiv(rows, FORWARD.tile),)](
            x_nd, branch_nd if adds else x_nd, bias_d if adds else gain_d, gain_d, shift_d, sum_nd, y_nd, mean, rstd, rows, width, eps,
            ADD=adds, ROWS=FORWARD.tile, WIDTH=triton.next_power_of_2(width), num_warps=FORWARD.warps,
        )  # fmt: skip
        ctx.save_for_backward(sum_nd, gain_d, mean, rstd)
        ctx.adds, ctx.dtypes, ctx.branch_dtype = adds, (gain_d.dtype, shift_d.dtype), dtype
        ctx.set_materialize_grads(False)
        return sum_nd if adds else x_nd.view_as(x_nd), y_nd

    @staticmethod
    def backward(ctx: Any, dsum_nd: Tensor | None, dy_nd: Tensor) -> tuple[Any, ...]:
        sum_nd, gain_d, mean, rstd = ctx.saved_tensors
        rows, width = sum_nd.shape
        count = programs(sum_nd.device, BACKWARD.per_multiprocessor)
        dx_nd = torch.empty_like(sum_nd)
        partial = torch.empty(count, 3, width, dtype=torch.float32, device=sum_nd.device)
        # A float32 residual stream has a float32 gradient; the branch is in lower precision, and so is its gradient.
        dbranch_nd = dx_nd if ctx.branch_dtype == dx_nd.dtype else torch.empty_like(dx_nd, dtype=ctx.branch_dtype)
        passes = dsum_nd is not None
        _norm_backward[(count,)](
            dy_nd.contiguous(), dsum_nd.contiguous() if dsum_nd is not None else dy_nd, sum_nd, gain_d, mean, rstd, dx_nd, dbranch_nd, partial, rows, width,
            PASS=passes, TWICE=dbranch_nd is not dx_nd, ROWS=BACKWARD.tile, WIDTH=triton.next_power_of_2(width), STAGES=BACKWARD.stages, num_warps=BACKWARD.warps,
        )  # fmt: skip
        dgain, dshift, dbias = sum_partial(partial)
        vectors = (dgain.to(ctx.dtypes[0]), dshift.to(ctx.dtypes[1]), None, None)
        if ctx.adds:
            return dx_nd, dbranch_nd, dbias, *vectors
        return dx_nd, None, None, *vectors


def add_norm(
    x_nd: Tensor,
    branch_nd: Tensor | None,
    bias_d: Tensor | None,
    gain_d: Tensor,
    shift_d: Tensor,
    eps: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Return the new residual stream, in the precision of x, and its norm in `dtype`, the precision of the branch.

    Without a branch the residual stream is unchanged.
    """
    if kernels_available(x_nd.device):
        return AddNorm.apply(x_nd, branch_nd, bias_d, gain_d, shift_d, eps, dtype)
    return reference(x_nd, branch_nd, bias_d, gain_d, shift_d, eps, dtype)
