"""Serving: an exported folder behind an OpenAI-compatible endpoint, started, watched and ended with vLLM. No torch."""

from ..lazy import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
