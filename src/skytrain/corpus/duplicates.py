"""What the search for duplicates found, as parquet beside the corpus: compared pairs and removed documents, by id.

Both engines pass numbers of documents in the same order to one writer, so that the files have the same bytes.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..config import SkytrainError
from ..storage import AGAIN, Store, read_data, record_of
from .dedup import EXACT, NEAR, SAME_ID
from .documents import tables_to_parquet
from .manifest import CorpusManifest
from .near import COMPARED

FOLDER = "duplicates"
ROWS_AT_ONCE = 1 << 16
ROWS_PER_FILE = 1 << 20
REASONS = {EXACT: "exact", NEAR: "near", SAME_ID: "same_id"}
# `similarity` counts for near-duplicates only; `twin` is the document that the removed one repeats.
REMOVED = np.dtype([("number", np.int64), ("fate", np.uint8), ("twin", np.int64), ("similarity", np.float64)])


class DocumentIds:
    """The ids of some documents, in a file: they may be as long as their sources make them."""

    def __init__(self, path: Path, numbers: np.ndarray, ids: Iterable[list[str]]) -> None:
        """Write the ids of the ascending `numbers`, which come in lists of any length."""
        self._path = path
        self._numbers = numbers
        lengths = []
        with path.open("wb") as file:
            for some in ids:
                encoded = [each.encode() for each in some]
                lengths += [len(each) for each in encoded]
                file.write(b"".join(encoded))
            file.write(b"\0")  # an empty file cannot be mapped
        assert len(lengths) == len(numbers)
        self._ends = np.concatenate([[0], np.cumsum(np.array(lengths, np.int64))])

    def at(self, numbers: np.ndarray) -> list[str]:
        places = np.searchsorted(self._numbers, numbers)
        bounds = zip(self._ends[places].tolist(), self._ends[places + 1].tolist(), strict=True)
        with self._path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            return [text[start:end].decode() for start, end in bounds]

    def remove(self) -> None:
        self._path.unlink()


class FoundDuplicates(NamedTuple):
    """All that was found: removed documents in order, and compared pairs (COMPARED), by second document, then first."""

    removed: Iterable[np.ndarray]
    compared: Iterable[np.ndarray] | None  # None: near-duplicates were not searched for
    ids: DocumentIds


def write_duplicates(store: Store, folder: str, found: FoundDuplicates) -> None:
    """Write `duplicates/removed-*.parquet` and `pairs-*.parquet` into the corpus' folder."""
    import pyarrow as pa

    def removed_table(records: np.ndarray) -> Any:
        similarity = np.where(records["fate"] == EXACT, 1.0, records["similarity"])
        return pa.table(
            {
                "id": pa.array(found.ids.at(records["number"]), pa.large_string()),
                "reason": pa.array([REASONS[fate] for fate in records["fate"].tolist()], pa.string()),
                "duplicate_of": pa.array(found.ids.at(records["twin"]), pa.large_string()),
                "similarity": pa.array(similarity, mask=records["fate"] == SAME_ID),
            }
        )

    def pairs_table(records: np.ndarray) -> Any:
        return pa.table(
            {
                "a": pa.array(found.ids.at(records["a"]), pa.large_string()),
                "b": pa.array(found.ids.at(records["b"]), pa.large_string()),
                "similarity": pa.array(records["similarity"]),
            }
        )

    _write_files(store, f"{folder}/{FOLDER}/removed", found.removed, REMOVED, removed_table)
    if found.compared is not None:
        _write_files(store, f"{folder}/{FOLDER}/pairs", found.compared, COMPARED, pairs_table)


def _write_files(
    store: Store, name: str, parts: Iterable[np.ndarray], dtype: np.dtype, table: Callable[[np.ndarray], Any]
) -> None:
    """Write the records as files of at most ROWS_PER_FILE rows; without any, one file without rows."""
    batches = _even_batches(parts, dtype)
    for number, first in enumerate(batches):
        some = chain([first], islice(batches, ROWS_PER_FILE // ROWS_AT_ONCE - 1))
        store.write(f"{name}-{number:05d}.parquet", tables_to_parquet(map(table, some)))


def _even_batches(parts: Iterable[np.ndarray], dtype: np.dtype) -> Iterator[np.ndarray]:
    """Yield ROWS_AT_ONCE records at a time, however the given ones are cut; at least one batch, which may be empty."""
    held = np.empty(0, dtype)
    is_first = True
    for part in parts:
        held = np.concatenate([held, part])
        full = len(held) - len(held) % ROWS_AT_ONCE
        for start in range(0, full, ROWS_AT_ONCE):
            yield held[start : start + ROWS_AT_ONCE]
            is_first = False
        held = held[full:]
    if len(held) or is_first:
        yield held


def duplicate_files(store: Store, corpus: CorpusManifest) -> dict[str, list[str]]:
    """Return the keys of a corpus' files by kind, `removed` and `pairs`; raise if it was prepared without them."""
    keys = sorted(stat.key for stat in store.list(f"{corpus.folder}/{FOLDER}"))
    files = {
        kind: [key for key in keys if key.rpartition("/")[2].startswith(f"{kind}-")] for kind in ("removed", "pairs")
    }
    if not files["removed"]:
        raise SkytrainError(
            f"{store.url(corpus.folder)} does not say which documents were duplicates: an earlier version prepared it\n"
            "  delete that folder, and run `skytrain prepare` with the same KEY=VALUEs: it makes the same corpus again"
        )
    return files


def read_duplicates(store: Store, keys: list[str], columns: list[str]) -> Iterator[dict[str, Any]]:
    """Yield some columns of the files as numpy arrays, batch by batch, in order."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for key in keys:
        with record_of(store, key, AGAIN):  # pyarrow's errors are ValueErrors
            file = pq.ParquetFile(pa.BufferReader(read_data(store, key)))
        for batch in file.iter_batches(ROWS_AT_ONCE, columns=columns):
            yield {name: batch.column(name).to_numpy(zero_copy_only=False) for name in columns}


def proposal_probability(similarity: float, bands: int, rows: int) -> float:
    """Return how probably MinHash proposes a pair of this Jaccard similarity: that it shares at least one band."""
    return float(1 - (1 - similarity**rows) ** bands)
