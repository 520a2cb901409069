"""Near-duplicates in bounded memory: MinHash bands propose pairs, exact Jaccard similarity decides which are similar.

Only documents of pairs that could be similar are read again, for their sets of shingles. Each such pair is compared
once and its similarity is kept. A cluster is a connected component of similar pairs, so it does not depend on the order
in which pairs are compared.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numba import njit

from .minhash import MinHash, has_words, jaccard_of
from .partitions import Partitions, RangePartitions

REVISION = 2  # raised when the same settings give other results: prepared data then has another version
BANDED = np.dtype([("hash", np.uint64), ("document", np.int64)])
PROPOSED = np.dtype([("a", np.int64), ("b", np.int64)])
# A pair that was compared exactly; `a` is the earlier document. Files of them are sorted by b, then a.
COMPARED = np.dtype([("a", np.int64), ("b", np.int64), ("similarity", np.float64)])
ROWS_AT_ONCE = 1 << 14
# The first ALL_PAIRS documents of a bucket are all compared with each other; each later one only with the bucket's
# first NEIGHBOURS documents and the NEIGHBOURS before it.
ALL_PAIRS = 32
NEIGHBOURS = 8
PAIRS_AT_ONCE = 1 << 16
SET_BYTES_AT_ONCE = 64 << 20
PROPOSED_PER_FILE = 1 << 16  # documents; a document proposes at most 16 pairs for each band on average
SCRATCH_BYTES_PER_SHINGLE = 8
# 108 minima estimate similarity with a standard error of 0.038 at 0.8. A pair whose estimate is lower by this much is
# not compared exactly: 4 standard errors, so about one similar pair in 30,000 is missed. The error of another number
# of minima is in proportion to the root of its inverse.
ESTIMATE_MARGIN = 0.15
MARGIN_HASHES = 108

# Yields (document numbers, their texts) for the given numbers, in ascending order.
ReadTexts = Callable[[np.ndarray], Iterator[tuple[np.ndarray, list[str]]]]


@dataclass(frozen=True)
class NearInputs:
    """Inputs of the search: a file with one row of minima per document, and a reader for the few texts it needs."""

    signatures: Path
    texts: ReadTexts
    min_similarity: float
    minhash: MinHash


class NearDuplicates(NamedTuple):
    """The first document of each document's cluster, and what was measured on the way."""

    cluster: np.ndarray  # int64
    similarity: np.ndarray  # float64: of each removed document, in order, to the first of its cluster
    beyond: int  # removed documents that are similar to the kept one only through others
    compared: Path  # every pair that was compared exactly, as COMPARED


def scratch_bytes_per_document(minhash: MinHash) -> int:
    """Return the disk space of the search. Sets of shingles and pairs come on top, where documents could be similar."""
    return minhash.signature_bytes + minhash.bands * BANDED.itemsize


def find_near_duplicates(inputs: NearInputs, candidates: np.ndarray, scratch: Path) -> NearDuplicates:
    """Cluster the documents for which `candidates` is true; each other document is its own cluster."""
    bands = _spread_bands(inputs, candidates, scratch)
    needed = _could_be_similar(bands, inputs, len(candidates))
    sets = ShingleSets.write(scratch / "shingles", np.flatnonzero(needed), inputs)
    parent = np.arange(len(candidates), dtype=np.int64)
    compared = scratch / "compared"
    try:
        with compared.open("wb") as file:
            for pairs in _proposed(bands, needed, scratch):
                for some in sets.fitting(pairs):
                    similarity = np.empty(len(some), np.float64)
                    _compare(*sets.table(some), similarity)
                    _unite(some, similarity, inputs.min_similarity, parent)
                    file.write(compared_records(some, similarity).tobytes())
        _flatten(parent)
        removed = np.flatnonzero(parent != np.arange(len(parent)))
        similarity = _similarity_to_kept(sets, parent, removed)
    finally:
        sets.remove()
    beyond = int((similarity < inputs.min_similarity).sum())
    return NearDuplicates(cluster=parent, similarity=similarity, beyond=beyond, compared=compared)


def compared_records(pairs: np.ndarray, similarity: np.ndarray) -> np.ndarray:
    """Return pairs of documents, one in a row, and their similarities as COMPARED."""
    records = np.empty(len(pairs), COMPARED)
    records["a"] = pairs[:, 0]
    records["b"] = pairs[:, 1]
    records["similarity"] = similarity
    return records


