"""Tables of small records in the store, written and read by tasks. A table is a list of files by block or partition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...storage import read_numbers
from .place import CorpusPlace

FILE_BYTES = 32 << 20
# The columns that a task yields for each file of a table that it writes.
FILES = "block int, piece int, rows long, number long"

PAIR = np.dtype([("a", np.int64), ("b", np.int64)])
NUMBER = np.dtype([("number", np.int64)])


@dataclass(frozen=True)
class RecordTable:
    """A table. `files` are (block, piece, rows), a block's pieces in order; `total` sums its writers' numbers."""

    name: str
    files: tuple[tuple[int, int, int], ...]
    total: int = 0

    @property
    def rows(self) -> int:
        return sum(rows for _, _, rows in self.files)

    def blocks(self) -> list[int]:
        return sorted({block for block, _, _ in self.files})

    def read(self, place: CorpusPlace, block: int, dtype: np.dtype) -> Iterator[np.ndarray]:
        for number, piece, _ in self.files:
            if number == block:
                yield read_numbers(place.store, _key(place, self.name, block, piece), dtype)

    def read_all(self, place: CorpusPlace, block: int, dtype: np.dtype) -> np.ndarray:
        return np.concatenate([np.empty(0, dtype), *self.read(place, block, dtype)])

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "files": self.files, "total": str(self.total)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> RecordTable:
        return cls(values["name"], tuple(tuple(file) for file in values["files"]), int(values["total"]))


class TableWriter:
    """A writer of records, one block after another, in files of bounded size."""

    def __init__(self, place: CorpusPlace, name: str, dtype: np.dtype, *, unique: bool = False) -> None:
        self.place = place
        self.name = name
        self.dtype = dtype
        self.unique = unique
        self._block = -1
        self._piece = 0
        self._buffer = [np.empty(0, dtype)]
        self._bytes = 0
        self._last: np.ndarray | None = None

    def add(self, block: int, records: np.ndarray, total: int = 0) -> Iterator[Any]:
        """Add records, and yield a row for each file that was written."""
        if block != self._block:
            yield from self.finish()
            self._block = block
            self._piece = 0
            self._last = None
        if self.unique and len(records):
            new = np.ones(len(records), np.bool_)
            new[1:] = records[1:] != records[:-1]
            new[0] = self._last is None or bool(records[0] != self._last)
            self._last = records[-1]
            records = records[new]
        self._buffer.append(records)
        self._bytes += records.nbytes
        if self._bytes >= FILE_BYTES:
            yield from self.finish(total)
        elif total:
            yield file_row(block, -1, 0, total)

    def finish(self, total: int = 0) -> Iterator[Any]:
        records = np.concatenate(self._buffer)
        self._buffer = [np.empty(0, self.dtype)]
        self._bytes = 0
        if len(records) or total:
            if len(records):
                self.place.store.write(_key(self.place, self.name, self._block, self._piece), records.tobytes())
            yield file_row(self._block, self._piece if len(records) else -1, len(records), total)
            self._piece += 1


def file_row(block: int, piece: int, rows: int, number: int) -> Any:
    """Return one row of FILES. A piece of -1 stands for a number to sum without a file."""
    import pyarrow as pa

    kinds = (pa.int32(), pa.int32(), pa.int64(), pa.int64())
    arrays = [pa.array([value], kind) for value, kind in zip((block, piece, rows, number), kinds, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, ["block", "piece", "rows", "number"])


def batch(**columns: Any) -> Any:
    """Return a batch of equally long columns: numpy arrays, or lists of bytes."""
    import pyarrow as pa

    arrays = [
        pa.array(column, pa.binary()) if isinstance(column, list) else pa.array(column) for column in columns.values()
    ]
    return pa.RecordBatch.from_arrays(arrays, list(columns))


def columns_of(batches: Iterable[Any], *names: str) -> Iterator[list[np.ndarray]]:
    """Yield the columns of each batch as numpy arrays; empty batches are left out."""
    for each in batches:
        if each.num_rows:
            yield [each.column(each.schema.get_field_index(name)).to_numpy(zero_copy_only=False) for name in names]


def records_of(dtype: np.dtype, **columns: np.ndarray) -> np.ndarray:
    records = np.empty(len(next(iter(columns.values()))), dtype)
    for name, column in columns.items():
        records[name] = column
    return records


def runs(values: np.ndarray) -> Iterator[tuple[int, slice]]:
    """Yield each run of equal values: the value and its slice."""
    starts = np.flatnonzero(np.diff(values, prepend=values[0] - 1))
    for start, end in zip(starts, [*starts[1:], len(values)], strict=True):
        yield int(values[start]), slice(int(start), int(end))


def write_by_block(place: Any, name: str, dtype: np.dtype, unique: bool, batches: Iterable[Any]) -> Iterator[Any]:
    """Write records sorted by block. The batches have a column `block` and one for each field of `dtype`."""
    assert dtype.names is not None
    writer = TableWriter(place.value, name, dtype, unique=unique)
    for blocks, *columns in columns_of(batches, "block", *dtype.names):
        records = records_of(dtype, **dict(zip(dtype.names, columns, strict=True)))
        for block, part in runs(blocks):
            yield from writer.add(block, records[part])
    yield from writer.finish()


def _key(place: CorpusPlace, name: str, block: int, piece: int) -> str:
    return f"{place.work}/{name}/{block:06d}-{piece:04d}"
