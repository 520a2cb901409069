"""What a person sees: curves in the terminal, and the pages of a run, a merge and a sweep."""

from ..lazy import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
