"""Parallelism: the job's processes, the mesh they form, and the one function and one Lightning strategy that apply it to a model."""

from ..lazy import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
