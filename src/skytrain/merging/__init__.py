"""Merges trained models into one, with provenance. torch is imported when a public name is first used."""

from ..lazy import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
