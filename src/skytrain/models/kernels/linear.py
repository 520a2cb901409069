"""A linear layer whose weight is kept in float32 and multiplied in a lower precision; its gradient leaves the product in float32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import cublaslt
from .cublaslt import Epilogue
from .sums import sum_rows


def product(x: Tensor, y: Tensor, tuned: bool = False, bias: Tensor | None = None) -> Tensor:
    """x @ y + bias; `tuned` picks cuBLASLt's fastest algorithm by measurement where torch would take its first guess."""
    if tuned and x.is_cuda:
        return cublaslt.product(x, y, epilogue=Epilogue.NONE if bias is None else Epilogue.BIAS, bias=bias)
    return x @ y if bias is None else torch.addmm(bias, x, y)


def product_fp32(x: Tensor, y: Tensor, tuned: bool = False) -> Tensor:
    """x @ y accumulated and returned in float32, without a rounding to bf16 in between."""
    if x.dtype == torch.float32:
        return x @ y
    if not x.is_cuda:
        return x.float() @ y.float()
    return cublaslt.product(x, y, torch.float32) if tuned else torch.mm(x, y, out_dtype=torch.float32)


class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_nd: Tensor, weight_md: Tensor, low_md: Tensor, tuned: bool) -> Tensor:
        ctx.save_for_backward(x_nd, low_md)
        ctx.tuned = tuned
        return product(x_nd, low_md.t(), tuned)

    @staticmethod
    def backward(ctx: Any, dy_nm: Tensor) -> tuple[Any, ...]:
        x_nd, low_md = ctx.saved_tensors
        return product(dy_nm, low_md, ctx.tuned), product_fp32(dy_nm.t(), x_nd, ctx.tuned), None, None


def linear(x_nd: Tensor, weight_md: Tensor, low_md: Tensor, tuned: bool = False) -> Tensor:
    """x @ weight.T; `low_md` is the weight in x's precision, cast once for all its uses in a step. The bias is added by what follows."""
    return Linear.apply(x_nd, weight_md, low_md, tuned)


class Bias(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_nm: Tensor, bias_m: Tensor) -> Tensor:
        return x_nm + bias_m.to(x_nm.dtype)

    @staticmethod
    def backward(ctx: Any, dy_nm: Tensor) -> tuple[Tensor, Tensor]:
        return dy_nm, sum_rows(dy_nm.contiguous())


def add_bias(x_nm: Tensor, bias_m: Tensor) -> Tensor:
    """x + bias, whose gradient is summed in float32."""
    return Bias.apply(x_nm, bias_m)
