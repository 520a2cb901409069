"""Tokens: tokenizers, shards with their manifest, the order of samples, and the batches that training reads."""

from ..lazy import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
