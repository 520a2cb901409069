"""A linear layer whose weight is kept in float32 and multiplied in a lower precision; its gradient leaves the product in float32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def product_fp32(a: Tensor, b: Tensor) -> Tensor:
    """a @ b accumulated and returned in float32, without a rounding to bf16 in between."""
    if a.is_cuda and a.dtype != torch.float32:
        return torch.mm(a, b, out_dtype=torch.float32)
    return (a.float() @ b.float()) if a.dtype != torch.float32 else a @ b


class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_nd: Tensor, weight_md: Tensor, low_md: Tensor, bias_m: Tensor | None) -> Tensor:
        ctx.save_for_backward(x_nd, low_md)
        ctx.has_bias = bias_m is not None
        if bias_m is not None:
            return torch.addmm(bias_m.to(x_nd.dtype), x_nd, low_md.t())
        return x_nd @ low_md.t()

    @staticmethod
    def backward(ctx: Any, dy_nm: Tensor) -> tuple[Any, ...]:
        x_nd, low_md = ctx.saved_tensors
        dbias = dy_nm.sum(0, dtype=torch.float32) if ctx.has_bias else None
        return dy_nm @ low_md, product_fp32(dy_nm.t(), x_nd), None, dbias


def linear(x_nd: Tensor, weight_md: Tensor, low_md: Tensor, bias_m: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias; `low_md` is the weight in x's precision, cast once for all its uses in a step."""
    return Linear.apply(x_nd, weight_md, low_md, bias_m)
