"""Writes the kept documents on Spark: measures each block, plans the parts in order, writes each part in one task."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ...storage import read_numbers
from ..build import Slice, assemble
from ..chunks import EXAMPLES, read_facts
from ..dedup import EXACT, KEPT, NEAR, SAME_ID
from ..manifest import CorpusPart
from .jobs import SparkJobs, raised
from .place import CorpusPlace
from .similar import fates_of
from .tables import RecordTable


class BlockFacts(NamedTuple):
    """The documents that one block keeps and removes; the sizes of those it keeps are in a file."""

    kept: list[int]  # documents, by chunk
    kept_bytes: int
    removed: dict[str, int]  # by fate; strings, as JSON has them
    first: dict[str, list[int]]  # the first few documents, by fate


class PartSlice(NamedTuple):
    """A range of the kept documents of a chunk."""

    chunk: int
    start: int
    end: int


@dataclass(frozen=True)
class PartsPlan:
    """Where tasks find the fates of documents, and what goes into each part."""

    place: CorpusPlace
    removed: tuple[RecordTable, ...]
    folder: str
    parts: tuple[tuple[PartSlice, ...], ...] = ()


def measure_blocks(jobs: SparkJobs, plan: PartsPlan) -> list[BlockFacts]:
    measured = raised(jobs.results("measure", _measure, jobs.share(plan), len(plan.place.blocks) - 1))
    return [BlockFacts(*facts) for facts in measured]


def _measure(plan: PartsPlan, block: int) -> tuple[Any, ...]:
    place = plan.place
    fates = fates_of(place, list(plan.removed), block)
    first = place.first_of(block)
    sizes = [np.empty(0, np.uint64)]
    kept = []
    for i in place.chunks_of(block):
        start = int(place.firsts[i]) - first
        rows = np.flatnonzero(fates[start : start + place.chunks[i].documents] == KEPT)
        sizes.append(read_facts(place.store, place.clean, place.chunks[i])["bytes"][rows])
        kept.append(len(rows))
    joined = np.concatenate(sizes)
    place.store.write(sizes_key(place, block), joined.tobytes())
    gone = (SAME_ID, EXACT, NEAR)
    return (
        kept,
        int(joined.sum()),
        {str(fate): int((fates == fate).sum()) for fate in gone},
        {str(fate): (first + np.flatnonzero(fates == fate)[:EXAMPLES]).tolist() for fate in gone},
    )


def plan_parts(place: CorpusPlace, blocks: list[BlockFacts], part_bytes: int) -> Iterator[tuple[PartSlice, ...]]:
    """Assign the kept documents to parts in order, as the local engine does; a part is full at `part_bytes`.

    This process reads 8 bytes for each kept document, block by block.
    """
    slices: list[PartSlice] = []
    size = 0
    for chunk, sizes in _sizes_by_chunk(place, blocks):
        ends = np.cumsum(sizes, dtype=np.int64)
        start = 0
        before = 0
        while start < len(sizes):
            end = min(int(np.searchsorted(ends, part_bytes - size + before)) + 1, len(sizes))
            slices.append(PartSlice(chunk, start, end))
            size += int(ends[end - 1]) - before
            before = int(ends[end - 1])
            start = end
            if size >= part_bytes:
                yield tuple(slices)
                slices = []
                size = 0
    if slices:
        yield tuple(slices)


def _sizes_by_chunk(place: CorpusPlace, blocks: list[BlockFacts]) -> Iterator[tuple[int, np.ndarray]]:
    for number, block in enumerate(blocks):
        sizes = read_numbers(place.store, sizes_key(place, number), np.uint64)
        ends = np.cumsum([0, *block.kept])
        for i, chunk in enumerate(place.chunks_of(number)):
            yield chunk, sizes[ends[i] : ends[i + 1]]


def write_parts(jobs: SparkJobs, plan: PartsPlan) -> Iterable[CorpusPart]:
    return raised(jobs.results("write", _write_part, jobs.share(plan), len(plan.parts)))


def _write_part(plan: PartsPlan, number: int) -> CorpusPart:
    place = plan.place
    slices = []
    block = -1
    fates = np.empty(0, np.uint8)
    for chunk, start, end in plan.parts[number]:
        mine = int(np.searchsorted(place.blocks, chunk, side="right")) - 1
        if mine != block:
            block = mine
            fates = fates_of(place, list(plan.removed), mine)
        first = int(place.firsts[chunk]) - place.first_of(block)
        rows = np.flatnonzero(fates[first : first + place.chunks[chunk].documents] == KEPT)
        slices.append(Slice(chunk, rows[start:end]))
    body, documents, text_bytes = assemble(place.store, place.clean, list(place.chunks), slices)
    name = f"part-{number:05d}.parquet"
    place.store.write(f"{plan.folder}/{name}", body)
    return CorpusPart(
        name=name, documents=documents, text_bytes=text_bytes, bytes=len(body), sha256=hashlib.sha256(body).hexdigest()
    )


def sizes_key(place: CorpusPlace, block: int) -> str:
    return f"{place.work}/sizes/{block:06d}"
