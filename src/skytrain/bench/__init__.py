"""Measures speed, memory and scaling on this machine for `skytrain bench`, and the load that an endpoint bears."""

from ..lazy import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
