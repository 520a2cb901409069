"""A checkpoint's manifest: every tensor, its stored pieces with their hashes, and all state that is not a tensor.

It is JSON, so reading it executes no code.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..storage import data_of, parse_object
from .errors import ANOTHER, USE_ANOTHER, CheckpointError, DamagedCheckpoint, damage_of_checkpoint

FORMAT = 2
NATIVE = "skytrain"
DEEPSPEED = "deepspeed"
ITEM_BYTES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}


@dataclass(frozen=True)
class Piece:
    """A block of a tensor, stored in one range of one file."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    start: int
    sha256: str


@dataclass(frozen=True)
class SavedTensor:
    """A tensor and the pieces in which it is stored."""

    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]

    def piece_bytes(self, piece: Piece) -> int:
        return math.prod(piece.sizes) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class SavedFile:
    """A file of a checkpoint. `sha256` is None if it consists of pieces, each of which has a hash."""

    bytes: int
    sha256: str | None = None


@dataclass(frozen=True)
class HashedRange:
    """A range of a file with the hash of its bytes."""

    file: str
    start: int
    end: int
    sha256: str
    name: str  # the tensor, or the file


@dataclass(frozen=True)
class CheckpointManifest:
    """The contents of a checkpoint; `state` is everything that is not a tensor."""

    files: Mapping[str, SavedFile]
    tensors: Mapping[str, SavedTensor] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)
    kind: str = NATIVE

    @property
    def total_bytes(self) -> int:
        return sum(file.bytes for file in self.files.values())

    def ranges(self) -> Iterator[HashedRange]:
        """Yield every range of a file that has a hash."""
        for name, file in self.files.items():
            if file.sha256 is not None:
                yield HashedRange(file=name, start=0, end=file.bytes, sha256=file.sha256, name=name)
        for name, tensor in self.tensors.items():
            for piece in tensor.pieces:
                end = piece.start + tensor.piece_bytes(piece)
                yield HashedRange(file=piece.file, start=piece.start, end=end, sha256=piece.sha256, name=name)

    def to_bytes(self) -> bytes:
        files = list(self.files)
        numbers = {name: number for number, name in enumerate(files)}
        return json.dumps(
            {
                "format": FORMAT,
                "kind": self.kind,
                "files": [[name, self.files[name].bytes, self.files[name].sha256] for name in files],
                "tensors": {
                    name: {
                        "dtype": tensor.dtype,
                        "shape": tensor.shape,
                        "pieces": [
                            [piece.offsets, piece.sizes, numbers[piece.file], piece.start, piece.sha256]
                            for piece in tensor.pieces
                        ],
                    }
                    for name, tensor in self.tensors.items()
                },
                "state": self.state,
            },
            separators=(",", ":"),
        ).encode()


def parse_manifest(data: bytes, url: str) -> CheckpointManifest:
    with damage_of_checkpoint(), data_of(url, ANOTHER):
        fields = parse_object(data, url, remedy=ANOTHER)
        check_format(fields.get("format"), url)
        files = {name: SavedFile(int(size), sha256) for name, size, sha256 in fields["files"]}
        names = list(files)
        tensors = {
            name: SavedTensor(
                tensor["dtype"],
                tuple(tensor["shape"]),
                tuple(
                    Piece(
                        offsets=tuple(offsets), sizes=tuple(sizes), file=names[number], start=int(start), sha256=sha256
                    )
                    for offsets, sizes, number, start, sha256 in tensor["pieces"]
                ),
            )
            for name, tensor in fields["tensors"].items()
        }
        unknown = sorted({tensor.dtype for tensor in tensors.values()} - set(ITEM_BYTES))
        if unknown:
            raise CheckpointError(
                f"{url} has tensors of type {', '.join(unknown)}, which this version does not support"
            )
        return CheckpointManifest(files, tensors, fields["state"], fields["kind"])


def check_format(version: object, url: str) -> None:
    """Raise CheckpointError unless `version` is the format that this version of Skytrain reads."""
    if not isinstance(version, int) or version < 1:
        raise DamagedCheckpoint(f"{url} does not name a checkpoint format{USE_ANOTHER}")
    if version > FORMAT:
        raise CheckpointError(f"{url} has format {version}; this version reads {FORMAT}\n  use a newer Skytrain")
    if version < FORMAT:
        raise CheckpointError(
            f"{url} has format {version}, of an older Skytrain; this version reads {FORMAT}\n"
            "  export it with the version that made it, or train again"
        )
