"""The fast path: a decoder's loss through fused kernels, over the same parameters.

Master weights stay in float32; products, the residual stream and activations are bf16; softmax, norms and the loss are
computed in float32; weight gradients leave their products in float32. Each technique has its switch, and with all of
them off this is the plain decoder in bf16. It serves decoders of two shapes: GPT-2's, and that of Llama and its descendants
(RMSNorm before or after, rotary positions, grouped queries, query and key norms, SwiGLU or GeGLU, windows, soft-capping), whose
MLPs may be mixtures of experts. `config.capabilities` says what keeps a model out; the others train through torch.compile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..config import DecoderConfig, fused_model_problem
from .decoder import Decoder
from .documents import Documents, document_positions
from .kernels import (
    Backend,
    LossTerms,
    Turn,
    add_norm,
    add_rms_norm,
    attend_backward,
    attend_forward,
    bias_gelu,
    causal_attention,
    experts_mlp,
    gated_mlp,
    head_loss,
    linear,
    lookup,
    pack_qkv,
    router_logits,
    sort_by_expert,
    turn_heads,
)
from .kernels.cross_entropy import reference as head_loss_reference
from .kernels.gelu import reference as gelu_reference
from .kernels.linear import add_bias, product, product_fp32
from .kernels.mlp import EpilogueMLP
from .kernels.norm import reference as norm_reference
from .kernels.rms_norm import reference as rms_norm_reference
from .kernels.rotary import reference as turn_reference
from .kernels.swiglu import reference as swiglu_reference
from .loss import WithAuxiliary, join_auxiliary
from .norm import RMSNorm
from .rope import rotation


@dataclass(frozen=True)
class Kernels:
    """Switches of the techniques."""

    attention: Backend = "sdpa"
    loss: bool = True
    gelu: bool = True  # the MLP's activation, GELU or SwiGLU
    norm: bool = True  # with query and key norms and rotary positions
    products: bool = False  # algorithms of matrix products chosen by measurement, on a GPU
    fp32_residual: bool = False  # the stream between blocks in float32, as autocast keeps it, around products in bf16
    epilogue: bool = False  # bias and GELU inside the products, instead of `gelu`'s kernels; on a GPU


@dataclass(frozen=True)
class FusedPass:
    """What all blocks of one forward pass share."""

    batch: int  # sequences
    kernels: Kernels
    documents: Documents | None = None  # masks, where documents are kept apart or layers have windows or soft-capping
    separate: bool = False  # whether documents are kept apart
    turns: tuple[Turn, ...] = ()  # rotary positions by layer, where the model has them


@dataclass(frozen=True)
class AttentionCall:
    """The settings of one `QKVAttention`."""

    batch: int  # sequences
    head_size: int
    scale: float
    backend: Backend
    tuned: bool  # products by algorithms that were chosen by measurement


# The residual stream, the output of the last branch, which is not yet added to it, that branch's bias, and the block's auxiliary
# loss in training.
FusedStream = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]
RunBlock = Callable[[Any, Tensor, Tensor | None, Tensor | None, FusedPass], FusedStream]


def fused_loss(
    model: Decoder,
    tokens_bt: Tensor,
    targets_bt: Tensor | None,
    kernels: Kernels,
    dtype: torch.dtype = torch.bfloat16,
    run: RunBlock | None = None,
    document_starts_bt: Tensor | None = None,
) -> WithAuxiliary:
    """Return the mean cross-entropy in nats, as `model.loss` does; without targets, logits over the real vocabulary.

    `run` is how a block is called, where that is not a plain call.
    """
    assert fused_model_problem(model.config) is None
    run = run or fused_block
    positions = model.embedding.positions
    config = model.config
    documents, places_bt = None, None
    if document_starts_bt is not None:
        ids_bt, places_bt = document_positions(document_starts_bt)
        documents = model.documents(ids_bt)
    elif config.attention_softcap is not None or _has_windows(config, tokens_bt.shape[1]):
        documents = model.documents(torch.zeros_like(tokens_bt))  # a row is one document
    stream_dtype = torch.float32 if kernels.fp32_residual else dtype
    turns = () if positions is not None else _turns(config, tokens_bt, places_bt)
    table = None if positions is None else positions.weight
    x = lookup(tokens_bt, model.embedding.tokens.weight, table, stream_dtype, places_bt)
    if config.scale_embedding:
        x = x * config.width**0.5
    shared = FusedPass(
        batch=len(tokens_bt),
        kernels=kernels,
        documents=documents,
        separate=document_starts_bt is not None,
        turns=turns,
    )
    branch: Tensor | None = None
    bias: Tensor | None = None
    auxiliary: Tensor | None = None
    for block in model.blocks.values():
        x, branch, bias, own = run(block, x, branch, bias, shared)
        if own is not None:
            auxiliary = own if auxiliary is None else auxiliary + own
    x, y = _norm(kernels, model.head.norm, x, branch, bias)
    weight = model.head.projection.weight
    if targets_bt is None:
        logits = F.linear(y, _low(weight, y.dtype)).unflatten(0, tokens_bt.shape)[..., : config.vocab_size]
        cap = config.logit_softcap
        return logits if cap is None else torch.tanh(logits / cap) * cap
    terms = LossTerms(config.vocab_size, config.logit_softcap, model.loss_settings.z_loss if model.training else 0.0)
    targets = targets_bt.flatten()
    if kernels.loss:
        loss = head_loss(y, weight, _low(weight, dtype), targets, terms, kernels.products)
    else:
        loss = head_loss_reference(y, weight, targets, terms)
    return join_auxiliary(loss, auxiliary)


def _has_windows(config: DecoderConfig, length: int) -> bool:
    windows = (config.window_of(layer) for layer in range(config.layers))
    return any(window is not None and window < length for window in windows)


def _turns(config: DecoderConfig, tokens_bt: Tensor, places_bt: Tensor | None) -> tuple[Turn, ...]:
    """Return the rotary positions of each layer; those of a layer without any turn by nothing."""
    length = tokens_bt.shape[1]
    places = None if places_bt is None else places_bt.flatten()
    kinds = [config.rope_of(layer) for layer in range(config.layers)]
    turns: dict[str, Turn] = {}
    for kind in set(kinds):
        cos, sin = rotation(config, 0, length, tokens_bt.device, window=kind == "window")
        if kind == "none":
            cos, sin = torch.ones_like(cos), torch.zeros_like(sin)
        turns[kind] = Turn(cos, sin, length, places)
    return tuple(turns[kind] for kind in kinds)


def fused_block(
    block: Any, x_nd: Tensor, branch_nd: Tensor | None, bias_d: Tensor | None, shared: FusedPass
) -> FusedStream:
    """Run one block: add the branch before it to the stream, and return its own last branch without adding it."""
    kernels = shared.kernels
    x, y = _norm(kernels, block.attention_norm, x_nd, branch_nd, bias_d)
    mixed = _normalized(kernels, block.attention_post_norm, attend(y, block.attention, shared))
    x, y = _norm(kernels, block.mlp_norm, x, mixed, block.attention.out.bias)
    if block.mixture is not None:
        added, auxiliary = _mixture(y, block.mixture, shared)
        return x, _normalized(kernels, block.mlp_post_norm, added), None, auxiliary
    added = _normalized(kernels, block.mlp_post_norm, _mlp(y, block.mlp, kernels))
    return x, added, block.mlp.down.bias, None


def _norm(
    kernels: Kernels, norm: Any, x_nd: Tensor, branch_nd: Tensor | None, bias_d: Tensor | None
) -> tuple[Tensor, Tensor]:
    dtype = torch.bfloat16 if kernels.fp32_residual else x_nd.dtype
    if norm is None:  # only what branches return is normalized
        x_nd = x_nd if branch_nd is None else x_nd + branch_nd
        return x_nd, x_nd.to(dtype)
    if isinstance(norm, RMSNorm):
        add = add_rms_norm if kernels.norm else rms_norm_reference
        return add(x_nd, branch_nd, _gain(norm), norm.eps, dtype)
    compute = add_norm if kernels.norm else norm_reference
    return compute(x_nd, branch_nd, bias_d, norm.weight, norm.bias, norm.eps, dtype)


def _normalized(kernels: Kernels, norm: RMSNorm | None, branch_nd: Tensor) -> Tensor:
    """Return what a branch adds, normalized where the model does that after the branch."""
    if norm is None:
        return branch_nd
    compute = add_rms_norm if kernels.norm else rms_norm_reference
    return compute(branch_nd, None, _gain(norm), norm.eps, branch_nd.dtype)[1]


def _gain(norm: RMSNorm) -> Tensor:
    return norm.weight.float() + 1.0 if norm.plus_one else norm.weight


def _low(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a parameter in the products' precision."""
    with torch.no_grad():
        return weight.to(dtype)


