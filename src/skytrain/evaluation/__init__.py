"""Evaluation: a trained model on its device, its loss on held-out text, and generation (in `generate`)."""

from ..lazy import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
