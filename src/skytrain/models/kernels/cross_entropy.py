"""Fused projection to logits and cross-entropy.

The logits are the largest tensor of a small model: 6.6 GB in bf16 for 65,536 tokens of GPT-2's vocabulary. The matrix
product writes them once, and one kernel overwrites each row with its gradient (softmax minus one at the target) while
it sums the loss in float32, so no second or float32 copy of the logits exists. The buffer is freed before the backward
pass of the blocks starts. The two products that read it run first in the backward pass and apply the gradient of the
loss as a scale factor; if the products cannot scale their output, they run in the forward pass instead.
"""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from . import cublaslt, nvrtc
from .backend import Launch, has_triton, kernels_available, programs
from .linear import product, product_fp32

IGNORED = -100  # targets excluded from the loss, as in torch

ROWS = Launch(tile=8192, warps=32, stages=2)
IN_SHARED = Launch(tile=1, warps=16, per_multiprocessor=2)  # loss_rows.cu, which keeps a row in shared memory
BESIDES_ROW = 2048  # bytes of shared memory per block of that kernel, in addition to a row

if has_triton():
    import triton
    import triton.language as tl

    @triton.jit
    def _capped(x, cap, CAPPED: tl.constexpr):
        """Return x, or cap * tanh(x / cap)."""
        if CAPPED:
            return cap - 2.0 * cap / (tl.exp2(2.8853900817779268 * x / cap) + 1.0)
        else:
            return x

    @triton.jit
    def _loss_rows(
        logits_ptr,
        targets_ptr,
        loss_ptr,
        scale_ptr,
        columns,
        vocab,
        cap,
        z_loss,
        GRADIENT: tl.constexpr,
        CAPPED: tl.constexpr,
        BLOCK: tl.constexpr,
        STAGES: tl.constexpr,
    ):
        """Compute one row per program: maximum and sum in a first pass, the gradient in a second, which mostly hits the cache.

        Maximum and sum are kept per lane and combined once at the end: a reduction inside the loop would
        synchronize the warps in every iteration.
        """
        row = tl.program_id(0).to(tl.int64)
        base = logits_ptr + row * columns
        target = tl.load(targets_ptr + row)
        counts = target >= 0
        tops = tl.full((BLOCK,), -1.0e30, dtype=tl.float32)
        sums = tl.zeros((BLOCK,), dtype=tl.float32)
        for start in tl.range(0, vocab, BLOCK, num_stages=STAGES):
            at = start + tl.arange(0, BLOCK)
            x = tl.load(base + at, mask=at < vocab, other=-float("inf")).to(tl.float32)
            x = _capped(x, cap, CAPPED) * 1.4426950408889634
            x = tl.where(at < vocab, x, -float("inf"))
            higher = tl.maximum(tops, x)
            sums = sums * tl.exp2(tops - higher) + tl.exp2(x - higher)
            tops = higher
        top = tl.max(tops, axis=0)
        log2_sum = top + tl.log2(tl.sum(sums * tl.exp2(tops - top), axis=0))
        hit = _capped(tl.load(base + tl.where(counts, target, 0)).to(tl.float32), cap, CAPPED)
        hit = tl.where(target < vocab, hit, -float("inf"))  # padding cannot be predicted
        log_sum = log2_sum * 0.6931471805599453
        tl.store(loss_ptr + row, tl.where(counts, log_sum - hit + z_loss * log_sum * log_sum, 0.0))
        if GRADIENT:
            scale = tl.where(counts, tl.load(scale_ptr), 0.0)
            share = 1.0 + 2.0 * z_loss * log_sum  # of the softmax in the gradient
            for start in tl.range(0, columns, BLOCK, num_stages=STAGES):
                at = start + tl.arange(0, BLOCK)
                x = tl.load(base + at, mask=at < vocab, other=-float("inf")).to(tl.float32)
                x = _capped(x, cap, CAPPED)
                below = tl.where(at < vocab, tl.exp2(x * 1.4426950408889634 - log2_sum), 0.0)
                gradient = below * share - tl.where(at == target, 1.0, 0.0)
                if CAPPED:
                    gradient = tl.where(at < vocab, gradient * (1.0 - (x / cap) * (x / cap)), 0.0)
                tl.store(base + at, gradient * scale, mask=at < columns)


@dataclass(frozen=True)
class LossTerms:
    """The inputs of a loss besides the logits of a vocabulary, which may be padded."""

    vocab: int
    softcap: float | None = None  # of the logits
    z_loss: float = 0.0  # weight of the squared logarithm of the softmax's sum

    @property
    def plain(self) -> bool:
        return self.softcap is None and not self.z_loss


