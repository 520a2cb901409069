"""Optimizers over a model's parameters: how they are grouped, and the classes that torch does not have."""

from __future__ import annotations

from .build import make_optimizer

__all__ = ["make_optimizer"]
