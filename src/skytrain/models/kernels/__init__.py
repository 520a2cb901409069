"""Kernels of the fast path. Each is a Triton kernel for a GPU and a plain torch reference that runs anywhere; tests compare the two.

`kernels_available` says whether the Triton forms can run on a device; everything here falls back to the references.
"""

from .backend import kernels_available
from .cross_entropy import head_loss
from .embedding import lookup
from .gelu import bias_gelu
from .linear import linear
from .norm import add_norm
from .pack import pack_qkv

__all__ = ["add_norm", "bias_gelu", "head_loss", "kernels_available", "linear", "lookup", "pack_qkv"]
