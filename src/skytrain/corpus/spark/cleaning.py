"""Cleans a source on Spark: tasks read, clean and store files in chunks, as local workers do.

A large file is shared by several tasks.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

from ...config import DataConfig, SkytrainError
from ...storage import Store
from .. import chunks as chunk_files
from ..chunks import EXAMPLES, Chunk, clean_piece, clean_run, finished_chunks, read_head, setup_reader
from ..report import Examples, keep_examples
from ..versions import evaluation_examples
from .jobs import FailedTask, SparkJobs, raised
from .spans import SPAN_BYTES, SPANS_PER_CORE, CountingTask, FilePart, FileSpans


class CleaningTask(NamedTuple):
    """The inputs of cleaning tasks. A task that reads an entire file stops once it has `enough` bytes of text."""

    data: DataConfig
    examples: list[str]
    reader: tuple[Any, Store, str, set[str]]
    chunk_chars: int
    parts: list[FilePart]
    enough: float


class CleanedFile(NamedTuple):
    """The chunks of one file, and the error that ended it, if any."""

    chunks: list[Chunk]
    failed: FailedTask | None

    @property
    def is_complete(self) -> bool:
        return bool(self.chunks) and self.chunks[-1].name.endswith("-last")


class SparkCleaning:
    """The chunks of a source in order, cleaned only as far as they are asked for."""

    def __init__(self, jobs: SparkJobs, store: Store, folder: str, data: DataConfig, source: Any) -> None:
        self.jobs = jobs
        self.store = store
        self.data = data
        self.source = source
        self.folder = f"{folder}/clean"
        self._counts = f"{folder}/spark/counts"
        pieces = list(source.pieces()) if hasattr(source, "pieces") else [None]
        self._pieces = list(enumerate(pieces))
        self._examples = evaluation_examples(data)
        self._files: list[CleanedFile] = []  # those that were read
        self._spans: FileSpans | None = None

    def until(self, goal: float) -> tuple[list[Chunk], bool]:
        """Return the first chunks with `goal` bytes of text together, and whether these are all there are."""
        while True:
            chunks = []
            size = 0
            for file in self._files:
                for chunk in file.chunks:
                    chunks.append(chunk)
                    size += chunk.bytes
                    if size >= goal:
                        return chunks, False
                if file.failed is not None:  # raised only here, because the goal may be reached before the error
                    raise file.failed.error()
            if len(self._files) == len(self._pieces) and all(file.is_complete for file in self._files):
                return chunks, True
            self._clean_more(goal, size)

    def _clean_more(self, goal: float, size: int) -> None:
        """Clean the next files: all of them, or with a target only as many as are likely to be needed."""
        if self._files and not self._files[-1].is_complete:
            size -= sum(chunk.bytes for chunk in self._files.pop().chunks)
        pieces = self._pieces[len(self._files) :]
        missing = goal - size
        if math.isfinite(missing):
            pieces = pieces[: max(2 * self.jobs.cores, _files_for(pieces, missing))]
        done = finished_chunks(self.store, self.folder)
        reader = (self.source, self.store, self.folder, done)
        parts = self._divided(goal).parts(pieces, done, missing)
        task = CleaningTask(
            data=self.data,
            examples=self._examples,
            reader=reader,
            chunk_chars=chunk_files.CHUNK_CHARS,
            parts=parts,
            enough=missing,
        )
        cleaned = raised(self.jobs.results("clean", _clean_part, self.jobs.share(task), len(parts)))
        by_file: dict[int, list[CleanedFile]] = {number: [] for number, _ in pieces}
        for part, each in zip(parts, cleaned, strict=True):
            by_file[part.number].append(each)
        for of_file in by_file.values():
            self._files.append(_joined(of_file))
            if not self._files[-1].is_complete:
                break  # the files after it are read once it is complete

    def _divided(self, goal: float) -> FileSpans:
        if self._spans is None:
            total = min(goal, sum(getattr(piece, "size", 0) for _, piece in self._pieces))
            share = max(SPAN_BYTES, int(total / self.jobs.cores / SPANS_PER_CORE))
            size = self.jobs.split_bytes or share
            task = CountingTask(
                store=self.store, folder=self._counts, data=self.data, source=self.source, span_bytes=size
            )
            self._spans = FileSpans(jobs=self.jobs, task=task, chunk_chars=chunk_files.CHUNK_CHARS)
        return self._spans

    def examples(self, chunks: list[Chunk]) -> Examples:
        """Return the first few documents that each rule removed, reading only the chunks that have them."""
        examples: Examples = {}
        for chunk in chunks:
            if any(len(examples.get(rule, [])) < EXAMPLES for rule in chunk.removed):
                keep_examples(examples, read_head(self.store, f"{self.folder}/{chunk.name}").examples)
        return examples


def _files_for(pieces: list[tuple[int, Any]], missing: float) -> int:
    """Return how many files have `missing` stored bytes: a guess, since text expands and not all of it is kept."""
    size = 0
    for count, (_, piece) in enumerate(pieces, start=1):
        size += getattr(piece, "size", 0)
        if size >= missing:
            return count
    return len(pieces)


_READY: CleaningTask | None = None


def _clean_part(task: CleaningTask, number: int) -> CleanedFile:
    global _READY
    if _READY is not task:  # a worker process takes many tasks
        setup_reader(task.data, task.examples, task.reader, task.chunk_chars)
        _READY = task
    piece_number, piece, run = task.parts[number]
    chunks: list[Chunk] = []
    try:
        for chunk, _ in clean_run((piece_number, piece), run) if run else clean_piece((piece_number, piece)):
            chunks.append(dataclasses.replace(chunk, examples={}))
            if run is None and sum(each.bytes for each in chunks) >= task.enough:
                break
    except SkytrainError as error:
        return CleanedFile(chunks, FailedTask.of(error))
    return CleanedFile(chunks, None)


def _joined(parts: list[CleanedFile]) -> CleanedFile:
    """Join the parts of a file, up to the first that failed."""
    chunks: list[Chunk] = []
    for part in parts:
        chunks += part.chunks
        if part.failed is not None:
            return CleanedFile(chunks, part.failed)
    return CleanedFile(chunks, None)
