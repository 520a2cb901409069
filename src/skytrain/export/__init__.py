"""Export: a trained model in the forms that other programs load. Loads torch when a name is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .hf import export_hf

__all__ = ["export_hf"]


def __getattr__(name: str) -> Any:
    if name == "export_hf":
        from .hf import export_hf

        return export_hf
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
