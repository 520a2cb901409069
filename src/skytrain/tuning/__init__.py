"""Tuning: the best learning rate that a budget can buy, from trials, a ledger of dollars, strategies and fits."""

from ..lazy import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
