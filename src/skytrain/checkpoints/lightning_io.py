"""Lightning's checkpoints kept in the store: the Trainer saves and resumes as ever, the bytes are ours."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from lightning.pytorch.plugins.io import CheckpointIO
from safetensors.torch import load_file, save_file

from ..storage import Store
from .folder import FolderReader, write_folder
from .tree import join_tensors, split_tensors

MODEL = "model.safetensors"  # apart from the rest, so that evaluation and export read the weights alone
TRAINING = "training.safetensors"
STATE = "state.json"


class StoreCheckpointIO(CheckpointIO):
    """Reads and writes checkpoint folders under keys of a store (`runs/<run>/checkpoints/step-...`)."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        checkpoint = dict(checkpoint)
        weights, weight_tensors = split_tensors(checkpoint.pop("state_dict"))
        rest, rest_tensors = split_tensors(checkpoint)
        with tempfile.TemporaryDirectory(prefix="skytrain-checkpoint-") as scratch:
            files = {name: Path(scratch) / name for name in (MODEL, TRAINING, STATE)}
            save_file({name.removeprefix("/"): tensor for name, tensor in weight_tensors.items()}, files[MODEL])
            save_file(rest_tensors, files[TRAINING])
            files[STATE].write_text(json.dumps({"state_dict": weights, "rest": rest}))
            write_folder(self._store, str(path), files)

    def load_checkpoint(
        self, path: Any, map_location: Any | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        with FolderReader(self._store, str(path)) as folder:
            state = json.loads(folder.fetch(STATE).read_text())
            weights = {f"/{name}": tensor for name, tensor in load_file(folder.fetch(MODEL)).items()}
            checkpoint = join_tensors(state["rest"], load_file(folder.fetch(TRAINING)))
        checkpoint["state_dict"] = join_tensors(state["state_dict"], weights)
        return checkpoint

    def remove_checkpoint(self, path: Any) -> None:
        self._store.delete_all(f"{path}/")
