"""Export: a trained model in the forms that other programs load. Loads torch when a name is asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .hf import export_hf
    from .llmc import export_llmc

__all__ = ["export_hf", "export_llmc"]

_HOMES = {"export_hf": "hf", "export_llmc": "llmc"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
