"""Evaluation: a trained model on its device, its loss on held-out text, and generation (in `generate`)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .loading import PlacedModel, place_model
    from .loss import HeldOut, LossReport, evaluate_loss
    from .whole_model import WholeModel

__all__ = ["HeldOut", "LossReport", "PlacedModel", "WholeModel", "evaluate_loss", "place_model"]

_HOMES = {
    "HeldOut": "loss",
    "LossReport": "loss",
    "PlacedModel": "loading",
    "WholeModel": "whole_model",
    "evaluate_loss": "loss",
    "place_model": "loading",
}


def __getattr__(name: str) -> Any:
    """torch is loaded only when something that needs it is asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