def _mlp(y_nd: Tensor, mlp: Any, kernels: Kernels) -> Tensor:
    up = mlp.up
    down = mlp.down
    down_low = _low(down.weight, y_nd.dtype)
    if mlp.gate is not None:
        if kernels.gelu:
            gelu = mlp.activation.name == "gelu_tanh"
            return gated_mlp(y_nd, mlp.gate.weight, up.weight, down.weight, down_low, kernels.products, gelu)
        pair = [linear(y_nd, each.weight, _low(each.weight, y_nd.dtype), kernels.products) for each in (mlp.gate, up)]
        hidden = swiglu_reference(torch.cat(pair, dim=1), mlp.activation.name == "gelu_tanh")
        return linear(hidden, down.weight, down_low, kernels.products)
    up_low = _low(up.weight, y_nd.dtype)
    if kernels.epilogue and y_nd.is_cuda:
        bias_low = _low(up.bias, y_nd.dtype)
        return EpilogueMLP.apply(y_nd, up.weight, up_low, up.bias, bias_low, down.weight, down_low)
    before = linear(y_nd, up.weight, up_low, kernels.products)
    hidden = (bias_gelu if kernels.gelu else gelu_reference)(before, up.bias)
    return linear(hidden, down.weight, down_low, kernels.products)


