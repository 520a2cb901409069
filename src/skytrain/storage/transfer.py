"""Transfers: counting, hashing and progress reports, and atomic writes of local files."""

from __future__ import annotations

import functools
import hashlib
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from .base import TEMPORARY_PREFIX, Progress
from .errors import StoreError

CHUNK_BYTES = 1 << 20
DEAD_SECONDS = 24 * 3600.0  # like a bucket's lifecycle rule for incomplete uploads


class Transfer:
    """Counts and hashes the bytes of one object. A second pass restarts the count and the hash."""

    def __init__(self, key: str, progress: Progress | None) -> None:
        self._key, self._progress = key, progress
        self.size, self._digest = 0, hashlib.sha256()

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def through(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        self._report(-self.size)
        self.size, self._digest = 0, hashlib.sha256()
        for chunk in chunks:
            self._digest.update(chunk)
            self.size += len(chunk)
            yield chunk
            self._report(len(chunk))

    def _report(self, amount: int) -> None:
        if self._progress and amount:
            self._progress(self._key, amount)


def file_chunks(file: BinaryIO) -> Iterator[bytes]:
    return iter(lambda: file.read(CHUNK_BYTES), b"")


def write_whole(
    path: Path, chunks: Iterable[bytes | memoryview], publish: Callable[[Path, Path], object] = os.replace
) -> None:
    """Write a file atomically: it gets its name only when complete and on disk, so it survives a power failure."""
    temporary = path.with_name(TEMPORARY_PREFIX + secrets.token_hex(8))
    try:
        with _open_new(temporary) as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        publish(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    _clear_dead(path.parent)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # makes the new name durable
    finally:
        os.close(folder)


@functools.cache  # once per folder and process
def _clear_dead(folder: Path) -> None:
    """Delete temporary files of killed writers that have not changed for a day."""
    for left in folder.glob(f"{TEMPORARY_PREFIX}*"):
        with suppress(OSError):  # already deleted, or owned by another user
            if time.time() - left.stat().st_mtime > DEAD_SECONDS:
                left.unlink()


def _open_new(path: Path) -> BinaryIO:
    for _ in range(100):
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # another process removed the empty folder in between
            return path.open("xb")
    return path.open("xb")


def changed(url: str, path: Path | str) -> StoreError:
    return StoreError("upload", url, f"{path} changed while it was read", hint="run it again")


def altered(url: str, expected: str, actual: str) -> StoreError:
    return StoreError(
        "download",
        url,
        f"its sha256 is {actual}, but {expected} was expected",
        hint="the object was altered or replaced: make it again",
    )
