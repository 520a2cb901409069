"""Temporary folders that a killed process does not leave behind for good."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..config import SkytrainError

LOCK = ".lock"  # held by the folder's process; the kernel releases it however the process ends


class ScratchFull(SkytrainError):
    """The disk of the temporary files is full. What was stored is kept for the next call."""


class ScratchFolder:
    """A temporary folder. Creating one removes those of the same name whose process was killed."""

    def __init__(self, name: str) -> None:
        _remove_dead(name)
        self.path, self._lock = _locked_folder(name)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.remove()

    @contextmanager
    def needing(self, room: str) -> Iterator[None]:
        """Raise `ScratchFull` if the disk fills up in this block; `room` says how much is written, and for what."""
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise ScratchFull(
                f"no space is left on the disk of {self.path}\n  it takes {room}\n"
                "  set TMPDIR to a folder with enough space and start again: finished work is kept"
            ) from None


def _locked_folder(name: str) -> tuple[Path, Any]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=f"{name}-"))
        try:
            lock = (path / LOCK).open("w")
        except FileNotFoundError:
            continue  # another process removed it as abandoned before there was a lock
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (path / LOCK).exists():
            return path, lock
        lock.close()


def _remove_dead(name: str) -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{name}-*"):
        try:
            if folder.stat().st_uid != os.getuid():
                continue
            # A folder without a lock: its process was killed in between, or is about to create it.
            with (folder / LOCK).open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # its process is alive, or another one is removing it
            continue
