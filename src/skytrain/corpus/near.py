"""Near-duplicates in bounded memory: MinHash bands propose pairs, exact Jaccard similarity decides which are similar.

Only documents of pairs that could be similar are read again, for their sets of shingles. A cluster is a connected
component of similar pairs, so it does not depend on the order in which pairs are compared.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numba import njit

from .minhash import BANDS, HASHES, band_hashes, has_words, jaccard_of, shingle_sets
from .partitions import Partitions

REVISION = 2  # raised when the same settings give other results: prepared data then has another version
BANDED = np.dtype([("hash", np.uint64), ("document", np.int64)])
ROW_BYTES = HASHES * 4
ROWS_AT_ONCE = 1 << 14
# The first ALL_PAIRS documents of a bucket are all compared with each other; each later one only with the bucket's
# first NEIGHBOURS documents and the NEIGHBOURS before it.
ALL_PAIRS = 32
NEIGHBOURS = 8
PAIRS_AT_ONCE = 1 << 16
SET_BYTES_AT_ONCE = 64 << 20
# Disk space during the search. Sets of shingles come on top, for documents that could have a near-duplicate.
SCRATCH_BYTES_PER_DOCUMENT = ROW_BYTES + BANDS * BANDED.itemsize
SCRATCH_BYTES_PER_SHINGLE = 8
# Signatures estimate similarity with a standard error of 0.038 at 0.8. A pair whose estimate is lower by this much is
# not compared exactly: 4 standard errors, so about one similar pair in 30,000 is missed.
ESTIMATE_MARGIN = 0.15

# Yields (document numbers, their texts) for the given numbers, in ascending order.
ReadTexts = Callable[[np.ndarray], Iterator[tuple[np.ndarray, list[str]]]]


@dataclass(frozen=True)
class NearInputs:
    """Inputs of the search: a file with one row of minima per document, and a reader for the few texts it needs."""

    signatures: Path
    texts: ReadTexts
    min_similarity: float


class NearDuplicates(NamedTuple):
    """The first document of each document's cluster, and how many are less similar to it than the threshold."""

    cluster: np.ndarray  # int64
    beyond: int  # removed documents that are similar to the kept one only through others


def find_near_duplicates(inputs: NearInputs, candidates: np.ndarray, scratch: Path) -> NearDuplicates:
    """Cluster the documents for which `candidates` is true; each other document is its own cluster."""
    bands = _spread_bands(inputs.signatures, candidates, scratch)
    needed = _could_be_similar(bands, inputs, len(candidates))
    sets = ShingleSets.write(scratch / "shingles", np.flatnonzero(needed), inputs.texts)
    parent = np.arange(len(candidates), dtype=np.int64)
    try:
        for pairs in _pairs(bands, needed, parent, delete=True):
            for some in sets.fitting(pairs):
                _unite(some, *sets.table(some), inputs.min_similarity, parent)
        _flatten(parent)
        removed = np.flatnonzero(parent != np.arange(len(parent)))
        kept_and_removed = np.stack([parent[removed], removed], axis=1)
        beyond = sum(
            _count_below(some, *sets.table(some), inputs.min_similarity) for some in sets.fitting(kept_and_removed)
        )
    finally:
        sets.remove()
    return NearDuplicates(parent, beyond)


def _spread_bands(signatures: Path, candidates: np.ndarray, scratch: Path) -> list[Partitions]:
    bands = [Partitions(scratch, f"band-{band:02d}", BANDED, len(candidates), sharing=BANDS) for band in range(BANDS)]
    with signatures.open("rb") as file:
        for first in range(0, len(candidates), ROWS_AT_ONCE):
            count = min(ROWS_AT_ONCE, len(candidates) - first)
            rows = np.fromfile(file, np.uint32, count * HASHES).reshape(-1, HASHES)
            use = np.flatnonzero(candidates[first : first + count] & has_words(rows))
            hashes = band_hashes(rows[use])
            for band, partitions in enumerate(bands):
                records = np.empty(len(use), BANDED)
                records["hash"] = hashes[:, band]
                records["document"] = first + use
                partitions.append(records)
    return bands


def _could_be_similar(bands: list[Partitions], inputs: NearInputs, documents: int) -> np.ndarray:
    """Return which documents belong to a pair whose signatures do not rule out similarity."""
    needed = np.zeros(documents, np.bool_)
    unlinked = np.arange(documents, dtype=np.int64)  # each document is its own parent
    least = least_equal(inputs.min_similarity)
    with inputs.signatures.open("rb") as rows:
        for pairs in _pairs(bands, needed, unlinked, marking=True):
            documents_of, places = _places(pairs)
            # Read row by row: mapping the whole file would count as memory of this process.
            read = b"".join(os.pread(rows.fileno(), ROW_BYTES, int(number) * ROW_BYTES) for number in documents_of)
            _mark(pairs, places, np.frombuffer(read, np.uint32).reshape(-1, HASHES), least, needed)
    return needed


def least_equal(min_similarity: float) -> int:
    """Return how many minima two signatures must share for their documents to be compared exactly."""
    return int(np.ceil((min_similarity - ESTIMATE_MARGIN) * HASHES))


def _pairs(
    bands: list[Partitions], needed: np.ndarray, parent: np.ndarray, *, marking: bool = False, delete: bool = False
) -> Iterator[np.ndarray]:
    """Yield pairs of documents that share a bucket, except those that are already decided (see `_is_decided`)."""
    pairs = np.empty((PAIRS_AT_ONCE, 2), np.int64)
    for band in bands:
        for records in band.read(delete=delete):
            # Within a bucket the documents stay in order.
            records = records[np.argsort(records["hash"], kind="stable")]
            hashes = np.ascontiguousarray(records["hash"])
            documents = np.ascontiguousarray(records["document"])
            at = (0, 0, 0)
            while at[0] < len(hashes):
                count, at = _candidates(hashes, documents, (needed, parent, marking), pairs, at)
                if count:
                    yield pairs[:count]


