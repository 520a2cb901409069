"""Skytrain: pretrain language models on AWS inside a budget of dollars."""

from .lazy import public_names

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = public_names(__name__, __file__)
