"""Parallelism: the function that spreads a model over a mesh of processes, and the Lightning strategies around it."""

from ..lazy import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
