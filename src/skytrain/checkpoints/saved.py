"""An opened checkpoint: its state, and its tensors, which can be read in full or in parts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..storage import Store
from .commits import Commit, find_commit, read_manifest
from .dcp import READS, load
from .errors import USE_ANOTHER, AnotherModel, CheckpointError, DamagedCheckpoint
from .manifest import NATIVE, CheckpointManifest, Piece, SavedTensor
from .ranges import read_exactly
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
        """Fill tensors, or this rank's parts of them, in place. A name may occur more than once."""
        left = list(targets)
        self._check(left)
        while left:
            now, left = dict(left), _later(left)
            load(self.store, self.folder, self.manifest, {self.prefix + name: target for name, target in now.items()})

    def read(self) -> dict[str, Tensor]:
        """Read all of them, in full, on the CPU."""
        tensors = {
            name: torch.empty(tensor.shape, dtype=getattr(torch, tensor.dtype))
            for name, tensor in self.described().items()
        }
        self.read_into(tensors.items())
        return tensors

    def read_one(self, name: str) -> Tensor:
        """Read one of them, in full, on the CPU, without the planning that a model on a mesh needs."""
        name = self.prefix + name
        saved = self.manifest.tensors[name]
        dtype: torch.dtype = getattr(torch, saved.dtype)
        target = torch.empty(saved.shape, dtype=dtype)
        for piece in saved.pieces:
            place = target
            for dim, (offset, length) in enumerate(zip(piece.offsets, piece.sizes, strict=True)):
                place = place.narrow(dim, offset, length)
            data = self._read_piece(name, saved, piece)
            place.copy_(torch.frombuffer(data, dtype=dtype).view(piece.sizes))
        return target

    def _read_piece(self, name: str, saved: SavedTensor, piece: Piece) -> bytes:
        key = f"{self.folder}/{piece.file}"
        for _ in range(READS):
            data = read_exactly(self.store, key, piece.start, saved.piece_bytes(piece))
            if hashlib.sha256(data).hexdigest() == piece.sha256:
                return data
        raise DamagedCheckpoint(
            f"{self.store.url(key)} was altered: the bytes of {name} are not those committed{USE_ANOTHER}"
        )

    def _check(self, targets: Sequence[tuple[str, Tensor]]) -> None:
        there = self.described()
        missing = [name for name, _ in targets if name not in there]
        if missing:
            raise AnotherModel(
                f"{self.url} belongs to another model: it has no {missing[0]}"
                + (f", nor {len(missing) - 1} others of {len(targets)}" if missing[1:] else "")
                + "\n  use the model settings that it was made with"
            )
        for name, target in targets:
            if there[name].shape != tuple(target.shape):
                sizes = " x ".join(map(str, there[name].shape)), " x ".join(map(str, target.shape))
                raise AnotherModel(
                    f"{self.url} belongs to another model or vocabulary: {name} is {sizes[0]} there and {sizes[1]} here\n"
                    "  use the model and tokenizer settings that it was made with"
                )


def _later(pairs: Sequence[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
    """Return all pairs except the last of each name, which `dict` keeps."""
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
    def average(self) -> SavedTensors:
        return self.tensors.below("average/")

    @property
    def weights(self) -> SavedTensors:
        """The weights of the model that was trained: their average where the run keeps one, else the last ones."""
        averages = {f"model/{name}": tensor for name, tensor in self.average.described().items()}
        manifest = replace(self.tensors.manifest, tensors={**self.tensors.manifest.tensors, **averages})
        return replace(self.tensors, manifest=manifest).below("model/")

    @property
    def random(self) -> SavedTensors:
        return self.tensors.below("random/")

    def optimizer(self, number: int) -> SavedTensors:
        return self.tensors.below(f"optimizer/{number}/")

    def rest(self) -> dict[str, Any]:
        """Return the trainer's other state: loops, schedules, callbacks, data position, lineage."""
        names = self.tensors.below("state")
        rest: dict[str, Any] = join_tensors(self.state["rest"], names.read())
        return rest


def open_checkpoint(store: Store, key: str) -> Saved:
    """Open the committed checkpoint in the folder `key` (`step_key(run, step)`)."""
    commit = find_commit(store, key)
    folder, manifest = read_manifest(store, commit)
    if manifest.kind != NATIVE:
        raise CheckpointError(
            f"{store.url(key)} is in {manifest.kind}'s format\n  convert it first: skytrain checkpoints convert"
        )
    return Saved(commit, SavedTensors(store, folder, manifest, ""), manifest.state)
