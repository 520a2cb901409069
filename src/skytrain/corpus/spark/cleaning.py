"""Cleans a source on Spark: each file is read, cleaned and stored in chunks by one task, as a local worker does it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

from skytrain.config import DataConfig, SkytrainError
from skytrain.storage import Store

from .. import chunks as chunk_files
from ..chunks import EXAMPLES, Chunk, clean_piece, finished_chunks, read_head, setup_reader
from ..report import Examples, keep_examples
from ..versions import evaluation_examples
from .jobs import FailedTask, SparkJobs, raised


class CleaningTask(NamedTuple):
    """What tasks need to clean files. A task stops once its own file has given `enough` bytes."""

    data: DataConfig
    examples: list[str]
    reader: tuple[Any, Store, str, set[str]]
    chunk_chars: int
    pieces: list[tuple[int, Any]]
    enough: float


class CleanedFile(NamedTuple):
    """The chunks of one file, and the error that ended it, if any."""

    chunks: list[Chunk]
    failed: FailedTask | None

    @property
    def whole(self) -> bool:
        return bool(self.chunks) and self.chunks[-1].name.endswith("-last")


class SparkCleaning:
    """The chunks of a source in order, cleaned as far as they are asked for."""

    def __init__(self, jobs: SparkJobs, store: Store, folder: str, data: DataConfig, source: Any) -> None:
        self.jobs, self.store, self.folder, self.data, self.source = jobs, store, folder, data, source
        pieces = list(source.pieces()) if hasattr(source, "pieces") else [None]
        self._pieces = list(enumerate(pieces))
        self._examples = evaluation_examples(data)
        self._files: list[CleanedFile] = []  # those that were read

    def until(self, goal: float) -> tuple[list[Chunk], bool]:
        """Return the first chunks with `goal` bytes of text together, and whether these are all there are."""
        while True:
            chunks, size = [], 0
            for file in self._files:
                for chunk in file.chunks:
                    chunks.append(chunk)
                    size += chunk.bytes
                    if size >= goal:
                        return chunks, False
                if file.failed is not None:  # only now: without the goal it would not have been read so far
                    raise file.failed.error()
            if len(self._files) == len(self._pieces) and all(file.whole for file in self._files):
                return chunks, True
            self._clean_more(goal, size)

    def _clean_more(self, goal: float, size: int) -> None:
        """Clean the next files: all of them, or with a target only as many as are likely to be needed."""
        if self._files and not self._files[-1].whole:
            size -= sum(chunk.bytes for chunk in self._files.pop().chunks)
        pieces, missing = self._pieces[len(self._files) :], goal - size
        if math.isfinite(missing):
            pieces = pieces[: max(2 * self.jobs.cores, _files_for(pieces, missing))]
        done = finished_chunks(self.store, self.folder)
        reader = (self.source, self.store, self.folder, done)
        task = CleaningTask(self.data, self._examples, reader, chunk_files.CHUNK_CHARS, pieces, missing)
        for file in raised(self.jobs.results("clean", _clean_file, self.jobs.share(task), len(pieces))):
            self._files.append(file)
            if not file.whole:
                break  # the files after it are read when it is

    def examples(self, chunks: list[Chunk]) -> Examples:
        """Return what the first few documents were that each rule removed, reading only the chunks that have them."""
        found: Examples = {}
        for chunk in chunks:
            if any(len(found.get(rule, [])) < EXAMPLES for rule in chunk.removed):
                keep_examples(found, read_head(self.store, f"{self.folder}/{chunk.name}").examples)
        return found


def _files_for(pieces: list[tuple[int, Any]], missing: float) -> int:
    """Return how many files hold `missing` bytes as they are stored: text may be more, and less of it may be kept."""
    size = 0
    for count, (_, piece) in enumerate(pieces, start=1):
        size += getattr(piece, "size", 0)
        if size >= missing:
            return count
    return len(pieces)


_READY: CleaningTask | None = None


def _clean_file(task: CleaningTask, number: int) -> CleanedFile:
    global _READY
    if _READY is not task:  # a worker process takes many tasks
        setup_reader(task.data, task.examples, task.reader, task.chunk_chars)
        _READY = task
    chunks: list[Chunk] = []
    try:
        for chunk, _ in clean_piece(task.pieces[number]):
            chunks.append(dataclasses.replace(chunk, examples={}))
            if sum(each.bytes for each in chunks) >= task.enough:
                break
    except SkytrainError as error:
        return CleanedFile(chunks, FailedTask.of(error))
    return CleanedFile(chunks, None)
