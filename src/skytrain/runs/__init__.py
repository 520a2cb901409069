"""Runs: what was asked for, each attempt at it, what it costs, its metrics and logs, and how progress is reported."""

from ..lazy import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
