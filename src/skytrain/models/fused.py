"""The fast path: a decoder's loss through fused kernels, over the same parameters.

Master weights stay in float32; products, the residual stream and activations are bf16; softmax, norms and the loss are
computed in float32; weight gradients leave their products in float32. Each technique has its switch, and with all of
them off this is the plain decoder in bf16. It serves decoders of GPT-2's shape (`config.capabilities` says what keeps one out);
the others train through torch.compile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..config import fused_model_problem
from .decoder import Decoder
from .documents import Documents, document_positions
from .kernels import add_norm, bias_gelu, head_loss, linear, lookup, pack_qkv
from .kernels.cross_entropy import reference as head_loss_reference
from .kernels.gelu import reference as gelu_reference
from .kernels.linear import add_bias, product, product_fp32
from .kernels.mlp import EpilogueMLP
from .kernels.norm import reference as norm_reference

Backend = Literal["cudnn", "flash", "sdpa"]


@dataclass(frozen=True)
class Kernels:
    """Switches of the techniques."""

    attention: Backend = "sdpa"
    loss: bool = True
    gelu: bool = True
    norm: bool = True
    products: bool = False  # algorithms of matrix products chosen by measurement, on a GPU
    fp32_residual: bool = False  # the stream between blocks in float32, as autocast keeps it, around products in bf16
    epilogue: bool = False  # bias and GELU inside the products, instead of `gelu`'s kernels; on a GPU


@dataclass(frozen=True)
class FusedPass:
    """What all blocks of one forward pass share."""

    batch: int  # sequences
    kernels: Kernels
    documents: Documents | None = None


@dataclass(frozen=True)
class AttentionCall:
    """The settings of one `QKVAttention`."""

    batch: int  # sequences
    head_size: int
    scale: float
    backend: Backend
    tuned: bool  # products by algorithms that were chosen by measurement


# The residual stream, the output of the last branch, which is not yet added to it, and that branch's bias.
FusedStream = tuple[Tensor, Tensor | None, Tensor | None]
RunBlock = Callable[[Any, Tensor, Tensor | None, Tensor | None, FusedPass], FusedStream]


def fused_loss(
    model: Decoder,
    tokens_bt: Tensor,
    targets_bt: Tensor | None,
    kernels: Kernels,
    dtype: torch.dtype = torch.bfloat16,
    run: RunBlock | None = None,
    document_starts_bt: Tensor | None = None,
) -> Tensor:
    """Return the mean cross-entropy in nats, as `model.loss` does; without targets, logits over the real vocabulary.

    `run` is how a block is called, where that is not a plain call.
    """
    assert fused_model_problem(model.config) is None
    run = run or fused_block
    positions = model.embedding.positions
    assert positions is not None
    documents, places_bt = None, None
    if document_starts_bt is not None:
        ids_bt, places_bt = document_positions(document_starts_bt)
        documents = model.documents(ids_bt)
    stream_dtype = torch.float32 if kernels.fp32_residual else dtype
    x = lookup(tokens_bt, model.embedding.tokens.weight, positions.weight, stream_dtype, places_bt)
    shared = FusedPass(len(tokens_bt), kernels, documents)
    branch: Tensor | None = None
    bias: Tensor | None = None
    for block in model.blocks.values():
        x, branch, bias = run(block, x, branch, bias, shared)
    x, y = _norm(kernels, model.head.norm, x, branch, bias)
    weight = model.head.projection.weight
    vocab = model.config.vocab_size
    if targets_bt is None:
        return F.linear(y, _low(weight, y.dtype)).unflatten(0, tokens_bt.shape)[..., :vocab]
    targets = targets_bt.flatten()
    if kernels.loss:
        return head_loss(y, weight, _low(weight, dtype), targets, vocab, kernels.products)
    return head_loss_reference(y, weight, targets, vocab)


def fused_block(
    block: Any, x_nd: Tensor, branch_nd: Tensor | None, bias_d: Tensor | None, shared: FusedPass
) -> FusedStream:
    """Run one block: add the branch before it to the stream, and return its own last branch without adding it."""
    kernels = shared.kernels
    x, y = _norm(kernels, block.attention_norm, x_nd, branch_nd, bias_d)
    mixed = attend(y, block.attention, shared)
    x, y = _norm(kernels, block.mlp_norm, x, mixed, block.attention.out.bias)
    return x, _mlp(y, block.mlp, kernels), block.mlp.down.bias


def _norm(
    kernels: Kernels, norm: Any, x_nd: Tensor, branch_nd: Tensor | None, bias_d: Tensor | None
) -> tuple[Tensor, Tensor]:
    dtype = torch.bfloat16 if kernels.fp32_residual else x_nd.dtype
    compute = add_norm if kernels.norm else norm_reference
    return compute(x_nd, branch_nd, bias_d, norm.weight, norm.bias, norm.eps, dtype)


def _low(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a parameter in the products' precision."""
    with torch.no_grad():
        return weight.to(dtype)


