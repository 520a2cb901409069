"""The projection to logits and its cross-entropy as one function.

The logits are the largest tensor of a small model: 6.6 GB in bf16 for 65,536 tokens of GPT-2's vocabulary. They are
written once by the product, and one kernel turns each row into its own gradient in place (softmax less one at the
target) while its loss is summed in float32: nothing of that size exists in float32 or twice. The two products of the
backward pass run at once, so that the buffer is free before the blocks' own backward begins.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .backend import has_triton, kernels_available
from .linear import product_fp32

IGNORED = -100  # a target that does not count, as in torch

if has_triton():
    import triton
    import triton.language as tl

    @triton.jit
    def _rows(logits_ptr, targets_ptr, loss_ptr, scale_ptr, columns, vocab, GRADIENT: tl.constexpr, BLOCK: tl.constexpr):
        """One program a row: its maximum and sum in a first pass, its gradient in a second, which mostly reads the cache."""
        row = tl.program_id(0).to(tl.int64)
        base = logits_ptr + row * columns
        target = tl.load(targets_ptr + row)
        counts = target >= 0
        top = -float("inf")
        total = 0.0
        for start in range(0, vocab, BLOCK):
            at = start + tl.arange(0, BLOCK)
            x = tl.load(base + at, mask=at < vocab, other=-float("inf")).to(tl.float32)
            higher = tl.maximum(top, tl.max(x, axis=0))
            total = total * tl.exp(top - higher) + tl.sum(tl.exp(x - higher), axis=0)
            top = higher
        hit = tl.load(base + tl.where(counts, target, 0)).to(tl.float32)
        log_sum = top + tl.log(total)
        tl.store(loss_ptr + row, tl.where(counts, log_sum - hit, 0.0))
        if GRADIENT:
            scale = tl.where(counts, tl.load(scale_ptr), 0.0)
            for start in range(0, columns, BLOCK):
                at = start + tl.arange(0, BLOCK)
                x = tl.load(base + at, mask=at < vocab, other=-float("inf")).to(tl.float32)
                gradient = tl.exp(x - log_sum) - tl.where(at == target, 1.0, 0.0)
                tl.store(base + at, tl.where(counts, gradient * scale, 0.0), mask=at < columns)


def reference(x_nd: Tensor, weight_vd: Tensor, targets_n: Tensor, vocab: int) -> Tensor:
    """What the kernel computes, in plain torch: the mean over targets that count, in float32."""
    logits = (x_nd @ weight_vd.to(x_nd.dtype).t())[:, :vocab].float()
    return F.cross_entropy(logits, targets_n, ignore_index=IGNORED)


class HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_nd: Tensor, weight_vd: Tensor, low_vd: Tensor, targets_n: Tensor, vocab: int) -> Tensor:
        wants = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        logits = x_nd @ low_vd.t()
        rows, columns = logits.shape
        losses = torch.empty(rows, dtype=torch.float32, device=x_nd.device)
        scale = 1.0 / (targets_n != IGNORED).sum().float()
        _rows[(rows,)](logits, targets_n, losses, scale, columns, vocab, GRADIENT=wants, BLOCK=_block(columns), num_warps=8)
        if wants:
            # logits hold their own gradient now
            ctx.save_for_backward(logits @ low_vd, product_fp32(logits.t(), x_nd))
        return losses.sum() * scale

    @staticmethod
    def backward(ctx: Any, dloss: Tensor) -> tuple[Any, ...]:
        dx_nd, dweight_vd = ctx.saved_tensors
        return dx_nd * dloss, dweight_vd * dloss, None, None, None


def _block(columns: int) -> int:
    return min(8192, triton.next_power_of_2(columns))


def head_loss(x_nd: Tensor, weight_vd: Tensor, low_vd: Tensor, targets_n: Tensor, vocab: int) -> Tensor:
    """Mean cross-entropy of x @ weight.T over the first `vocab` columns; the rest is padding and cannot be predicted."""
    if kernels_available(x_nd.device):
        return HeadLoss.apply(x_nd, weight_vd, low_vd, targets_n, vocab)
    return reference(x_nd, weight_vd, targets_n, vocab)
