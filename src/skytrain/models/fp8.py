"""Linear layers whose three products are in fp8, for wide models on GPUs that multiply it (Ada, Hopper and later).

Weights stay as they are, in float32 or bf16. For each product both factors are scaled so that their largest value is fp8's
largest, rounded, multiplied with float32 accumulation, and scaled back: nothing about the scales is kept between steps.
`tensorwise` has one scale for a matrix. `rowwise` has one for each row of one factor and each column of the other, which
outliers disturb less, and leaves the weights' gradients in bf16.

Values are rounded to e4m3, gradients of activations to e5m2 with `tensorwise`, as their range is wider.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

Scaling = Literal["tensorwise", "rowwise"]


class Fp8Linear(nn.Linear):
    """A linear layer that multiplies in fp8; made out of a plain one, in place."""

    scaling: Scaling

    def forward(self, input: Tensor) -> Tensor:
        x_nd = input.flatten(0, -2).to(torch.bfloat16)
        y_nm = Fp8Product.apply(x_nd, self.weight.to(torch.bfloat16), self.scaling == "rowwise")
        y = y_nm.view(*input.shape[:-1], -1)
        return y if self.bias is None else y + self.bias.to(y.dtype)


class Fp8Product(torch.autograd.Function):
    """x @ weight.T"""

    @staticmethod
    def forward(ctx: Any, x_nd: Tensor, weight_md: Tensor, rowwise: bool) -> Tensor:
        ctx.save_for_backward(x_nd, weight_md)
        ctx.rowwise = rowwise
        return scaled_product(x_nd, weight_md.t(), rowwise)

    @staticmethod
    def backward(ctx: Any, dy_nm: Tensor) -> tuple[Any, ...]:
        x_nd, weight_md = ctx.saved_tensors
        gradients = torch.float8_e4m3fn if ctx.rowwise else torch.float8_e5m2
        dx_nd = scaled_product(dy_nm, weight_md, ctx.rowwise, gradients)
        if ctx.rowwise:
            return dx_nd, dy_nm.t() @ x_nd, None
        return dx_nd, scaled_product(dy_nm.t(), x_nd, False, gradients), None


def scaled_product(a_nk: Tensor, b_km: Tensor, rowwise: bool, a_dtype: torch.dtype = torch.float8_e4m3fn) -> Tensor:
    """Return a @ b in bf16, with each factor rounded to fp8 under its own scale."""
    a_low, a_scale = round_fp8(a_nk, a_dtype, dim=1 if rowwise else None)
    b_low, b_scale = round_fp8(b_km, torch.float8_e4m3fn, dim=0 if rowwise else None)
    if not a_nk.is_cuda:  # the reference
        return ((a_low.float() * a_scale) @ (b_low.float() * b_scale)).to(torch.bfloat16)
    # The kernels take the first factor by rows and the second by columns.
    a_low, b_low = a_low.contiguous(), b_low.t().contiguous().t()
    # Products of two rounded values are summed in what the tensor cores hold; only gradients need every bit of it.
    fast = a_dtype == torch.float8_e4m3fn
    return torch._scaled_mm(
        a_low, b_low, scale_a=a_scale, scale_b=b_scale, out_dtype=torch.bfloat16, use_fast_accum=fast
    )


def round_fp8(x: Tensor, dtype: torch.dtype, dim: int | None) -> tuple[Tensor, Tensor]:
    """Return x in fp8 and the float32 scale that restores it: one, or one per row (`dim` 1) or column (`dim` 0)."""
    wide = x.float()
    top = wide.abs().amax() if dim is None else wide.abs().amax(dim, keepdim=True)
    limit = torch.finfo(dtype).max
    scale = top.clamp(min=1e-12) / limit
    return (wide / scale).clamp(-limit, limit).to(dtype), scale
