"""Tokens: tokenizers, shards and their manifest, the sample order, and training batches."""

from ..lazy import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