def _places(pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the documents of the pairs, and the pairs as indices into them."""
    documents, places = np.unique(pairs, return_inverse=True)
    return documents, places.reshape(pairs.shape)


class ShingleSets:
    """Sets of shingles of some documents, in a file."""

    def __init__(self, path: Path, documents: np.ndarray, ends: np.ndarray) -> None:
        self._path = path
        self._documents = documents
        self._ends = np.concatenate([np.zeros(1, np.int64), ends])  # in the file, by index of the document
        self._file = path.open("rb")

    @classmethod
    def write(cls, path: Path, documents: np.ndarray, texts: ReadTexts) -> ShingleSets:
        sizes = []
        with path.open("wb") as file:
            for numbers, some in texts(documents):
                sets = shingle_sets(some)
                sizes += [len(one) for one in sets]
                assert len(numbers) == len(some)
                file.write(np.concatenate(sets).tobytes() if sets else b"")
        assert len(sizes) == len(documents)
        return cls(path, documents, np.cumsum(np.array(sizes, np.int64)))

    def fitting(self, pairs: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the pairs in batches whose sets fit in memory together."""
        at = np.searchsorted(self._documents, pairs)
        sizes = 8 * (self._ends[at + 1] - self._ends[at]).sum(axis=1)
        first = 0
        for last in np.flatnonzero(np.diff(np.cumsum(sizes) // SET_BYTES_AT_ONCE, append=-1)):
            yield pairs[first : int(last) + 1]
            first = int(last) + 1

    def table(self, pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the pairs as indices of sets, the concatenated sets, and their bounds."""
        documents, places = _places(pairs)
        at = np.searchsorted(self._documents, documents)
        starts = 8 * self._ends[at]
        ends = 8 * self._ends[at + 1]
        read = b"".join(
            os.pread(self._file.fileno(), int(end - start), int(start)) for start, end in zip(starts, ends, strict=True)
        )
        bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum((ends - starts) // 8)])
        return places, np.frombuffer(read, np.uint64), bounds

    def remove(self) -> None:
        self._file.close()
        self._path.unlink()


@njit(cache=True, nogil=True)
def _root(parent, i):  # type: ignore[no-untyped-def]
    while parent[i] != i:
        parent[i] = parent[parent[i]]
        i = parent[i]
    return i


@njit(cache=True, nogil=True)
def _flatten(parent):  # type: ignore[no-untyped-def]
    for i in range(len(parent)):
        parent[i] = _root(parent, i)


@njit(cache=True, nogil=True)
def _is_decided(state, a, b):  # type: ignore[no-untyped-def]
    needed, parent, marking = state
    if marking:  # decided once both are known to be needed
        return needed[a] and needed[b]
    return not needed[a] or not needed[b] or _root(parent, a) == _root(parent, b)


@njit(cache=True, nogil=True)
def _candidates(hashes, documents, state, pairs, at):  # type: ignore[no-untyped-def]
    """Fill `pairs` with undecided pairs of documents from the same bucket.

    `at` is where to continue: the bucket's start, its member, the partner. The number of pairs considered grows
    linearly with the size of a bucket.
    """
    count = 0
    start, member, partner = at
    while start < len(hashes):
        end = start + 1
        while end < len(hashes) and hashes[end] == hashes[start]:
            end += 1
        for j in range(max(member, start + 1), end):
            i = partner if j == member and partner else start
            while i < j:
                if j - start >= ALL_PAIRS and start + NEIGHBOURS <= i < j - NEIGHBOURS:
                    i = j - NEIGHBOURS
                if not _is_decided(state, documents[i], documents[j]):
                    if count == len(pairs):
                        return count, (start, j, i)
                    pairs[count, 0], pairs[count, 1] = documents[i], documents[j]
                    count += 1
                i += 1
        start, member, partner = end, 0, 0
    return count, (start, 0, 0)


@njit(cache=True, nogil=True)
def _mark(pairs, places, table, least, needed):  # type: ignore[no-untyped-def]
    for p in range(len(pairs)):
        equal = 0
        for k in range(table.shape[1]):
            equal += table[places[p, 0], k] == table[places[p, 1], k]
        if equal >= least:
            needed[pairs[p, 0]] = needed[pairs[p, 1]] = True


@njit(cache=True, nogil=True)
def _similarity(sets, bounds, a, b):  # type: ignore[no-untyped-def]
    return jaccard_of(sets[bounds[a] : bounds[a + 1]], sets[bounds[b] : bounds[b + 1]])


@njit(cache=True, nogil=True)
def _unite(pairs, places, sets, bounds, min_similarity, parent):  # type: ignore[no-untyped-def]
    for p in range(len(pairs)):
        a, b = _root(parent, pairs[p, 0]), _root(parent, pairs[p, 1])
        if a != b and _similarity(sets, bounds, places[p, 0], places[p, 1]) >= min_similarity:
            parent[max(a, b)] = min(a, b)  # so a cluster's root is its first document


@njit(cache=True, nogil=True)
def _count_below(pairs, places, sets, bounds, min_similarity):  # type: ignore[no-untyped-def]
    below = 0
    for p in range(len(pairs)):
        below += _similarity(sets, bounds, places[p, 0], places[p, 1]) < min_similarity
    return below
