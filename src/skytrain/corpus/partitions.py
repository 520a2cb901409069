"""Files over which records are spread, so that each file can be sorted in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

RECORDS_PER_FILE = 1 << 20  # sorting a file of this many records takes about 60 MB
BUFFER_BYTES = 128 << 20  # collected before writing, so that a file is opened once per flush and not once per batch


class Partitions:
    """Files `<name>-<number>` of records with a field `hash`; equal hashes are in the same file."""

    def __init__(self, folder: Path, name: str, dtype: np.dtype, expected: int, sharing: int = 1) -> None:
        """Prepare the files. `sharing` is how many partitions are filled at once and share the buffer memory."""
        self._folder = folder
        self._name = name
        self._dtype = dtype
        self._files = max(1, -(-expected // RECORDS_PER_FILE))
        self._buffer: list[np.ndarray] = []
        self._buffered = 0
        self._most = BUFFER_BYTES // sharing

    def append(self, records: np.ndarray) -> None:
        self._buffer.append(records)
        self._buffered += records.nbytes
        if self._buffered >= self._most:
            self._flush()

    def read(self, *, delete: bool = False) -> Iterator[np.ndarray]:
        """Yield the records file by file, each in the order in which they were appended."""
        self._flush()
        for path in filter(Path.exists, map(self._path, range(self._files))):
            yield np.fromfile(path, self._dtype)
            if delete:
                path.unlink()

    def _flush(self) -> None:
        if not self._buffer:
            return
        records = np.concatenate(self._buffer)
        self._buffer = []
        self._buffered = 0
        targets = self._targets(records)
        order = np.argsort(targets, kind="stable")
        ends = np.searchsorted(targets[order], np.arange(1, self._files + 1))
        for number, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
            if end > start:
                with self._path(number).open("ab") as file:
                    file.write(records[order[start:end]].tobytes())  # tofile hides that the disk is full

    def _targets(self, records: np.ndarray) -> np.ndarray:
        """Return the number of each record's file."""
        return (records["hash"] >> np.uint64(40)) % np.uint64(self._files)

    def _path(self, number: int) -> Path:
        return self._folder / f"{self._name}-{number:06d}"


class RangePartitions(Partitions):
    """Files of records by ranges of a field, so that all records can be read in its order."""

    def __init__(self, folder: Path, name: str, dtype: np.dtype, field: str, files: int, values_per_file: int) -> None:
        super().__init__(folder, name, dtype, expected=0)
        self._files = max(1, files)
        self._field = field
        self._values_per_file = values_per_file

    def _targets(self, records: np.ndarray) -> np.ndarray:
        targets: np.ndarray = records[self._field] // self._values_per_file
        return targets
