"""Causal attention of whole sequences by one of torch's kernels, with the forward and the backward pass apart.

Apart, so that an autograd function around them can compute the gradients of what comes before attention in its own pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

Backend = Literal["cudnn", "flash", "sdpa"]
Saved = tuple[
    Sequence[Tensor], Sequence[Any]
]  # tensors and sizes that the backward pass needs besides q, k, v and the output


def attend_forward(
    q_bhtq: Tensor, k_bgtq: Tensor, v_bgtq: Tensor, scale: float, backend: Backend, wants_gradient: bool
) -> tuple[Tensor, Saved]:
    """Return the output (B, H, T, Q), and what the backward pass needs; H may be a multiple of G."""
    if backend == "sdpa":
        return _torch_attention(q_bhtq, k_bgtq, v_bgtq, scale), ((), ())
    if backend == "cudnn":
        results = torch.ops.aten._scaled_dot_product_cudnn_attention(
            q_bhtq, k_bgtq, v_bgtq, None, wants_gradient, 0.0, True, False, scale=scale
        )
    else:
        results = torch.ops.aten._scaled_dot_product_flash_attention(
            q_bhtq, k_bgtq, v_bgtq, 0.0, True, False, scale=scale
        )
    out, log_sum, starts_q, starts_k, max_q, max_k, seed, offset, *_ = results
    return out, ((log_sum, starts_q, starts_k, seed, offset), (max_q, max_k))


def attend_backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, saved: Saved, scale: float, backend: Backend
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys and values."""
    if backend == "sdpa":
        with torch.enable_grad():
            leaves = [part.detach().requires_grad_() for part in (q, k, v)]
            again = _torch_attention(leaves[0], leaves[1], leaves[2], scale)
        return torch.autograd.grad(again, leaves, dout)  # type: ignore[return-value]
    (log_sum, starts_q, starts_k, seed, offset), (max_q, max_k) = saved
    if backend == "cudnn":
        return torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
            dout, q, k, v, out, log_sum, seed, offset, None, starts_q, starts_k, max_q, max_k, 0.0, True, scale=scale
        )
    return torch.ops.aten._scaled_dot_product_flash_attention_backward(
        dout, q, k, v, out, log_sum, starts_q, starts_k, max_q, max_k, 0.0, True, seed, offset, scale=scale
    )


def _torch_attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Compute attention with whichever of torch's kernels serves this device."""
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=q.shape[1] != k.shape[1])


class CausalAttention(torch.autograd.Function):
    """Attention over queries (B, T, H, Q), keys and values (B, T, G, Q), in the layout that products write and read."""

    @staticmethod
    def forward(ctx: Any, q_bthq: Tensor, k_btgq: Tensor, v_btgq: Tensor, scale: float, backend: Backend) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q_bthq, k_btgq, v_btgq))
        out, (tensors, ctx.sizes) = attend_forward(q, k, v, scale, backend, any(ctx.needs_input_grad))
        ctx.scale = scale
        ctx.backend = backend
        ctx.save_for_backward(q, k, v, out, *tensors)
        return out.transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, dout_bthq: Tensor) -> tuple[Any, ...]:
        q, k, v, out, *tensors = ctx.saved_tensors
        dout = dout_bthq.transpose(1, 2)
        gradients = attend_backward(dout, q, k, v, out, (tensors, ctx.sizes), ctx.scale, ctx.backend)
        return *(x.transpose(1, 2) for x in gradients), None, None


def causal_attention(q_bthq: Tensor, k_btgq: Tensor, v_btgq: Tensor, scale: float, backend: Backend) -> Tensor:
    """Return causal attention (B, T, H, Q) of whole sequences; heads may share keys and values."""
    return CausalAttention.apply(q_bthq, k_btgq, v_btgq, scale, backend)
