"""Finds documents with equal ids, then with equal texts: sorted by hash, each group read as a stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np

from ..chunks import read_facts
from ..dedup import EXACT, KEPT, SAME_ID
from ..duplicates import REMOVED
from .jobs import SparkJobs
from .place import CorpusPlace
from .streams import EqualKeys
from .tables import RecordTable, batch, columns_of

HASHED = "id0 long, id1 long, text0 long, text1 long, number long"
MARKED = "text0 long, text1 long, number long, fate byte, twin long"
BY_BLOCK = "block int, number long, fate byte, twin long, similarity double"


def find_equal(jobs: SparkJobs, shared: Any, exact: bool) -> RecordTable:
    """Write the documents that are removed because an earlier one has their id or their text."""
    place: CorpusPlace = shared.value
    facts = jobs.tasks(_hashed, shared, len(place.blocks) - 1, HASHED)
    marked = jobs.sorted_by(facts, "id0", "id0", "id1", "number").mapInArrow(_same_id, MARKED)
    if exact:
        marked = jobs.sorted_by(marked, "text0", "text0", "text1", "number").mapInArrow(_same_text, MARKED)
    removed = marked.mapInArrow(partial(_removed, shared), BY_BLOCK)
    return jobs.table_by_block("equal", "equal", REMOVED, removed, shared)


def _hashed(place: CorpusPlace, block: int) -> Iterator[Any]:
    for i in place.chunks_of(block):
        facts = read_facts(place.store, place.clean, place.chunks[i])
        ids = facts["id"].view(np.int64)
        texts = facts["text"].view(np.int64)
        numbers = place.firsts[i] + np.arange(len(facts))
        yield batch(id0=ids[:, 0], id1=ids[:, 1], text0=texts[:, 0], text1=texts[:, 1], number=numbers)


def _same_id(batches: Iterable[Any]) -> Iterator[Any]:
    groups = EqualKeys()
    for id0, id1, text0, text1, numbers in columns_of(batches, "id0", "id1", "text0", "text1", "number"):
        twins = groups.twins(id0, id1, numbers)
        fates = np.where(twins < 0, KEPT, SAME_ID).astype(np.int8)
        yield batch(text0=text0, text1=text1, number=numbers, fate=fates, twin=twins)


def _same_text(batches: Iterable[Any]) -> Iterator[Any]:
    groups = EqualKeys()
    for text0, text1, numbers, fates, twins in columns_of(batches, "text0", "text1", "number", "fate", "twin"):
        fates, twins = fates.copy(), twins.copy()
        kept = np.flatnonzero(fates == KEPT)
        twins[kept] = groups.twins(text0[kept], text1[kept], numbers[kept])
        fates[kept[twins[kept] >= 0]] = EXACT
        yield batch(text0=text0, text1=text1, number=numbers, fate=fates, twin=twins)


def _removed(shared: Any, batches: Iterable[Any]) -> Iterator[Any]:
    place: CorpusPlace = shared.value
    for numbers, fates, twins in columns_of(batches, "number", "fate", "twin"):
        gone = np.flatnonzero(fates != KEPT)
        yield batch(
            block=place.block_of(numbers[gone]),
            number=numbers[gone],
            fate=fates[gone],
            twin=twins[gone],
            similarity=np.ones(len(gone)),
        )
