"""Checkpoints in the store: tensors and JSON, never a pickle; verified, and committed last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .folder import committed_steps, prune, step_key

if TYPE_CHECKING:
    from .lightning_io import StoreCheckpointIO
    from .loading import LoadedModel, load_model

__all__ = ["LoadedModel", "StoreCheckpointIO", "committed_steps", "load_model", "prune", "step_key"]


def __getattr__(name: str) -> Any:
    """torch is loaded only when something that needs it is asked for."""
    if name == "StoreCheckpointIO":
        from .lightning_io import StoreCheckpointIO

        return StoreCheckpointIO
    if name in {"LoadedModel", "load_model"}:
        from . import loading

        return getattr(loading, name)
    raise AttributeError(name)