def _mlp(y_nd: Tensor, mlp: Any, kernels: Kernels) -> Tensor:
    up = mlp.up
    down = mlp.down
    up_low = _low(up.weight, y_nd.dtype)
    down_low = _low(down.weight, y_nd.dtype)
    if kernels.epilogue and y_nd.is_cuda:
        bias_low = _low(up.bias, y_nd.dtype)
        return EpilogueMLP.apply(y_nd, up.weight, up_low, up.bias, bias_low, down.weight, down_low)
    before = linear(y_nd, up.weight, up_low, kernels.products)
    hidden = (bias_gelu if kernels.gelu else gelu_reference)(before, up.bias)
    return linear(hidden, down.weight, down_low, kernels.products)


def attend(y_nd: Tensor, attention: Any, shared: FusedPass) -> Tensor:
    """Return the output of attention, without its bias."""
    qkv = attention.qkv
    out = attention.out
    kernels = shared.kernels
    batch = shared.batch
    if shared.documents is not None:
        packed = linear(y_nd, qkv.weight, _low(qkv.weight, y_nd.dtype), kernels.products)
        packed = add_bias(packed, qkv.bias).view(
            batch, -1, packed.shape[1] // (3 * attention.head_size), 3, attention.head_size
        )
        within = attention.attend(*(part.transpose(1, 2) for part in packed.unbind(3)), shared.documents)
        mixed = within.transpose(1, 2).reshape(len(y_nd), -1)
        return linear(mixed, out.weight, _low(out.weight, y_nd.dtype), kernels.products)
    mixed = QKVAttention.apply(
        y_nd,
        qkv.weight,
        _low(qkv.weight, y_nd.dtype),
        qkv.bias,
        _low(qkv.bias, y_nd.dtype),
        AttentionCall(
            batch=batch,
            head_size=attention.head_size,
            scale=attention.scale,
            backend=kernels.attention,
            tuned=kernels.products,
        ),
    )
    return linear(mixed, out.weight, _low(out.weight, y_nd.dtype), kernels.products)


class QKVAttention(torch.autograd.Function):
    """The product that makes queries, keys and values, and causal attention over them.

    One function, so that its backward pass packs the three gradients for the next products and sums the bias' gradient
    in one kernel, instead of a copy and a reduction.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x_nd: Tensor,
        weight: Tensor,
        low: Tensor,
        bias: Tensor,
        bias_low: Tensor,
        call: AttentionCall,
    ) -> Tensor:
        size = call.head_size
        scale = call.scale
        backend = call.backend
        packed = product(x_nd, low.t(), call.tuned, bias_low)
        q, k, v = packed.view(call.batch, -1, packed.shape[1] // (3 * size), 3, size).unbind(3)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        ctx.backend = backend
        ctx.scale = scale
        ctx.tuned = call.tuned
        wants = any(ctx.needs_input_grad)
        if backend == "cudnn":
            results = torch.ops.aten._scaled_dot_product_cudnn_attention(
                q, k, v, None, wants, 0.0, True, False, scale=scale
            )
        elif backend == "flash":
            results = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True, False, scale=scale)
        else:
            with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
                results = (F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale),)
        out = results[0]
        ctx.sizes = results[4:6] if len(results) > 1 else ()
        ctx.save_for_backward(x_nd, low, packed, out, *(results[i] for i in (1, 2, 3, 6, 7) if len(results) > 1))
        return out.transpose(1, 2).reshape(x_nd.shape[0], -1)

    @staticmethod
    def backward(ctx: Any, dout_nd: Tensor) -> tuple[Any, ...]:
        x_nd, low, packed, out, *rest = ctx.saved_tensors
        batch, heads, length, size = out.shape
        q, k, v = (part.transpose(1, 2) for part in packed.view(batch, length, heads, 3, size).unbind(3))
        dout = dout_nd.view(batch, length, heads, size).transpose(1, 2)
        if ctx.backend == "sdpa":
            dq, dk, dv = _recomputed(q, k, v, dout, ctx.scale)
        else:
            log_sum, starts_q, starts_k, seed, offset = rest
            max_q, max_k = ctx.sizes
            if ctx.backend == "cudnn":
                dq, dk, dv = torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
                    dout,
                    q,
                    k,
                    v,
                    out,
                    log_sum,
                    seed,
                    offset,
                    None,
                    starts_q,
                    starts_k,
                    max_q,
                    max_k,
                    0.0,
                    True,
                    scale=ctx.scale,
                )
            else:
                dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_backward(
                    dout,
                    q,
                    k,
                    v,
                    out,
                    log_sum,
                    starts_q,
                    starts_k,
                    max_q,
                    max_k,
                    0.0,
                    True,
                    seed,
                    offset,
                    scale=ctx.scale,
                )
        dpacked, dbias = pack_qkv(*(part.transpose(1, 2) for part in (dq, dk, dv)))
        dx = product(dpacked, low, ctx.tuned)
        dweight = product_fp32(dpacked.t(), x_nd, ctx.tuned)
        return dx, dweight, None, dbias, None, None


def _recomputed(q: Tensor, k: Tensor, v: Tensor, dout: Tensor, scale: float) -> tuple[Tensor, ...]:
    """Return the gradients of torch's own attention, with whichever kernel it has for this device."""
    with torch.enable_grad():
        leaves = [part.detach().requires_grad_() for part in (q, k, v)]
        out = F.scaled_dot_product_attention(leaves[0], leaves[1], leaves[2], is_causal=True, scale=scale)
    return torch.autograd.grad(out, leaves, dout)
