"""Evaluation: loss on held-out text, and generation (in `generate`)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .loss import LossReport, evaluate_loss

__all__ = ["LossReport", "evaluate_loss"]

_HOMES = {"LossReport": "loss", "evaluate_loss": "loss"}


def __getattr__(name: str) -> Any:
    """torch is loaded only when something that needs it is asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
