"""Gated MLP: gate and up are one product, and SwiGLU or GeGLU is one pass over its output each way."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .backend import Launch, has_triton, kernels_available
from .linear import product, product_fp32

FORWARD = Launch(tile=1, warps=4)
BACKWARD = Launch(tile=1, warps=4)
STRIP = 2048  # columns per program

if has_triton():
    import triton
    import triton.language as tl

    @triton.jit
    def _activate(gate, GELU: tl.constexpr):
        """Return the activation of the gate and its slope."""
        if GELU:
            inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
            tanh = 1.0 - 2.0 / (tl.exp2(2.8853900817779268 * inner) + 1.0)
            slope = 0.7978845608028654 * (1.0 + 0.134145 * gate * gate)
            return 0.5 * gate * (1.0 + tanh), 0.5 * (1.0 + tanh) + 0.5 * gate * (1.0 - tanh * tanh) * slope
        else:
            open_ = tl.sigmoid(gate)
            return gate * open_, open_ + gate * open_ * (1.0 - open_)

    @triton.jit
    def _swiglu_forward(
        pre_ptr, hidden_ptr, rows, columns, GELU: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
    ):
        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        inside = (row < rows)[:, None] & (column < columns)[None, :]
        at = row[:, None].to(tl.int64) * (2 * columns) + column[None, :]
        gate = tl.load(pre_ptr + at, mask=inside, other=0.0).to(tl.float32)
        up = tl.load(pre_ptr + at + columns, mask=inside, other=0.0).to(tl.float32)
        to = row[:, None].to(tl.int64) * columns + column[None, :]
        active, _ = _activate(gate, GELU)
        tl.store(hidden_ptr + to, active * up, mask=inside)

    @triton.jit
    def _swiglu_backward(
        dhidden_ptr, pre_ptr, dpre_ptr, rows, columns, GELU: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
    ):
        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        inside = (row < rows)[:, None] & (column < columns)[None, :]
        at = row[:, None].to(tl.int64) * (2 * columns) + column[None, :]
        gate = tl.load(pre_ptr + at, mask=inside, other=0.0).to(tl.float32)
        up = tl.load(pre_ptr + at + columns, mask=inside, other=0.0).to(tl.float32)
        of = row[:, None].to(tl.int64) * columns + column[None, :]
        dhidden = tl.load(dhidden_ptr + of, mask=inside, other=0.0).to(tl.float32)
        active, slope = _activate(gate, GELU)
        tl.store(dpre_ptr + at, dhidden * up * slope, mask=inside)
        tl.store(dpre_ptr + at + columns, dhidden * active, mask=inside)


def _plain(gate: Tensor, gelu: bool) -> Tensor:
    return F.gelu(gate, approximate="tanh") if gelu else F.silu(gate)


def reference(pre_nf: Tensor, gelu: bool = False) -> Tensor:
    """Compute the reference in plain torch; gate and up are the two halves of a row."""
    gate, up = pre_nf.float().chunk(2, dim=1)
    return (_plain(gate, gelu) * up).to(pre_nf.dtype)


def swiglu(pre_nf: Tensor, gelu: bool = False) -> Tensor:
    """Return silu(gate) * up, or gelu(gate) * up, rounded only once."""
    if not kernels_available(pre_nf.device):
        return reference(pre_nf, gelu)
    rows, columns = len(pre_nf), pre_nf.shape[1] // 2
    hidden_nf = torch.empty(rows, columns, dtype=pre_nf.dtype, device=pre_nf.device)
    grid = (triton.cdiv(rows, FORWARD.tile), triton.cdiv(columns, STRIP))
    _swiglu_forward[grid](
        pre_nf, hidden_nf, rows, columns, GELU=gelu, ROWS=FORWARD.tile, COLUMNS=STRIP, num_warps=FORWARD.warps
    )
    return hidden_nf


def swiglu_gradient(dhidden_nf: Tensor, pre_nf: Tensor, gelu: bool = False) -> Tensor:
    """Return the gradient of `swiglu`'s input."""
    if not kernels_available(pre_nf.device):
        with torch.enable_grad():
            leaf = pre_nf.detach().float().requires_grad_()
            gate, up = leaf.chunk(2, dim=1)
            (gradient,) = torch.autograd.grad(_plain(gate, gelu) * up, leaf, dhidden_nf.float())
        return gradient.to(pre_nf.dtype)
    rows, columns = dhidden_nf.shape
    dpre_nf = torch.empty_like(pre_nf)
    grid = (triton.cdiv(rows, BACKWARD.tile), triton.cdiv(columns, STRIP))
    _swiglu_backward[grid](
        dhidden_nf, pre_nf, dpre_nf, rows, columns,
        GELU=gelu, ROWS=BACKWARD.tile, COLUMNS=STRIP, num_warps=BACKWARD.warps,
    )  # fmt: skip
    return dpre_nf


class GatedMLP(torch.autograd.Function):
    """`down(silu(gate(x)) * up(x))`, or with GELU, over float32 weights and their copies in the precision of x.

    One product computes gate and up, and one each their gradients, so the input's gradient needs no addition.
    """

    @staticmethod
    def forward(
        ctx: Any, x_nd: Tensor, gate_fd: Tensor, up_fd: Tensor, low_fd: Tensor, down_df: Tensor, down_low: Tensor,
        tuned: bool, gelu: bool,
    ) -> Tensor:  # fmt: skip
        pre_nf = product(x_nd, low_fd.t(), tuned)
        hidden_nf = swiglu(pre_nf, gelu)
        ctx.save_for_backward(x_nd, low_fd, down_low, pre_nf, hidden_nf)
        ctx.tuned = tuned
        ctx.gelu = gelu
        return product(hidden_nf, down_low.t(), tuned)

    @staticmethod
    def backward(ctx: Any, dy_nd: Tensor) -> tuple[Any, ...]:
        x_nd, low_fd, down_low, pre_nf, hidden_nf = ctx.saved_tensors
        ddown = product_fp32(dy_nd.t(), hidden_nf, ctx.tuned)
        dpre_nf = swiglu_gradient(product(dy_nd, down_low, ctx.tuned), pre_nf, ctx.gelu)
        dgate, dup = product_fp32(dpre_nf.t(), x_nd, ctx.tuned).chunk(2)
        return product(dpre_nf, low_fd, ctx.tuned), dgate, dup, None, ddown, None, None, None


def gated_mlp(
    x_nd: Tensor,
    gate_fd: Tensor,
    up_fd: Tensor,
    down_df: Tensor,
    down_low: Tensor,
    tuned: bool = False,
    gelu: bool = False,
) -> Tensor:
    """Return the output of a gated MLP, with SiLU or GELU; `down_low` is its last weight in the precision of x."""
    hidden, width = gate_fd.shape
    low_fd = torch.empty(2 * hidden, width, dtype=x_nd.dtype, device=x_nd.device)
    with torch.no_grad():
        low_fd[:hidden].copy_(gate_fd)
        low_fd[hidden:].copy_(up_fd)
    return GatedMLP.apply(x_nd, gate_fd, up_fd, low_fd, down_df, down_low, tuned, gelu)
