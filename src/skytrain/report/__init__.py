"""Report: what a run looks like to a person. So far: its loss curve in the terminal."""

from ..lazy import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
