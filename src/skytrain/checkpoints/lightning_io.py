"""Lightning's checkpoints in the store, in Skytrain's format."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch.plugins.io import CheckpointIO

from ..storage import Store
from .saved import open_checkpoint
from .saving import PendingSave, SaveOptions, Saver, TrainingState
from .tree import join_tensors, split_tensors


class StoreCheckpointIO(CheckpointIO):
    """Lightning's way to save and load under keys of a store (`runs/<run>/checkpoints/step-...`), on every rank.

    A strategy passes tensors by name: `state_dict` maps names to tensors, `optimizer_states` names to slots.
    `load_checkpoint` returns a `SavedTensors` in place of each, from which each rank reads its parts.
    """

    def __init__(self, store: Store, tell: Callable[[str], None] = lambda text: None) -> None:
        self._store = store
        self._saver = Saver(store, tell)

    @property
    def store(self) -> Store:
        return self._store

    @property
    def save_store(self) -> Store:
        """The same store with less patience, because a failed save is tried again while training continues."""
        return self._saver.store

    @property
    def pending(self) -> PendingSave | None:
        return self._saver.pending

    def reserve(self, checkpoint: dict[str, Any]) -> None:
        """Reserve memory for saves of such a checkpoint, while training continues."""
        self._saver.reserve(split_checkpoint(checkpoint).tensors)

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: SaveOptions | None = None
    ) -> None:
        self._saver.save(str(path), split_checkpoint(checkpoint), storage_options or SaveOptions())

    def wait(self) -> None:
        self._saver.wait()

    def load_checkpoint(
        self, path: Any, map_location: Any | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        saved = open_checkpoint(self._store, str(path))
        shares = [join_tensors(share["groups"], {}) for share in saved.state["shares"]]
        return {
            **saved.rest(),
            "state_dict": saved.model,
            "optimizer_states": [
                {"tensors": saved.optimizer(number), "groups": groups}
                for number, groups in enumerate(zip(*shares, strict=True))
            ],
            "average": saved.average,
            "random": saved.random,
        }

    def remove_checkpoint(self, path: Any) -> None:
        raise AssertionError("checkpoints are deleted by skytrain.checkpoints.prune, marker first")

    def teardown(self) -> None:
        self._saver.close()


def split_checkpoint(checkpoint: dict[str, Any]) -> TrainingState:
    """Split Lightning's dictionary into tensors by name and plain data."""
    rest = dict(checkpoint)
    tensors: dict[str, torch.Tensor] = {f"model/{name}": tensor for name, tensor in rest.pop("state_dict").items()}
    groups = []
    for number, optimizer in enumerate(rest.pop("optimizer_states", [])):
        groups.append(optimizer["param_groups"])
        for name, slots in optimizer["state"].items():
            tensors.update({f"optimizer/{number}/{name}/{slot}": value for slot, value in slots.items()})
    tensors.update({f"average/{name}": tensor for name, tensor in rest.pop("average", {}).items()})
    tensors.update({f"random/{name}": tensor for name, tensor in rest.pop("random", {}).items()})
    # Rank 0 saves it, but every rank checks it, so that all of them refuse what cannot be saved.
    plain, in_rest = split_tensors(rest)
    if not dist.is_initialized() or dist.get_rank() == 0:
        tensors.update({f"state{name}": tensor for name, tensor in in_rest.items()})
    return TrainingState(tensors, plain, {"groups": split_tensors(groups)[0]})