def _mixture(y_nd: Tensor, mixture: Any, shared: FusedPass) -> tuple[Tensor, Tensor | None]:
    """Return the output of a mixture of experts and, in training, its router's auxiliary loss."""
    logits_ne = router_logits(y_nd, mixture.router.weight)
    routing = mixture.router.route(logits_ne.unflatten(0, (shared.batch, -1)))
    experts = mixture.experts
    experts.count_served(torch.full((), routing.experts_nk.numel(), device=y_nd.device))
    order = sort_by_expert(routing.experts_nk, mixture.router.settings.count)
    matrices = experts.gate.weight, experts.up.weight, experts.down.weight
    added = experts_mlp(y_nd, routing.weights_nk, matrices, order, shared.kernels.gelu)
    if mixture.shared is not None:
        added = added + _mlp(y_nd, mixture.shared, shared.kernels)
    return added, routing.auxiliary


def attend(y_nd: Tensor, attention: Any, shared: FusedPass) -> Tensor:
    """Return the output of attention, without its bias."""
    out = attention.out
    if shared.turns:
        mixed = _turned_attention(y_nd, attention, shared, shared.turns[attention.layer])
    elif shared.documents is not None:
        mixed = _within_documents(y_nd, attention, shared, shared.documents)
    else:
        qkv = attention.qkv
        call = AttentionCall(
            batch=shared.batch,
            head_size=attention.head_size,
            scale=attention.scale,
            backend=shared.kernels.attention,
            tuned=shared.kernels.products,
        )
        low, bias_low = _low(qkv.weight, y_nd.dtype), _low(qkv.bias, y_nd.dtype)
        mixed = QKVAttention.apply(y_nd, qkv.weight, low, qkv.bias, bias_low, call)
    return linear(mixed, out.weight, _low(out.weight, y_nd.dtype), shared.kernels.products)