def _similarity_to_kept(sets: ShingleSets, parent: np.ndarray, removed: np.ndarray) -> np.ndarray:
    pairs = np.stack([parent[removed], removed], axis=1)
    parts = [np.empty(0, np.float64)]
    for some in sets.fitting(pairs):
        parts.append(np.empty(len(some), np.float64))
        _compare(*sets.table(some), parts[-1])
    return np.concatenate(parts)


def _spread_bands(inputs: NearInputs, candidates: np.ndarray, scratch: Path) -> list[Partitions]:
    minhash = inputs.minhash
    count = minhash.bands
    bands = [Partitions(scratch, f"band-{band:02d}", BANDED, len(candidates), sharing=count) for band in range(count)]
    with inputs.signatures.open("rb") as file:
        for first in range(0, len(candidates), ROWS_AT_ONCE):
            documents = min(ROWS_AT_ONCE, len(candidates) - first)
            rows = np.fromfile(file, np.uint32, documents * minhash.hashes).reshape(-1, minhash.hashes)
            use = np.flatnonzero(candidates[first : first + documents] & has_words(rows))
            hashes = minhash.band_hashes(rows[use])
            for band, partitions in enumerate(bands):
                records = np.empty(len(use), BANDED)
                records["hash"] = hashes[:, band]
                records["document"] = first + use
                partitions.append(records)
    return bands


def _could_be_similar(bands: list[Partitions], inputs: NearInputs, documents: int) -> np.ndarray:
    """Return which documents belong to a pair whose signatures do not rule out similarity."""
    needed = np.zeros(documents, np.bool_)
    size = inputs.minhash.signature_bytes
    least = least_equal(inputs.min_similarity, inputs.minhash.hashes)
    with inputs.signatures.open("rb") as rows:
        for pairs in _pairs(bands, needed, marking=True):
            documents_of, places = _places(pairs)
            # Read row by row: mapping the whole file would count as memory of this process.
            read = b"".join(os.pread(rows.fileno(), size, int(number) * size) for number in documents_of)
            _mark(pairs, places, np.frombuffer(read, np.uint32).reshape(-1, inputs.minhash.hashes), least, needed)
    return needed


def least_equal(min_similarity: float, hashes: int) -> int:
    """Return how many minima two signatures must share for their documents to be compared exactly."""
    margin = ESTIMATE_MARGIN * (MARGIN_HASHES / hashes) ** 0.5
    return max(0, int(np.ceil((min_similarity - margin) * hashes)))


def _proposed(bands: list[Partitions], needed: np.ndarray, scratch: Path) -> Iterator[np.ndarray]:
    """Yield the pairs to compare, each once, sorted by their second document, then by their first."""
    files = RangePartitions(scratch, "proposed", PROPOSED, "b", -(-len(needed) // PROPOSED_PER_FILE), PROPOSED_PER_FILE)
    for pairs in _pairs(bands, needed, delete=True):
        records = np.empty(len(pairs), PROPOSED)
        records["a"] = pairs[:, 0]
        records["b"] = pairs[:, 1]
        files.append(records)
    for records in files.read(delete=True):
        records = records[np.lexsort((records["a"], records["b"]))]
        new = np.ones(len(records), np.bool_)
        new[1:] = records[1:] != records[:-1]
        records = records[new]
        yield np.stack([records["a"], records["b"]], axis=1)


def _pairs(
    bands: list[Partitions], needed: np.ndarray, *, marking: bool = False, delete: bool = False
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
                count, at = _candidates(hashes, documents, (needed, marking), pairs, at)
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
    def write(cls, path: Path, documents: np.ndarray, inputs: NearInputs) -> ShingleSets:
        sizes = []
        with path.open("wb") as file:
            for numbers, some in inputs.texts(documents):
                sets = inputs.minhash.shingle_sets(some)
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
    needed, marking = state
    both = needed[a] and needed[b]
    return both if marking else not both  # while marking, a pair is decided once both are known to be needed


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
def _compare(places, sets, bounds, similarity):  # type: ignore[no-untyped-def]
    for p in range(len(places)):
        similarity[p] = _similarity(sets, bounds, places[p, 0], places[p, 1])


@njit(cache=True, nogil=True)
def _unite(pairs, similarity, min_similarity, parent):  # type: ignore[no-untyped-def]
    for p in range(len(pairs)):
        if similarity[p] >= min_similarity:
            a, b = _root(parent, pairs[p, 0]), _root(parent, pairs[p, 1])
            parent[max(a, b)] = min(a, b)  # so a cluster's root is its first document
