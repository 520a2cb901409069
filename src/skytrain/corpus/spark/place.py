"""What every task of the Spark engine needs: the store, the chunks, and how documents are numbered."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ...storage import Store
from ..chunks import Chunk, read_signatures, read_texts
from ..minhash import MinHash


@dataclass(frozen=True)
class CorpusPlace:
    """The chunks of a corpus in order. A document's number is its position among all of them: (file, row) made dense.

    Consecutive chunks form a block. Everything known about a document is kept in files by its block, so that looking
    it up is a merge of sorted arrays and never a join of all documents.
    """

    store: Store
    clean: str  # the folder of the chunks
    work: str  # the folder of this search
    chunks: tuple[Chunk, ...]
    blocks: tuple[int, ...]  # the first chunk of each block, and the number of chunks
    minhash: MinHash

    @classmethod
    def of(cls, store: Store, clean: str, work: str, chunks: list[Chunk], blocks: int, minhash: MinHash) -> CorpusPlace:
        light = tuple(dataclasses.replace(chunk, tallies={}, removed={}, examples={}) for chunk in chunks)
        bounds = np.linspace(0, len(chunks), min(blocks, len(chunks)) + 1).astype(int)
        return cls(store=store, clean=clean, work=work, chunks=light, blocks=tuple(bounds.tolist()), minhash=minhash)

    @cached_property
    def firsts(self) -> np.ndarray:
        """The number of each chunk's first document, and at the end the number of documents."""
        return np.concatenate([[0], np.cumsum([chunk.documents for chunk in self.chunks], dtype=np.int64)])

    @property
    def documents(self) -> int:
        return int(self.firsts[-1])

    def chunks_of(self, block: int) -> range:
        return range(self.blocks[block], self.blocks[block + 1])

    def first_of(self, block: int) -> int:
        return int(self.firsts[self.blocks[block]])

    def chunk_of(self, numbers: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.firsts, numbers, side="right") - 1

    def block_of(self, numbers: np.ndarray) -> np.ndarray:
        bounds = self.firsts[list(self.blocks)]
        return (np.searchsorted(bounds, numbers, side="right") - 1).astype(np.int32)


class DocumentReader:
    """Reads what chunks hold about documents. The chunk that was read last is kept, since numbers come in order."""

    def __init__(self, place: CorpusPlace) -> None:
        self.place = place
        self._kept: dict[str, tuple[int, Any]] = {}

    def by_chunk(self, numbers: np.ndarray) -> Iterator[tuple[int, slice]]:
        """Yield each chunk that contains some of the ascending numbers, and the slice of those."""
        chunks = self.place.chunk_of(numbers)
        starts = np.flatnonzero(np.diff(chunks, prepend=-1))
        for start, end in zip(starts, [*starts[1:], len(numbers)], strict=True):
            yield int(chunks[start]), slice(int(start), int(end))

    def signatures(self, numbers: np.ndarray) -> np.ndarray:
        """Return one row of minima for each of the ascending numbers."""
        rows = np.empty((len(numbers), self.place.minhash.hashes), np.uint32)
        for chunk, part in self.by_chunk(numbers):
            rows[part] = self._read("signatures", chunk)[numbers[part] - self.place.firsts[chunk]]
        return rows

    def sets(self, numbers: np.ndarray) -> Iterator[tuple[slice, list[np.ndarray]]]:
        """Yield the sets of shingles of the ascending numbers, chunk by chunk."""
        import pyarrow as pa

        for chunk, part in self.by_chunk(numbers):
            rows, places = np.unique(numbers[part] - self.place.firsts[chunk], return_inverse=True)
            sets = self.place.minhash.shingle_sets(self._read("texts", chunk).take(pa.array(rows)).to_pylist())
            yield part, [sets[i] for i in places]

    def _read(self, what: str, chunk: int) -> Any:
        if self._kept.get(what, (-1,))[0] != chunk:
            self._kept[what] = (chunk, self._load(what, self.place.chunks[chunk]))
        return self._kept[what][1]

    def _load(self, what: str, chunk: Chunk) -> Any:
        store = self.place.store
        folder = self.place.clean
        if what == "signatures":
            rows = np.frombuffer(read_signatures(store, folder, chunk), np.uint32)
            return rows.reshape(-1, self.place.minhash.hashes)
        import pyarrow as pa
        import pyarrow.parquet as pq

        return pq.read_table(pa.BufferReader(read_texts(store, folder, chunk)), columns=["text"])["text"]
