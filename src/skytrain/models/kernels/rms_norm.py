"""Fused residual addition and RMSNorm: x' = x + branch, y = x' / rms(x') * gain, one pass each way."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .backend import Launch, has_triton, kernels_available, programs
from .sums import sum_partial

FORWARD = Launch(tile=1, warps=2)
BACKWARD = Launch(tile=4, warps=8, per_multiprocessor=4, stages=2)
TILE_WIDTH = 1024  # the width for which the tiles were chosen; wider rows take fewer rows and more warps

if has_triton():
    import triton
    import triton.language as tl

    @triton.jit
    def _rms_norm_forward(
        x_ptr,
        branch_ptr,
        gain_ptr,
        sum_ptr,
        y_ptr,
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
            x += tl.load(branch_ptr + at, mask=inside, other=0.0).to(tl.float32)
            rounded = x.to(sum_ptr.dtype.element_ty)
            tl.store(sum_ptr + at, rounded, mask=inside)
            x = rounded.to(tl.float32)  # normalize the rounded values, which are what later layers read
        rstd = 1.0 / tl.sqrt(tl.sum(x * x, axis=1) / width + eps)
        gain = tl.load(gain_ptr + column, mask=column_inside, other=0.0).to(tl.float32)
        tl.store(y_ptr + at, x * rstd[:, None] * gain[None, :], mask=inside)
        tl.store(rstd_ptr + row, rstd, mask=row < rows)

    @triton.jit
    def _rms_norm_backward(
        dy_ptr,
        dsum_ptr,
        x_ptr,
        gain_ptr,
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
        """Handle every n-th tile of rows in each program, which sums the gradient of the gain in registers.

        Rows of a tile are added to each other only once, at the end: in the loop that would synchronize the warps.
        """
        column = tl.arange(0, WIDTH)
        column_inside = column < width
        gain = tl.load(gain_ptr + column, mask=column_inside, other=0.0).to(tl.float32)
        dgain = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
        for start in tl.range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS, num_stages=STAGES):
            row = start + tl.arange(0, ROWS)
            at = row[:, None].to(tl.int64) * width + column[None, :]
            inside = (row < rows)[:, None] & column_inside[None, :]
            rstd = tl.load(rstd_ptr + row, mask=row < rows, other=0.0)
            dy = tl.load(dy_ptr + at, mask=inside, other=0.0).to(tl.float32)
            x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
            normal = x * rstd[:, None]
            dnormal = dy * gain[None, :]
            along = tl.sum(dnormal * normal, axis=1) / width
            dx = (dnormal - normal * along[:, None]) * rstd[:, None]
            if PASS:
                dx += tl.load(dsum_ptr + at, mask=inside, other=0.0).to(tl.float32)
            tl.store(dx_ptr + at, dx, mask=inside)
            if TWICE:
                tl.store(dbranch_ptr + at, dx, mask=inside)
            dgain += dy * normal
        tl.store(partial_ptr + tl.program_id(0) * width + column, tl.sum(dgain, axis=0), mask=column_inside)


def reference(
    x_nd: Tensor, branch_nd: Tensor | None, gain_d: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Compute the reference in plain torch."""
    if branch_nd is not None:
        x_nd = (x_nd.float() + branch_nd.float()).to(x_nd.dtype)
    return x_nd, F.rms_norm(x_nd.float(), gain_d.shape, gain_d.float(), eps).to(dtype)


def _shape(launch: Launch, width: int) -> dict[str, int]:
    """Return the launch parameters for rows of this width: about as many elements in a tile, whatever the width."""
    padded = triton.next_power_of_2(width)
    wider = max(1, padded // TILE_WIDTH)
    return {
        "ROWS": max(1, launch.tile // wider),
        "WIDTH": padded,
        "num_warps": min(16, launch.warps * max(1, wider // 2)),
    }


class AddRMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_nd: Tensor, branch_nd: Tensor | None, gain_d: Tensor, eps: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        x_nd = x_nd.contiguous()  # queries of one group are columns of a wider product
        rows, width = x_nd.shape
        adds = branch_nd is not None
        sum_nd = torch.empty_like(x_nd) if adds else x_nd
        y_nd = torch.empty_like(x_nd, dtype=dtype)
        rstd = torch.empty(rows, dtype=torch.float32, device=x_nd.device)
        shape = _shape(FORWARD, width)
        _rms_norm_forward[(triton.cdiv(rows, shape["ROWS"]),)](
            x_nd, branch_nd if adds else x_nd, gain_d, sum_nd, y_nd, rstd, rows, width, eps, ADD=adds, **shape
        )
        ctx.save_for_backward(sum_nd, gain_d, rstd)
        ctx.adds = adds
        ctx.branch_dtype = dtype
        ctx.set_materialize_grads(False)
        return sum_nd if adds else x_nd.view_as(x_nd), y_nd

    @staticmethod
    def backward(ctx: Any, dsum_nd: Tensor | None, dy_nd: Tensor) -> tuple[Any, ...]:
        sum_nd, gain_d, rstd = ctx.saved_tensors
        rows, width = sum_nd.shape
        count = programs(sum_nd.device, BACKWARD.per_multiprocessor)
        dx_nd = torch.empty_like(sum_nd)
        partial = torch.empty(count, width, dtype=torch.float32, device=sum_nd.device)
        # A float32 residual stream has a float32 gradient; the branch is in lower precision, and so is its gradient.
        dbranch_nd = dx_nd if ctx.branch_dtype == dx_nd.dtype else torch.empty_like(dx_nd, dtype=ctx.branch_dtype)
        passed = dy_nd if dsum_nd is None else dsum_nd.contiguous()
        _rms_norm_backward[(count,)](
            dy_nd.contiguous(), passed, sum_nd, gain_d, rstd, dx_nd, dbranch_nd, partial, rows, width,
            PASS=dsum_nd is not None, TWICE=dbranch_nd is not dx_nd, STAGES=BACKWARD.stages, **_shape(BACKWARD, width),
        )  # fmt: skip
        dgain = sum_partial(partial).to(gain_d.dtype)
        return dx_nd, dbranch_nd if ctx.adds else None, dgain, None, None


def add_rms_norm(
    x_nd: Tensor, branch_nd: Tensor | None, gain_d: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return the new residual stream, in the precision of x, and its norm in `dtype`, the precision of the branch.

    Without a branch the residual stream is unchanged.
    """
    if kernels_available(x_nd.device):
        return AddRMSNorm.apply(x_nd, branch_nd, gain_d, eps, dtype)
    return reference(x_nd, branch_nd, gain_d, eps, dtype)
