"""GELU MLP with bias and GELU fused into the first product, and the derivative of GELU into its backward product."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import cublaslt
from .cublaslt import Epilogue
from .linear import product, product_fp32
from .sums import sum_rows


class EpilogueMLP(torch.autograd.Function):
    """`down(gelu(up(x) + bias))` in bf16 on a GPU.

    Between the two products only the input and the output of GELU are written to memory.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x_nd: Tensor,
        up_fd: Tensor,
        up_low: Tensor,
        bias_f: Tensor,
        bias_low: Tensor,
        down_df: Tensor,
        down_low: Tensor,
    ) -> Tensor:
        before_nf = torch.empty(len(x_nd), len(up_low), dtype=x_nd.dtype, device=x_nd.device)
        hidden_nf = cublaslt.product(x_nd, up_low.t(), epilogue=Epilogue.GELU_AUX_BIAS, bias=bias_low, aux=before_nf)
        ctx.save_for_backward(x_nd, up_low, down_low, before_nf, hidden_nf)
        return product(hidden_nf, down_low.t(), tuned=True)

    @staticmethod
    def backward(ctx: Any, dy_nd: Tensor) -> tuple[Any, ...]:
        x_nd, up_low, down_low, before_nf, hidden_nf = ctx.saved_tensors
        dbefore_nf = cublaslt.product(dy_nd, down_low, epilogue=Epilogue.DGELU, aux=before_nf)
        dbias = sum_rows(dbefore_nf)
        ddown = product_fp32(dy_nd.t(), hidden_nf, tuned=True)
        dup = product_fp32(dbefore_nf.t(), x_nd, tuned=True)
        return product(dbefore_nf, up_low, tuned=True), dup, None, dbias, None, ddown, None
