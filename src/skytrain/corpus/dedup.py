"""Deduplicates a corpus in bounded memory: records are spread over files on disk, each sorted separately.

Equal ids are removed first, then equal texts, then near-duplicates. The first document of a group is kept, whatever
the number of workers.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .near import NearInputs, find_near_duplicates
from .partitions import Partitions

# 128-bit hashes: among 10^9 documents, two are equal by chance with probability 10^-21. `bytes` is the text's size.
FACTS = np.dtype([("text", np.uint64, 2), ("id", np.uint64, 2), ("bytes", np.uint64)])
HASHED = np.dtype([("hash", np.uint64), ("second", np.uint64), ("document", np.int64)])

KEPT = 0
EXACT = 1
NEAR = 2
SAME_ID = 3


class Duplicates(NamedTuple):
    """The fate of each document, and for a removed one the document that stands for it."""

    fate: np.ndarray  # uint8: KEPT, EXACT, NEAR or SAME_ID
    twin: np.ndarray  # int64, -1 for a kept document
    cluster: np.ndarray  # int64: the first document of its near-duplicate cluster
    beyond: int  # near-duplicates that are connected to their twin only through others, below the threshold themselves
    similarity: np.ndarray  # float64: of each near-duplicate, in order, to its twin
    compared: Path | None  # every pair that was compared exactly, as COMPARED; None without near-duplicates


def find_duplicates(
    facts: Iterable[np.ndarray], documents: int, scratch: Path, *, exact: bool, near: NearInputs | None
) -> Duplicates:
    """Find exact and near-duplicates among all documents. `facts` yields FACTS arrays in document order."""
    fate = np.zeros(documents, np.uint8)
    twin = np.full(documents, -1, np.int64)
    same_id, same_text = (Partitions(scratch, name, HASHED, documents, sharing=2) for name in ("id", "text"))
    first = 0
    for chunk in facts:
        numbers = np.arange(first, first + len(chunk))
        first += len(chunk)
        same_id.append(_hashed(chunk["id"], numbers))
        if exact:
            same_text.append(_hashed(chunk["text"], numbers))
    assert first == documents
    for partitions, verdict in ((same_id, SAME_ID), (same_text, EXACT)):
        for records in partitions.read(delete=True):
            mark_equal(records, fate, twin, verdict)
    if near is None:
        cluster = np.arange(documents, dtype=np.int64)
        return Duplicates(
            fate=fate, twin=twin, cluster=cluster, beyond=0, similarity=np.empty(0, np.float64), compared=None
        )
    found = find_near_duplicates(near, fate == KEPT, scratch)
    similar = found.cluster != np.arange(documents)
    fate[similar] = NEAR
    twin[similar] = found.cluster[similar]
    return Duplicates(
        fate=fate,
        twin=twin,
        cluster=found.cluster,
        beyond=found.beyond,
        similarity=found.similarity,
        compared=found.compared,
    )


def _hashed(hashes: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    records = np.empty(len(numbers), HASHED)
    records["hash"] = hashes[:, 0]
    records["second"] = hashes[:, 1]
    records["document"] = numbers
    return records


def mark_equal(records: np.ndarray, fate: np.ndarray, twin: np.ndarray, verdict: int) -> None:
    records = records[fate[records["document"]] == KEPT]
    if not len(records):
        return
    records = records[np.lexsort((records["document"], records["second"], records["hash"]))]
    same = (records["hash"][1:] == records["hash"][:-1]) & (records["second"][1:] == records["second"][:-1])
    begins = np.concatenate([[True], ~same])
    group = np.cumsum(begins) - 1
    again = np.flatnonzero(~begins)
    fate[records["document"][again]] = verdict
    twin[records["document"][again]] = records["document"][np.flatnonzero(begins)[group[again]]]