def reference(x_nd: Tensor, weight_vd: Tensor, targets_n: Tensor, terms: LossTerms) -> Tensor:
    """Compute the reference in plain torch: the mean over targets that are not ignored, in float32."""
    logits = (x_nd @ weight_vd.to(x_nd.dtype).t()).float()
    if terms.softcap is not None:
        logits = torch.tanh(logits / terms.softcap) * terms.softcap
    padding = torch.arange(logits.shape[1], device=logits.device) >= terms.vocab
    logits = logits.masked_fill(padding, float("-inf"))
    loss = F.cross_entropy(logits, targets_n, ignore_index=IGNORED)
    if not terms.z_loss:
        return loss
    counted = targets_n != IGNORED
    return loss + terms.z_loss * (logits.logsumexp(-1).square() * counted).sum() / counted.sum().clamp(min=1)


@functools.cache
def _kernel_in_shared(columns: int) -> nvrtc.CudaKernel | None:
    """Return the kernel that reads each row once, or None if it cannot run here.

    It needs a row to fit in shared memory and a GPU with bulk copies (Hopper or later).
    """
    if columns % 8 or torch.cuda.get_device_capability() < (9, 0) or not nvrtc.available():
        return None
    if columns * 2 + BESIDES_ROW > getattr(torch.cuda.get_device_properties(), "shared_memory_per_block_optin", 0):
        return None
    defines = {"THREADS": IN_SHARED.warps * 32, "BLOCKS_PER_SM": IN_SHARED.per_multiprocessor}
    try:
        return nvrtc.CudaKernel("loss_rows.cu", "loss_rows", defines, columns * 2)
    except RuntimeError as problem:
        warnings.warn(f"the loss takes its slower kernel: {problem}", stacklevel=2)
        return None


def loss_rows(logits_nv: Tensor, targets_n: Tensor, scale: Tensor, terms: LossTerms, gradient: bool) -> Tensor:
    """Return the loss of each row; with `gradient`, overwrite the logits with their gradient times `scale`."""
    rows, columns = logits_nv.shape
    vocab = terms.vocab
    losses = torch.empty(rows, dtype=torch.float32, device=logits_nv.device)
    narrow = logits_nv.is_cuda and logits_nv.dtype == torch.bfloat16
    in_shared = _kernel_in_shared(columns) if narrow and terms.plain else None  # which has neither cap nor z-loss
    if in_shared is not None:
        blocks = programs(logits_nv.device, IN_SHARED.per_multiprocessor)
        in_shared(
            blocks, IN_SHARED.warps * 32, logits_nv, targets_n, losses, scale, rows, columns, vocab, int(gradient)
        )
        return losses
    _loss_rows[(rows,)](
        logits_nv, targets_n, losses, scale, columns, vocab, terms.softcap or 1.0, terms.z_loss,
        GRADIENT=gradient, CAPPED=terms.softcap is not None, BLOCK=_block(columns), STAGES=ROWS.stages, num_warps=ROWS.warps,
    )  # fmt: skip
    return losses


class HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_nd: Tensor, weight_vd: Tensor, low_vd: Tensor, targets_n: Tensor, terms: LossTerms, tuned: bool
    ) -> Tensor:
        wants = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        logits = product(x_nd, low_vd.t(), tuned)
        scale = 1.0 / (targets_n != IGNORED).sum().clamp(min=1).float()
        losses = loss_rows(logits, targets_n, scale, terms, wants)
        ctx.at_once = not (tuned and logits.is_cuda)
        if wants:
            # `loss_rows` has overwritten the logits with their gradient
            at_once = (product(logits, low_vd), product_fp32(logits.t(), x_nd)) if ctx.at_once else ()
            ctx.save_for_backward(*(at_once or (logits, low_vd, x_nd)))
        return losses.sum() * scale

    @staticmethod
    def backward(ctx: Any, dloss: Tensor) -> tuple[Any, ...]:
        if ctx.at_once:
            dx_nd, dweight_vd = ctx.saved_tensors
            return dx_nd * dloss, dweight_vd * dloss, None, None, None, None
        logits, low_vd, x_nd = ctx.saved_tensors
        factor = dloss.float()
        dx_nd = cublaslt.product(logits, low_vd, factor=factor)
        dweight_vd = cublaslt.product(logits.t(), x_nd, torch.float32, factor=factor)
        return dx_nd, dweight_vd, None, None, None, None


def _block(columns: int) -> int:
    return min(ROWS.tile, triton.next_power_of_2(columns))


def head_loss(
    x_nd: Tensor, weight_vd: Tensor, low_vd: Tensor, targets_n: Tensor, terms: LossTerms, tuned: bool = False
) -> Tensor:
    """Return the mean cross-entropy of x @ weight.T over the vocabulary; columns beyond it are padding."""
    if kernels_available(x_nd.device):
        return HeadLoss.apply(x_nd, weight_vd, low_vd, targets_n, terms, tuned)
    return reference(x_nd, weight_vd, targets_n, terms)
