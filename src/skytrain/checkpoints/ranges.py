"""Ranges of files: groups them for reading, and reads one completely. This module does not need torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from ..storage import NotFound, Store
from .errors import USE_ANOTHER, DamagedCheckpoint

ALIGNED_BYTES = 64  # each tensor starts at a multiple of it in its file
JOINED_BYTES = 1 << 20  # adjacent small ranges are read together, up to this size


class FileRange(Protocol):
    @property
    def file(self) -> str: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...


R = TypeVar("R", bound=FileRange)


def spans(ranges: Iterable[R]) -> list[list[R]]:
    """Group adjacent ranges: one request for each of a thousand scalars would take longer than everything else."""
    groups: list[list[R]] = []
    for each in sorted(ranges, key=lambda each: (each.file, each.start)):
        if groups:
            first = groups[-1][0]
            last = groups[-1][-1]
            near = each.file == first.file and each.start - last.end < ALIGNED_BYTES
            if near and each.end - first.start <= JOINED_BYTES:
                groups[-1].append(each)
                continue
        groups.append([each])
    return groups


def read_exactly(store: Store, key: str, start: int, length: int) -> bytes:
    try:
        data = store.read_range(key, start, length)
    except NotFound:
        raise DamagedCheckpoint(f"{store.url(key)} is missing{USE_ANOTHER}") from None
    if len(data) != length:
        there = store.stat(key)
        size = there.size if there else 0
        raise DamagedCheckpoint(
            f"{store.url(key)} was cut short: {size} bytes are there, at least {start + length} were committed{USE_ANOTHER}"
        )
    return data
