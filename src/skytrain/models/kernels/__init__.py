"""Kernels of the fast path: Triton kernels for GPUs, each with a plain torch reference that runs anywhere.

`kernels_available` tells whether the Triton kernels can run on a device; otherwise the references are used. Tests
compare the two.
"""

from .backend import kernels_available
from .cross_entropy import head_loss
from .embedding import lookup
from .gelu import bias_gelu
from .linear import linear
from .norm import add_norm
from .pack import pack_qkv

__all__ = ["add_norm", "bias_gelu", "head_loss", "kernels_available", "linear", "lookup", "pack_qkv"]
