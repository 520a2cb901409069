"""Deduplicates a whole corpus in bounded memory: records are partitioned into files on disk, each sorted separately.

Exact duplicates have equal text hashes. For near-duplicates, MinHash bands select candidates, the full signatures
decide, and union-find merges them. The first document of a group is kept, for any number of workers.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numba import njit

from .minhash import BANDS, HASHES, band_hashes, has_words

# Text hash, id hash, size.
FACTS = np.dtype([("text", np.uint64, 2), ("id", np.uint64), ("bytes", np.uint64)])
HASHED = np.dtype([("hash", np.uint64), ("second", np.uint64), ("document", np.int64)])
BANDED = np.dtype([("hash", np.uint64), ("document", np.int64)])
DOCUMENTS_PER_FILE = 1 << 18  # sorting a file of this many records takes about 20 MB
ROW_BYTES = HASHES * 4
# The first ALL_PAIRS documents of a bucket are all compared with each other; each later one only with the bucket's
# first NEIGHBOURS documents and the NEIGHBOURS before it.
ALL_PAIRS = 32
NEIGHBOURS = 8
PAIRS_AT_ONCE = 1 << 16

KEPT, EXACT, NEAR, SAME_ID = 0, 1, 2, 3


class Duplicates(NamedTuple):
    """The fate of each document, and for a removed one the document that it duplicates."""

    fate: np.ndarray  # uint8: KEPT, EXACT, NEAR or SAME_ID
    twin: np.ndarray  # int64, -1 for a kept document
    cluster: np.ndarray  # int64: the first document of its near-duplicate cluster


def find_duplicates(
    facts: Iterable[np.ndarray],
    documents: int,
    scratch: Path,
    *,
    exact: bool,
    signatures: Path | None,
    min_similarity: float,
) -> Duplicates:
    """Find exact and near-duplicates among all documents.

    `facts` yields FACTS arrays in document order; `signatures` is a file with one row of 112 uint32 per document.
    """
    fate = np.zeros(documents, np.uint8)
    twin = np.full(documents, -1, np.int64)
    _spread_facts(facts, documents, scratch, exact)
    for name, verdict in (("id", SAME_ID), ("text", EXACT)):
        for path in sorted(scratch.glob(f"{name}-*")):
            _mark_equal(np.fromfile(path, HASHED), fate, twin, verdict)
            path.unlink()
    parent = np.arange(documents, dtype=np.int64)
    if signatures is not None:
        _spread_bands(signatures, documents, scratch, fate)
        with signatures.open("rb") as rows:
            for path in sorted(scratch.glob("band-*")):
                _join_similar(np.fromfile(path, BANDED), rows.fileno(), min_similarity, parent, twin)
                path.unlink()
        _flatten(parent)
        fate[(parent != np.arange(documents)) & (fate == KEPT)] = NEAR
    twin[fate == KEPT] = -1
    return Duplicates(fate, twin, parent)


def _files(documents: int) -> int:
    return max(1, -(-documents // DOCUMENTS_PER_FILE))


def _spread_facts(facts: Iterable[np.ndarray], documents: int, scratch: Path, exact: bool) -> None:
    first = 0
    for chunk in facts:
        numbers = np.arange(first, first + len(chunk))
        first += len(chunk)
        _append(scratch, "id", _hashed(chunk["id"], chunk["id"], numbers), documents)
        if exact:
            _append(scratch, "text", _hashed(chunk["text"][:, 0], chunk["text"][:, 1], numbers), documents)
    assert first == documents


def _hashed(hashes: np.ndarray, seconds: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    records = np.empty(len(numbers), HASHED)
    records["hash"], records["second"], records["document"] = hashes, seconds, numbers
    return records


def _append(scratch: Path, name: str, records: np.ndarray, documents: int) -> None:
    files = _files(documents)
    targets = (records["hash"] >> np.uint64(40)) % np.uint64(files)
    for target in range(files):
        mine = records[targets == target] if files > 1 else records
        with (scratch / f"{name}-{target:06d}").open("ab") as file:
            mine.tofile(file)


def _mark_equal(records: np.ndarray, fate: np.ndarray, twin: np.ndarray, verdict: int) -> None:
    records = records[fate[records["document"]] == KEPT]
    order = np.lexsort((records["document"], records["second"], records["hash"]))
    records = records[order]
    same = (records["hash"][1:] == records["hash"][:-1]) & (records["second"][1:] == records["second"][:-1])
    starts = np.flatnonzero(np.concatenate([[True], ~same])) if len(records) else np.empty(0, np.int64)
    group = np.cumsum(np.concatenate([[True], ~same])) - 1 if len(records) else np.empty(0, np.int64)
    again = np.flatnonzero(np.concatenate([[False], same])) if len(records) else np.empty(0, np.int64)
    fate[records["document"][again]] = verdict
    twin[records["document"][again]] = records["document"][starts[group[again]]]


def _spread_bands(signatures: Path, documents: int, scratch: Path, fate: np.ndarray) -> None:
    step = 1 << 14
    with signatures.open("rb") as file:
        for first in range(0, documents, step):
            rows = np.fromfile(file, np.uint32, min(step, documents - first) * HASHES).reshape(-1, HASHES)
            use = np.flatnonzero((fate[first : first + len(rows)] == KEPT) & has_words(rows))
            hashes = band_hashes(rows[use])
            for band in range(BANDS):
                records = np.empty(len(use), BANDED)
                records["hash"], records["document"] = hashes[:, band], first + use
                _append(scratch, f"band-{band:02d}", records, documents)


def _join_similar(records: np.ndarray, rows: int, min_similarity: float, parent: np.ndarray, twin: np.ndarray) -> None:
    records = records[np.argsort(records["hash"], kind="stable")]  # within a bucket the documents stay in order
    hashes, documents = np.ascontiguousarray(records["hash"]), np.ascontiguousarray(records["document"])
    pairs = np.empty((PAIRS_AT_ONCE, 2), np.int64)
    at = (0, 0, 0)
    while at[0] < len(hashes):
        count, at = _candidates(hashes, documents, parent, pairs, at)
        _verify(pairs[:count], rows, min_similarity, parent, twin)


def _verify(pairs: np.ndarray, rows: int, min_similarity: float, parent: np.ndarray, twin: np.ndarray) -> None:
    if not len(pairs):
        return
    documents, places = np.unique(pairs, return_inverse=True)
    places = places.reshape(pairs.shape)
    # Read row by row: mapping the whole file would count as memory of this process.
    table = np.frombuffer(
        b"".join(os.pread(rows, ROW_BYTES, int(number) * ROW_BYTES) for number in documents), np.uint32
    ).reshape(-1, HASHES)
    _unite(pairs, places, table, int(np.ceil(min_similarity * HASHES)), parent, twin)


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
def _candidates(hashes, documents, parent, pairs, at):  # type: ignore[no-untyped-def]
    """Fill `pairs` with pairs of documents from the same bucket that are not yet merged.

    `at` is where to continue: the bucket's start, its member, the partner.
    """
    count = 0
    start, member, partner = at
    while start < len(hashes):
        end = start + 1
        while end < len(hashes) and hashes[end] == hashes[start]:
            end += 1
        for j in range(max(member, start + 1), end):
            for i in range(partner if j == member and partner else start, j):
                if j - start >= ALL_PAIRS and start + NEIGHBOURS <= i < j - NEIGHBOURS:
                    continue
                if _root(parent, documents[i]) == _root(parent, documents[j]):
                    continue
                if count == len(pairs):
                    return count, (start, j, i)
                pairs[count, 0], pairs[count, 1] = documents[i], documents[j]
                count += 1
        start, member, partner = end, 0, 0
    return count, (start, 0, 0)


@njit(cache=True, nogil=True)
def _unite(pairs, places, table, needed, parent, twin):  # type: ignore[no-untyped-def]
    for p in range(len(pairs)):
        a, b = _root(parent, pairs[p, 0]), _root(parent, pairs[p, 1])
        if a == b:
            continue
        equal = 0
        for k in range(table.shape[1]):
            equal += table[places[p, 0], k] == table[places[p, 1], k]
        if equal < needed:
            continue
        parent[max(a, b)] = min(a, b)  # so a cluster's root is its first document
        for one, other in ((pairs[p, 0], pairs[p, 1]), (pairs[p, 1], pairs[p, 0])):
            if twin[one] < 0:
                twin[one] = other
