"""Transfers: counting, hashing and progress reports, and atomic writes of local files."""

from __future__ import annotations

import fcntl
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
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
DEAD_SECONDS = 24 * 3600.0  # like a bucket's lifecycle rule for incomplete uploads


class Transfer:
    """The count and the hash of one object's bytes. A second pass restarts both."""

    def __init__(self, key: str, progress: Progress | None) -> None:
        self._key = key
        self._progress = progress
        self.size = 0
        self._digest = hashlib.sha256()

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
    temporary, opened = _open_temporary(path)
    try:
        with opened as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
            publish(temporary, path)  # while locked: an unlocked file would be deleted as a killed writer's
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
    """Delete temporary files of killed writers: this machine's at once, others when they are a day old.

    A writer locks its file. Locks of other machines cannot be trusted on every shared file system.
    """
    for left in folder.glob(f"{TEMPORARY_PREFIX}*"):
        with suppress(OSError):  # its writer is alive, it is already deleted, or owned by another user
            if _this_machine() and left.name.startswith(f"{TEMPORARY_PREFIX}{_this_machine()}-"):
                with left.open("r+b") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    left.unlink()
            elif time.time() - left.stat().st_mtime > DEAD_SECONDS:
                left.unlink()


@functools.cache
def _this_machine() -> str:
    """Return a name of the running kernel, whose locks all its processes see; empty if it has none."""
    try:
        return BOOT_ID.read_text().partition("-")[0]
    except OSError:
        return ""


def _open_temporary(path: Path) -> tuple[Path, BinaryIO]:
    """Create a locked temporary file in the folder of `path`."""
    while True:
        temporary = path.with_name(f"{TEMPORARY_PREFIX}{_this_machine()}-{secrets.token_hex(8)}")
        file = _open_new(temporary)
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return temporary, file
        file.close()  # another process deleted it before it was locked


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
        hint="the object was altered or replaced: create it again",
    )
