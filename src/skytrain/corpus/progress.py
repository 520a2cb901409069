"""What a person sees while a source is cleaned."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from skytrain.config import format_bytes, format_count, format_seconds

from .chunks import Chunk

Progress = Callable[[str, float, float | None, str], None]  # stage, done, total, detail


class CleaningProgress:
    """Bytes of the text that is needed, or else of the source's files; time to go by the speed of this run alone."""

    def __init__(self, progress: Progress | None, source: Any, needed_bytes: int | None) -> None:
        self.progress, self.needed_bytes = progress, needed_bytes
        sizes = [getattr(piece, "size", 0) for piece in source.pieces()] if hasattr(source, "pieces") else []
        self.file_starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).tolist()
        self.documents = self.read_bytes = self.kept_bytes = self.done_bytes = 0
        self.before: tuple[int, int, int] | None = None  # documents, bytes read and done by an earlier run
        self.started = time.monotonic()

    @property
    def total_bytes(self) -> int | None:
        return self.needed_bytes or self.file_starts[-1] or None

    def show(self, chunk: Chunk, is_new: bool) -> None:
        if self.progress is None:
            return
        if is_new and self.before is None:
            self.before = (self.documents, self.read_bytes, self.done_bytes)
        self.documents += chunk.documents_read
        self.read_bytes += chunk.bytes_read
        self.kept_bytes += chunk.bytes
        in_files = self.file_starts[-1] and not self.needed_bytes
        self.done_bytes = self.file_starts[chunk.piece] + chunk.input_bytes if in_files else self.kept_bytes
        total = self.total_bytes
        self.progress("clean", self.done_bytes / 1e6, total / 1e6 if total else None, self._detail(total))

    def _detail(self, total: int | None) -> str:
        detail = f"{format_count(self.documents)} documents, {format_bytes(self.read_bytes)} read, {format_bytes(self.kept_bytes)} kept"
        if self.before is None:
            return detail + " by an earlier run"
        seconds = max(1e-3, time.monotonic() - self.started)
        documents_before, read_before, done_before = self.before
        documents_per_s = (self.documents - documents_before) / seconds
        read_per_s, done_per_s = (self.read_bytes - read_before) / seconds, (self.done_bytes - done_before) / seconds
        detail += f" | {documents_per_s:,.0f} documents/s, {read_per_s / 1e6:.1f} MB/s"
        if total and done_per_s > 0:
            detail += f" | about {format_seconds(max(0, total - self.done_bytes) / done_per_s)} to go"
        return detail
