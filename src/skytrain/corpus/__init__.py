"""Documents: sources, rules and the parquet parts between raw text and tokens."""

from ..lazy import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
