"""Cuts records into chunks. Where a chunk ends depends only on the records, so every engine cuts at the same places."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..config import DataConfig, SkytrainError
from .documents import BadRecord, Document

CHUNK_DOCUMENTS = 50_000
SEPARATOR_HINT = "a file of many documents needs data.source.separator, a line that stands between documents"


def cut(
    records: Iterable[Document | BadRecord], data: DataConfig, chunk_chars: int
) -> Iterator[tuple[list[Document], list[BadRecord], bool]]:
    """Yield chunks of bounded size as (documents, bad records, is last)."""
    documents: list[Document] = []
    bad: list[BadRecord] = []
    chars = 0
    for record in records:
        record = limited(record, data)
        if chars >= chunk_chars or len(documents) + len(bad) >= CHUNK_DOCUMENTS:
            yield documents, bad, False
            documents = []
            bad = []
            chars = 0
        if isinstance(record, BadRecord):
            if data.bad_records == "stop":
                raise SkytrainError(f"{record.problem}\n  data.bad_records=skip counts such records and continues")
            bad.append(record)
        else:
            documents.append(record)
            chars += len(record.text)
    yield documents, bad, True


def limited(record: Document | BadRecord, data: DataConfig) -> Document | BadRecord:
    """Return the record, or a `BadRecord` in place of a document that is too long."""
    if isinstance(record, BadRecord) or len(record.text) <= data.max_document_bytes:
        return record
    return BadRecord(
        "size",
        f"document {record.id} has {len(record.text):,} characters, "
        f"more than data.max_document_bytes={data.max_document_bytes:,}"
        + (f"\n  {SEPARATOR_HINT}" if record.source == "text" else ""),
    )


@dataclass
class CutPlan:
    """The places where `cut` begins its chunks, found from only the characters of each record (0 for a bad one)."""

    chunk_chars: int
    _chars: int = 0  # in the last chunk so far
    _records: int = 0  # likewise

    def starts(self, chars: np.ndarray) -> list[int]:
        """Add the next records and return the places among them where a chunk begins, except the first chunk."""
        starts: list[int] = []
        ends = np.cumsum(chars, dtype=np.int64)
        at = 0
        before = 0
        while at < len(chars):
            if self._chars >= self.chunk_chars or self._records >= CHUNK_DOCUMENTS:
                starts.append(at)
                self._chars = self._records = 0
            by_chars = int(np.searchsorted(ends, self.chunk_chars - self._chars + before)) + 1
            end = min(by_chars, at + CHUNK_DOCUMENTS - self._records, len(chars))
            self._chars += int(ends[end - 1]) - before
            self._records += end - at
            before = int(ends[end - 1])
            at = end
        return starts


class ChunkRun(NamedTuple):
    """Consecutive chunks of a file, read from a span in the middle of it."""

    start: int  # of the span to read from
    before: int  # lines or rows before that span
    skip: int  # records at its start that belong to the previous chunk
    first: int  # the number of the first chunk
    chunks: int

    def finished(self, piece: int, done: set[str]) -> list[str]:
        """Return the names of the finished ones among these chunks."""
        names = (f"{piece:06d}-{number:06d}" for number in range(self.first, self.first + self.chunks))
        return [stored for name in names for stored in (name, f"{name}-last") if stored in done]
