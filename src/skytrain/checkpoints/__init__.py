"""Checkpoints in the store: tensors and JSON, never a pickle; sharded, verified, and committed last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .commits import Commit, committed, committed_steps, step_key, write_validation
from .errors import AnotherModel, CheckpointError, Damaged, SaveDenied, SaveFailed, TakenOver
from .retention import Keep, prune

if TYPE_CHECKING:
    from .lightning_io import StoreCheckpointIO
    from .loading import LoadedModel, choose_checkpoint, load_model, load_weights
    from .saved import Saved, SavedTensors, open_checkpoint
    from .saving import SaveOptions, write_checkpoint

__all__ = [
    "AnotherModel",
    "CheckpointError",
    "Commit",
    "Damaged",
    "Keep",
    "LoadedModel",
    "SaveDenied",
    "SaveFailed",
    "SaveOptions",
    "Saved",
    "SavedTensors",
    "StoreCheckpointIO",
    "TakenOver",
    "choose_checkpoint",
    "committed",
    "committed_steps",
    "load_model",
    "load_weights",
    "open_checkpoint",
    "prune",
    "step_key",
    "write_checkpoint",
    "write_validation",
]

_HOMES = {
    "LoadedModel": "loading",
    "SaveOptions": "saving",
    "Saved": "saved",
    "SavedTensors": "saved",
    "StoreCheckpointIO": "lightning_io",
    "choose_checkpoint": "loading",
    "load_model": "loading",
    "load_weights": "loading",
    "open_checkpoint": "saved",
    "write_checkpoint": "saving",
}


def __getattr__(name: str) -> Any:
    """torch is loaded only when something that needs it is asked for."""
    import importlib

    if name in _HOMES:
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(name)
