"""Linear layer with a float32 weight that is multiplied in lower precision; the weight gradient is float32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import cublaslt
from .cublaslt import Epilogue
from .sums import sum_rows


def product(x: Tensor, y: Tensor, tuned: bool = False, bias: Tensor | None = None) -> Tensor:
    """Return x @ y + bias; `tuned` selects cuBLASLt's algorithm by timing instead of by its heuristic."""
    if tuned and x.is_cuda:
        return cublaslt.product(x, y, epilogue=Epilogue.NONE if bias is None else Epilogue.BIAS, bias=bias)
    return x @ y if bias is None else torch.addmm(bias, x, y)


def product_fp32(x: Tensor, y: Tensor, tuned: bool = False) -> Tensor:
    """Return x @ y, accumulated and returned in float32 without intermediate rounding to bf16."""
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
    """Return x @ weight.T, without a bias: the operation that follows adds it.

    `low_md` is the weight in the precision of x, cast once per step for all its uses.
    """
    return Linear.apply(x_nd, weight_md, low_md, tuned)


class Bias(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_nm: Tensor, bias_m: Tensor) -> Tensor:
        return x_nm + bias_m.to(x_nm.dtype)

    @staticmethod
    def backward(ctx: Any, dy_nm: Tensor) -> tuple[Tensor, Tensor]:
        return dy_nm, sum_rows(dy_nm.contiguous())


def add_bias(x_nm: Tensor, bias_m: Tensor) -> Tensor:
    """Return x + bias; the bias gradient is summed in float32."""
    return Bias.apply(x_nm, bias_m)