def _packed(y_nd: Tensor, qkv: Any, kernels: Kernels) -> Tensor:
    packed = linear(y_nd, qkv.weight, _low(qkv.weight, y_nd.dtype), kernels.products)
    return packed if qkv.bias is None else add_bias(packed, qkv.bias)


def _within_documents(y_nd: Tensor, attention: Any, shared: FusedPass, documents: Documents) -> Tensor:
    packed = _packed(y_nd, attention.qkv, shared.kernels)
    packed = packed.view(shared.batch, -1, packed.shape[1] // (3 * attention.head_size), 3, attention.head_size)
    within = attention.attend(*(part.transpose(1, 2) for part in packed.unbind(3)), documents)
    return within.transpose(1, 2).reshape(len(y_nd), -1)


def _turned_attention(y_nd: Tensor, attention: Any, shared: FusedPass, turn: Turn) -> Tensor:
    """Return attention of queries and keys that are normalized, where the model does that, and turned by their positions."""
    kernels = shared.kernels
    packed = _packed(y_nd, attention.qkv, kernels)
    groups = packed.shape[1] // ((attention.queries_per_group + 2) * attention.head_size)
    norms = attention.q_norm, attention.k_norm
    if norms[0] is not None and not attention.norms_heads:
        packed, norms = _normalized_projections(packed, attention, kernels), (None, None)
    q_gain, k_gain = (None if norm is None else _gain(norm) for norm in norms)
    eps = norms[0].eps if norms[0] is not None else 0.0
    heads = (turn_heads if kernels.norm else turn_reference)(packed, q_gain, k_gain, eps, turn, groups)
    q, k, v = (part.unflatten(0, (shared.batch, -1)) for part in heads)
    if shared.documents is None or not (shared.separate or attention.window or attention.softcap):
        return causal_attention(q, k, v, attention.scale, kernels.attention).reshape(len(y_nd), -1)
    within = attention.attend(*(part.transpose(1, 2) for part in (q, k, v)), shared.documents)
    return within.transpose(1, 2).reshape(len(y_nd), -1)


def _normalized_projections(packed_nr: Tensor, attention: Any, kernels: Kernels) -> Tensor:
    """Return the packed queries, keys and values with queries and keys normalized over all heads (OLMo 2)."""
    parts = packed_nr.unflatten(1, (-1, attention.queries_per_group + 2, attention.head_size))
    q, k, v = parts[:, :, :-2], parts[:, :, -2:-1], parts[:, :, -1:]
    q, k = (
        _normalized(kernels, norm, x.reshape(len(x), -1)).view(x.shape)
        for norm, x in ((attention.q_norm, q), (attention.k_norm, k))
    )
    return torch.cat((q, k, v), dim=2).flatten(1)


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
        packed = product(x_nd, low.t(), call.tuned, bias_low)
        q, k, v = packed.view(call.batch, -1, packed.shape[1] // (3 * size), 3, size).unbind(3)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        out, (tensors, ctx.sizes) = attend_forward(q, k, v, call.scale, call.backend, any(ctx.needs_input_grad))
        ctx.call = call
        ctx.save_for_backward(x_nd, low, packed, out, *tensors)
        return out.transpose(1, 2).reshape(x_nd.shape[0], -1)

    @staticmethod
    def backward(ctx: Any, dout_nd: Tensor) -> tuple[Any, ...]:
        x_nd, low, packed, out, *tensors = ctx.saved_tensors
        call: AttentionCall = ctx.call
        batch, heads, length, size = out.shape
        q, k, v = (part.transpose(1, 2) for part in packed.view(batch, length, heads, 3, size).unbind(3))
        dout = dout_nd.view(batch, length, heads, size).transpose(1, 2)
        gradients = attend_backward(dout, q, k, v, out, (tensors, ctx.sizes), call.scale, call.backend)
        dpacked, dbias = pack_qkv(*(part.transpose(1, 2) for part in gradients))
        dx = product(dpacked, low, call.tuned)
        dweight = product_fp32(dpacked.t(), x_nd, call.tuned)
        return dx, dweight, None, dbias, None, None
