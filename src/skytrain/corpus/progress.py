"""Progress display while a source is cleaned."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from ..config import format_bytes, plural
from .chunks import Stored

SETTLE_SECONDS = 2.0  # results of several workers arrive in bursts: a rate over less time would mean nothing


class ShowProgress(Protocol):
    def __call__(
        self, stage: str, done: float, total: float | None, detail: str = "", seconds_left: float | None = None
    ) -> None: ...


class Pace:
    """The rate of work, measured from the first result, so that start-up time does not count."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._first: tuple[float, float] | None = None  # its time, and how much was done by then

    def per_second(self, done: float) -> float | None:
        """Return the rate, or None until it can be measured."""
        if self._first is None:
            self._first = (self._clock(), done)
        since, before = self._first
        seconds = self._clock() - since
        return (done - before) / seconds if done > before and seconds >= SETTLE_SECONDS else None

    def seconds_left(self, done: float, total: float | None) -> float | None:
        speed = self.per_second(done)
        return max(0.0, total - done) / speed if speed and total is not None else None


class CleaningProgress:
    """Progress in bytes of needed text, or of the source's files; the rate counts only work of this run."""

    def __init__(self, progress: ShowProgress | None, source: Any, needed_bytes: int | None) -> None:
        self.progress = progress
        self.needed_bytes = needed_bytes
        sizes = [getattr(piece, "size", 0) for piece in source.pieces()] if hasattr(source, "pieces") else []
        self.file_bytes = sum(sizes)
        self.positions: dict[int, int] = {}  # read position of each file; workers read several at a time
        self.documents = self.read_bytes = self.kept_bytes = self.done_bytes = 0
        self.any_new = False
        self.pace = Pace()
        self.documents_pace = Pace()
        self.bytes_pace = Pace()

    @property
    def total_bytes(self) -> int | None:
        return self.needed_bytes or self.file_bytes or None

    def show(self, stored: Stored) -> None:
        """Report a finished chunk; chunks may come in any order."""
        if self.progress is None:
            return
        chunk = stored.chunk
        self.documents += chunk.documents_read
        self.read_bytes += chunk.bytes_read
        self.kept_bytes += chunk.bytes
        if self.file_bytes and not self.needed_bytes:
            self.done_bytes += chunk.input_bytes - self.positions.get(chunk.piece, 0)
            self.positions[chunk.piece] = chunk.input_bytes
        else:
            self.done_bytes = self.kept_bytes
        detail = f"{plural(self.documents, 'document')}, {format_bytes(self.read_bytes)} read, {format_bytes(self.kept_bytes)} kept"
        total = self.total_bytes
        left = None
        self.any_new = self.any_new or stored.is_new
        if self.any_new:
            left = self.pace.seconds_left(self.done_bytes, total)
            detail += self._speed()
        else:
            detail += " by an earlier run"
        self.progress("clean", self.done_bytes / 1e6, total / 1e6 if total else None, detail, left)

    def _speed(self) -> str:
        documents = self.documents_pace.per_second(self.documents)
        size = self.bytes_pace.per_second(self.read_bytes)
        return f" | {documents:,.0f} documents/s, {size / 1e6:.1f} MB/s" if documents and size else ""
