"""Models: one configurable decoder, its weight formats, and the contract by which any other model plugs in.

The names below load torch when they are asked for, not when this package is imported.
"""

from ..lazy import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
