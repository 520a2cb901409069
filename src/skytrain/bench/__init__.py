"""Bench: what `skytrain bench` measures: speed, memory and scaling on this machine."""

from ..lazy import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
