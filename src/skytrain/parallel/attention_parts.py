"""Attention over a part of the keys at a time. Each part comes with its log-sum-exp, by which parts are combined.

The gradients of a part follow from the combined output and log-sum-exp, so a backward pass may visit the parts in any order
and needs no other result of the forward pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

_ATEN: Any = torch.ops.aten
Kernel = Literal["cpu", "cudnn", "flash", "plain"]


@dataclass(frozen=True)
class AttentionSettings:
    """The factor of the scores, and the kernel that computes them."""

    scale: float
    kernel: Kernel


class AttentionPart(NamedTuple):
    """Attention over a part of the keys."""

    out_bhtq: Tensor
    log_sum_bht: Tensor  # float32
    rest: tuple[Tensor | None, ...] = ()  # what a GPU kernel's backward pass needs: sequence starts, and an unused seed


def choose_kernel(q_bhtq: Tensor) -> Kernel:
    """Return the fastest kernel that returns its log-sum-exp; `plain` holds all scores of a part at once."""
    size = q_bhtq.size(3)
    if q_bhtq.device.type == "cpu":
        return "cpu"
    if q_bhtq.dtype not in (torch.bfloat16, torch.float16) or size % 8 or size > 256:
        return "plain"
    # cuDNN's is the fastest measured on Hopper; older GPUs, and heads it does not support, use torch's flash kernel.
    hopper = torch.cuda.get_device_capability(q_bhtq.device) >= (9, 0)
    return "cudnn" if hopper and size <= 128 else "flash"


def attend_part(q_bhtq: Tensor, kv_2bgsq: Tensor, settings: AttentionSettings, *, causal: bool) -> AttentionPart:
    """Attend from all queries to the given keys. `causal` needs as many keys as queries, at the same positions."""
    assert not causal or q_bhtq.size(2) == kv_2bgsq.size(3)
    scale = settings.scale
    kernel = settings.kernel
    q = q_bhtq
    (k, v) = _for_each_query(kv_2bgsq, q_bhtq)
    if kernel == "cpu":
        out, log_sum = _ATEN._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, scale=scale)
        return AttentionPart(out, log_sum)
    if kernel == "plain":
        scores = _scores(q, k, causal, scale)
        log_sum = scores.logsumexp(-1)
        return AttentionPart((scores - log_sum[..., None]).exp().to(v.dtype) @ v, log_sum)
    if kernel == "cudnn":
        seen = _ATEN._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal, False, scale=scale)
    else:
        seen = _ATEN._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False, scale=scale)
    return AttentionPart(seen[0], seen[1].reshape(q.shape[:3]), (seen[2], seen[3], seen[6], seen[7]))


def attend_part_backward(
    dout_bhtq: Tensor,
    q_bhtq: Tensor,
    kv_2bgsq: Tensor,
    whole: AttentionPart,
    settings: AttentionSettings,
    *,
    causal: bool,
) -> tuple[Tensor, Tensor]:
    """Return this part's gradients of queries, and of keys and values. `whole` is the attention to all keys."""
    scale = settings.scale
    kernel = settings.kernel
    q = q_bhtq.contiguous()
    (k, v) = _for_each_query(kv_2bgsq, q_bhtq)
    dout, out, log_sum = (x.contiguous() for x in (dout_bhtq, whole.out_bhtq, whole.log_sum_bht))
    if kernel == "cpu":
        dq, dk, dv = _ATEN._scaled_dot_product_flash_attention_for_cpu_backward(
            dout, q, k, v, out, log_sum, 0.0, causal, scale=scale
        )
    elif kernel == "plain":
        dq, dk, dv = _plain_backward(dout, q, (k, v), AttentionPart(out, log_sum), scale, causal)
    else:
        starts_q, starts_k, seed, offset = whole.rest
        starts = (starts_q, starts_k, q.size(2), k.size(2))
        if kernel == "cudnn":
            dq, dk, dv = _ATEN._scaled_dot_product_cudnn_attention_backward(
                dout, q, k, v, out, log_sum[..., None], seed, offset, None, *starts, 0.0, causal, scale=scale
            )
        else:
            dq, dk, dv = _ATEN._scaled_dot_product_flash_attention_backward(
                dout, q, k, v, out, log_sum, *starts, 0.0, causal, seed, offset, scale=scale
            )
    return dq, _for_each_group(torch.stack((dk, dv)), kv_2bgsq)


class Together:
    """A sum of parts in float32, each weighted by its keys' share of the softmax's sum."""

    def __init__(self, first: AttentionPart) -> None:
        self._out = first.out_bhtq.float()
        self._log_sum = first.log_sum_bht.float().contiguous()
        self._dtype = first.out_bhtq.dtype
        self._rest = first.rest

    def add(self, rows: slice, part: AttentionPart) -> None:
        """Add a part for some of the queries."""
        before = self._log_sum[:, :, rows]
        new = part.log_sum_bht.float()
        both = torch.logaddexp(before, new)
        out = self._out[:, :, rows]
        out.mul_((before - both).exp()[..., None]).add_(part.out_bhtq * (new - both).exp()[..., None])
        before.copy_(both)

    def part(self) -> AttentionPart:
        # Laid out as (batch, length, heads, size), so that the product that follows reads it without another copy.
        out = self._out.to(self._dtype).transpose(1, 2).contiguous().transpose(1, 2)
        return AttentionPart(out, self._log_sum, self._rest)


def _for_each_query(kv_2bgsq: Tensor, q_bhtq: Tensor) -> Tensor:
    each = q_bhtq.size(1) // kv_2bgsq.size(2)
    return kv_2bgsq.contiguous() if each == 1 else kv_2bgsq.repeat_interleave(each, dim=2)


def _for_each_group(dkv_2bhsq: Tensor, kv_2bgsq: Tensor) -> Tensor:
    groups = kv_2bgsq.size(2)
    return dkv_2bhsq if dkv_2bhsq.size(2) == groups else dkv_2bhsq.float().unflatten(2, (groups, -1)).sum(3)


def _scores(q: Tensor, k: Tensor, causal: bool, scale: float) -> Tensor:
    scores = (q @ k.transpose(-1, -2)).float() * scale
    if causal:
        length = q.size(2)
        above = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(above, float("-inf"))
    return scores


def _plain_backward(
    dout: Tensor, q: Tensor, kv: tuple[Tensor, Tensor], whole: AttentionPart, scale: float, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    k, v = kv
    weights = (_scores(q, k, causal, scale) - whole.log_sum_bht[..., None]).exp()
    dweights = (dout @ v.transpose(-1, -2)).float() - (dout.float() * whole.out_bhtq.float()).sum(-1, keepdim=True)
    dscores = (weights * dweights * scale).to(q.dtype)
    return dscores @ k, dscores.transpose(-1, -2) @ q, weights.to(v.dtype).transpose(-1, -2) @ dout
