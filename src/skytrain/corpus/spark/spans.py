"""Large files on Spark: several tasks read one file, and write the chunks that a single reader would write.

Where a chunk begins depends on the sizes of all records before it. So a first job counts the characters of each
record, span by span. From the counts this process plans the chunks, and each task cleans those that begin in its span.
Counting only reads and parses, which is a small part of the work of cleaning.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from ...config import DataConfig
from ...storage import Store, read_numbers
from ..chunks import finished_piece
from ..cut import ChunkRun, CutPlan, limited
from ..documents import BadRecord
from ..files import FileSpan
from .jobs import SparkJobs, raised

SPAN_BYTES = 64 << 20
SPANS_PER_CORE = 4  # enough to keep every core busy, and few enough that not many files are read twice
HEAD = 2  # numbers before the sizes in a file of counts: the lines or rows, and whether the file ends here


class FilePart(NamedTuple):
    """The work of one cleaning task: an entire piece, or a run of its chunks."""

    number: int
    piece: Any
    run: ChunkRun | None = None


class CountedSpan(NamedTuple):
    number: int
    piece: Any
    place: int  # among the spans of the piece
    span: FileSpan


@dataclass(frozen=True)
class CountingTask:
    """The inputs of counting tasks."""

    store: Store
    folder: str  # of the counts
    data: DataConfig
    source: Any
    span_bytes: int
    pieces: tuple[tuple[int, Any], ...] = ()
    uncounted: tuple[CountedSpan, ...] = ()


@dataclass
class FileSpans:
    """Divides large files among tasks."""

    jobs: SparkJobs
    task: CountingTask
    chunk_chars: int
    _spans: dict[int, list[FileSpan]] = field(default_factory=dict)  # of each piece; one span if it is not divided
    _used: dict[int, int] = field(default_factory=dict)  # how many spans of each piece have been counted so far

    def parts(self, pieces: list[tuple[int, Any]], done: set[str], missing: float) -> list[FilePart]:
        """Return the parts of some pieces; those that are `done` need no reading and are not divided.

        With a target, only as much of a large piece is counted as is likely to have `missing` bytes of text, and twice
        as much each time the same piece is asked for again.
        """
        large = [
            (number, piece) for number, piece in pieces if self._is_large(piece) and not finished_piece(number, done)
        ]
        self._find_spans([(number, piece) for number, piece in large if number not in self._spans])
        divided = [(number, piece) for number, piece in large if len(self._spans[number]) > 1]
        for number, _ in divided:
            self._used[number] = self._wanted(number, missing)
        self._count(divided)
        runs = {number: list(self._runs(number)) for number, _ in divided}
        return [FilePart(number, piece, run) for number, piece in pieces for run in runs.get(number, [None])]

    def _is_large(self, piece: Any) -> bool:
        return hasattr(self.task.source, "spans") and piece.size > self.task.span_bytes

    def _find_spans(self, pieces: list[tuple[int, Any]]) -> None:
        shared = self.jobs.share(replace(self.task, pieces=tuple(pieces)))
        spans = raised(self.jobs.results("spans", _spans_of, shared, len(pieces)))
        self._spans |= {number: each for (number, _), each in zip(pieces, spans, strict=True)}

    def _wanted(self, number: int, missing: float) -> int:
        most = len(self._spans[number])
        used = self._used.get(number, 0)
        first = math.ceil(missing / self.task.span_bytes) if math.isfinite(missing) else most
        return min(most, max(first, 2 * self.jobs.cores, 2 * used))

    def _count(self, pieces: list[tuple[int, Any]]) -> None:
        done = {stat.key for stat in self.task.store.list(self.task.folder)}
        uncounted = [
            CountedSpan(number, piece, place, span)
            for number, piece in pieces
            for place, span in enumerate(self._spans[number][: self._used[number]])
            if _key(self.task, number, place) not in done
        ]
        shared = self.jobs.share(replace(self.task, uncounted=tuple(uncounted)))
        for _ in raised(self.jobs.results("count", _count_span, shared, len(uncounted))):
            pass

    def _runs(self, number: int) -> Iterator[ChunkRun]:
        """Plan the chunks of a piece as far as it has been counted, except a last one whose end is not known yet."""
        spans = self._spans[number]
        plan = CutPlan(self.chunk_chars)
        starts: list[list[int]] = [[] for _ in spans]  # where chunks begin among the records of each span
        starts[0].append(0)
        before = [0]
        is_whole = False
        for place in range(self._used[number]):
            counted = read_numbers(self.task.store, _key(self.task, number, place), np.int64)
            starts[place] += plan.starts(counted[HEAD:])
            before.append(before[-1] + int(counted[0]))
            is_whole = bool(counted[1]) or place == len(spans) - 1
            if is_whole:
                break
        first = 0
        known = sum(map(len, starts)) - (0 if is_whole else 1)
        for place, mine in enumerate(starts):
            count = min(len(mine), known - first)
            if count:
                yield ChunkRun(start=spans[place].start, before=before[place], skip=mine[0], first=first, chunks=count)
                first += count


def _spans_of(task: CountingTask, number: int) -> list[FileSpan]:
    spans: list[FileSpan] = task.source.spans(task.pieces[number][1], task.span_bytes)
    return spans


def _count_span(task: CountingTask, number: int) -> None:
    """Store how many lines or rows a span has, and the characters of each of its records, 0 for a bad one."""
    piece_number, piece, place, span = task.uncounted[number]
    numbers = 0
    is_end = False
    chars = []
    for record in task.source.read_span(piece, span, min(place, 1)):  # only the first line of a file is special
        numbers += 1
        if record is None:
            continue
        record = limited(record, task.data)
        if not isinstance(record, BadRecord):
            chars.append(len(record.text))
            continue
        chars.append(0)
        if record.kind == "file" or task.data.bad_records == "stop":
            is_end = True
            break
    counted = np.array([numbers, is_end, *chars], np.int64)
    task.store.write(_key(task, piece_number, place), counted.tobytes())


def _key(task: CountingTask, number: int, place: int) -> str:
    return f"{task.folder}/{task.span_bytes}/{number:06d}-{place:06d}"
