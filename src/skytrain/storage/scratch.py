"""Temporary folders that a killed process does not leave behind for good."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

LOCK = ".lock"  # held by the folder's process; the kernel releases it however the process ends


class ScratchFolder:
    """A temporary folder. Creating one removes those of the same name whose process was killed."""

    def __init__(self, name: str) -> None:
        _remove_dead(name)
        self.path = Path(tempfile.mkdtemp(prefix=f"{name}-"))
        self._lock: Any = (self.path / LOCK).open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.remove()


def _remove_dead(name: str) -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{name}-*"):
        try:
            with (folder / LOCK).open("r") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if folder.stat().st_uid == os.getuid():
                    shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # its process is alive, just begins or ends, or belongs to another user
            continue
