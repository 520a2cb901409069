"""Writes a checkpoint tensor by tensor, for weights that are computed one after another and never all in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .commits import Commit, commit
from .manifest import CheckpointManifest, Piece, SavedFile, SavedTensor
from .ranges import ALIGNED_BYTES
from .saving import SaveTarget

PIECE_BYTES = 16 << 20  # each has a hash, so this much is read for any part of it
FILE_BYTES = 16 << 20  # small tensors share a file up to this size


@dataclass
class _OpenFile:
    """Tensors that go into the same file; they stay in memory until it is written."""

    name: str
    buffers: list[memoryview] = field(default_factory=list)
    bytes: int = 0

    def add(self, data: memoryview) -> int:
        """Add the data and return its position in the file."""
        padding = -self.bytes % ALIGNED_BYTES
        start = self.bytes + padding
        self.buffers += [memoryview(bytes(padding)), data]
        self.bytes = start + data.nbytes
        return start


def write_streamed(target: SaveTarget, tensors: Iterable[tuple[str, Tensor]], rest: dict[str, object]) -> Commit:
    """Write named tensors as they come, then commit them with the state `rest`.

    One tensor, or a few small ones, are in memory at a time.
    """
    store = target.store
    files: dict[str, SavedFile] = {}
    saved: dict[str, SavedTensor] = {}
    file = _OpenFile(_file_name(0))

    def write() -> None:
        nonlocal file
        if file.buffers:
            store.write_parts(f"{target.folder}/{file.name}", file.buffers)
            files[file.name] = SavedFile(file.bytes)
            file = _OpenFile(_file_name(len(files)))

    for name, tensor in tensors:
        values = tensor.detach().cpu().contiguous()
        if file.bytes and file.bytes + values.nbytes > FILE_BYTES:
            write()
        data = memoryview(values.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
        start = file.add(data)
        dtype = str(values.dtype).removeprefix("torch.")
        pieces = tuple(_pieces(values, data, file.name, start))
        saved[name] = SavedTensor(dtype, tuple(values.shape), pieces)
        del values, data, tensor  # before the next one is computed
        if file.bytes > FILE_BYTES:
            write()
    write()
    manifest = CheckpointManifest(files, saved, {"rest": rest, "shares": []})
    return commit(store, target.key, target.options.attempt, target.name, manifest)


def _file_name(number: int) -> str:
    return f"part-{number:05d}.bin"


def _pieces(values: Tensor, data: memoryview, file: str, start: int) -> Iterator[Piece]:
    """Yield blocks of rows, each with its hash."""
    rows = values.size(0) if values.ndim else 1
    row_bytes = data.nbytes // rows
    together = max(1, PIECE_BYTES // max(1, row_bytes))
    for first in range(0, rows, together):
        count = min(together, rows - first)
        offsets = [0] * values.ndim
        sizes = list(values.shape)
        if values.ndim:
            offsets[0] = first
            sizes[0] = count
        block = data[first * row_bytes : (first + count) * row_bytes]
        digest = hashlib.sha256(block).hexdigest()
        yield Piece(
            offsets=tuple(offsets), sizes=tuple(sizes), file=file, start=start + first * row_bytes, sha256=digest
        )
