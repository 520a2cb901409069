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

from .backend import Launch, has_triton, kernels_available
from .linear import product_fp32

IGNORED = -100  # a target that does not count, as in torch

ROWS = Launch(tile=8192, warps=32, stages=2)

if has_triton():
    import triton
    import triton.language as tl

    @triton.jit
    def _loss_rows(
        logits_ptr,
        targets_ptr,
        loss_ptr,
        scale_ptr,
        columns,
        vocab,
        GRADIENT: tl.constexpr,
        BLOCK: tl.constexpr,
        STAGES: tl.constexpr,
    ):
        """One program a row: its maximum and sum in a first pass, its gradient in a second, which mostly reads the cache.

        Maximum and sum are kept for each lane and joined once at the end: a reduction in the loop would make every
        warp wait for the others at every step.
        """
        row = tl.program_id(0).to(tl.int64)
        base = logits_ptr + row * columns
        target = tl.load(targets_ptr + row)
        counts = target >= 0
        tops = tl.full((BLOCK,), -1.0e30, dtype=tl.float32)
        sums = tl.zeros((BLOCK,), dtype=tl.float32)
        for start in tl.range(0, vocab, BLOCK, num_stages=STAGES):
            at = start + tl.arange(0, BLOCK)
            x = tl.load(base + at, mask=at < vocab, other=-float("inf")).to(tl.float32) * 1.4426950408889634
            higher = tl.maximum(tops, x)
            sums = sums * tl.exp2(tops - higher) + tl.exp2(x - higher)
            tops = higher
        top = tl.max(tops, axis=0)
        log2_sum = top + tl.log2(tl.sum(sums * tl.exp2(tops - top), axis=0))
        hit = tl.load(base + tl.where(counts, target, 0)).to(tl.float32)
        tl.store(loss_ptr + row, tl.where(counts, log2_sum * 0.6931471805599453 - hit, 0.0))
        if GRADIENT:
            scale = tl.where(counts, tl.load(scale_ptr), 0.0)
            for start in tl.range(0, columns, BLOCK, num_stages=STAGES):
                at = start + tl.arange(0, BLOCK)
                x = tl.load(base + at, mask=at < vocab, other=-float("inf")).to(tl.float32) * 1.4426950408889634
                gradient = tl.exp2(x - log2_sum) - tl.where(at == target, 1.0, 0.0)
                tl.store(base + at, gradient * scale, mask=at < columns)


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
        _loss_rows[(rows,)](
            logits,
            targets_n,
            losses,
            scale,
            columns,
            vocab,
            GRADIENT=wants,
            BLOCK=_block(columns),
            STAGES=ROWS.stages,
            num_warps=ROWS.warps,
        )
        if wants:
            # logits hold their own gradient now
            ctx.save_for_backward(logits @ low_vd, product_fp32(logits.t(), x_nd))
        return losses.sum() * scale

    @staticmethod
    def backward(ctx: Any, dloss: Tensor) -> tuple[Any, ...]:
        dx_nd, dweight_vd = ctx.saved_tensors
        return dx_nd * dloss, dweight_vd * dloss, None, None, None


def _block(columns: int) -> int:
    return min(ROWS.tile, triton.next_power_of_2(columns))


def head_loss(x_nd: Tensor, weight_vd: Tensor, low_vd: Tensor, targets_n: Tensor, vocab: int) -> Tensor:
    """Mean cross-entropy of x @ weight.T over the first `vocab` columns; the rest is padding and cannot be predicted."""
    if kernels_available(x_nd.device):
        return HeadLoss.apply(x_nd, weight_vd, low_vd, targets_n, vocab)
    return reference(x_nd, weight_vd, targets_n, vocab)
