"""A committed checkpoint, opened: its state, and its tensors, which are read whole or in parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..storage import Store
from .commits import Commit, find_commit, read_manifest
from .dcp import load
from .errors import AnotherModel, CheckpointError
from .manifest import NATIVE, CheckpointManifest, SavedTensor
from .pieces import read_tensor
from .tree import join_tensors


@dataclass(frozen=True)
class SavedTensors:
    """The tensors of a checkpoint whose names start with a prefix."""

    store: Store
    folder: str
    manifest: CheckpointManifest
    prefix: str

    @property
    def url(self) -> str:
        return self.store.url(self.folder)

    def below(self, prefix: str) -> SavedTensors:
        return SavedTensors(self.store, self.folder, self.manifest, self.prefix + prefix)

    def described(self) -> dict[str, SavedTensor]:
        return {
            name.removeprefix(self.prefix): tensor
            for name, tensor in self.manifest.tensors.items()
            if name.startswith(self.prefix)
        }

    def read_into(self, targets: Iterable[tuple[str, Tensor]]) -> None:
        """Fills tensors, or this rank's parts of them, in place. A name may occur more than once."""
        left = list(targets)
        self._check(left)
        while left:
            now, left = dict(left), _later(left)
            load(self.store, self.folder, self.manifest, {self.prefix + name: target for name, target in now.items()})

    def read(self) -> dict[str, Tensor]:
        """Reads all of them, whole, on the CPU."""
        found = {
            name: torch.empty(tensor.shape, dtype=getattr(torch, tensor.dtype))
            for name, tensor in self.described().items()
        }
        self.read_into(found.items())
        return found

    def read_one(self, name: str) -> Tensor:
        """Reads one of them, whole, on the CPU."""
        return read_tensor(self.store, self.folder, self.prefix + name, self.manifest.tensors[self.prefix + name])

    def _check(self, targets: Sequence[tuple[str, Tensor]]) -> None:
        there = self.described()
        missing = [name for name, _ in targets if name not in there]
        if missing:
            raise AnotherModel(
                f"{self.url} is of another model: it has no {missing[0]}"
                + (f", nor {len(missing) - 1} others of {len(targets)}" if missing[1:] else "")
                + "\n  use the model settings that it was made with"
            )
        for name, target in targets:
            if there[name].shape != tuple(target.shape):
                sizes = " x ".join(map(str, there[name].shape)), " x ".join(map(str, target.shape))
                raise AnotherModel(
                    f"{self.url} is of another model or vocabulary: {name} is {sizes[0]} there and {sizes[1]} here\n"
                    "  use the model and tokenizer settings that it was made with"
                )


def _later(pairs: Sequence[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
    """All pairs except the last of each name, which `dict` keeps."""
    last = {name: index for index, (name, _) in enumerate(pairs)}
    return [pair for index, pair in enumerate(pairs) if last[pair[0]] != index]


@dataclass(frozen=True)
class Saved:
    """An opened checkpoint in Skytrain's format."""

    commit: Commit
    tensors: SavedTensors
    state: Mapping[str, Any]  # everything that is not a tensor

    @property
    def model(self) -> SavedTensors:
        return self.tensors.below("model/")

    @property
    def random(self) -> SavedTensors:
        return self.tensors.below("random/")

    def optimizer(self, number: int) -> SavedTensors:
        return self.tensors.below(f"optimizer/{number}/")

    def rest(self) -> dict[str, Any]:
        """The trainer's other state: loops, schedules, callbacks, data position, lineage."""
        names = self.tensors.below("state")
        rest: dict[str, Any] = join_tensors(self.state["rest"], names.read())
        return rest


def open_checkpoint(store: Store, key: str) -> Saved:
    """The committed checkpoint in the folder `key` (`step_key(run, step)`)."""
    commit = find_commit(store, key)
    folder, manifest = read_manifest(store, commit)
    if manifest.kind != NATIVE:
        raise CheckpointError(
            f"{store.url(key)} is in {manifest.kind}'s own format\n  convert it first: skytrain checkpoints convert"
        )
    return Saved(commit, SavedTensors(store, folder, manifest, ""), manifest.state)
