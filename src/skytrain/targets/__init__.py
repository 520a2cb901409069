"""Where jobs run: one folder for each target, and what the targets share."""

from ..lazy import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
