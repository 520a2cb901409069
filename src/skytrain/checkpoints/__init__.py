"""Checkpoints in the store: tensors and JSON, never a pickle; sharded, verified, committed last."""

from ..lazy import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
