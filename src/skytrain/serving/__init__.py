"""Serves an exported folder behind an OpenAI-compatible endpoint: starts, watches and ends vLLM. It needs no torch."""

from ..lazy import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
