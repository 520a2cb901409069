"""Kernels of the fast path: Triton kernels for GPUs, each with a plain torch reference that runs anywhere.

`kernels_available` tells whether the Triton kernels can run on a device; otherwise the references are used. Tests
compare the two.
"""

from .attention import Backend, attend_backward, attend_forward, causal_attention
from .backend import kernels_available
from .cross_entropy import LossTerms, head_loss
from .embedding import lookup
from .experts import experts_mlp, router_logits, sort_by_expert
from .gelu import bias_gelu
from .linear import linear
from .norm import add_norm
from .pack import pack_qkv
from .rms_norm import add_rms_norm
from .rotary import Turn, turn_heads
from .swiglu import gated_mlp

__all__ = [
    "Backend",
    "LossTerms",
    "Turn",
    "add_norm",
    "add_rms_norm",
    "attend_backward",
    "attend_forward",
    "bias_gelu",
    "causal_attention",
    "experts_mlp",
    "gated_mlp",
    "head_loss",
    "kernels_available",
    "linear",
    "lookup",
    "pack_qkv",
    "router_logits",
    "sort_by_expert",
    "turn_heads",
]
