"""Atomic creation of folders."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..config import SkytrainError


def check_new_folder(target: Path) -> None:
    """Raise SkytrainError if `target` exists and is not an empty folder. Call it before a long computation."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise SkytrainError(f"{target} exists and is not an empty folder\n  choose another, or remove it first")


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to `target` if the block succeeds and removed if it raises.

    Raises SkytrainError if `target` exists and is not an empty folder, or cannot be written.
    """
    check_new_folder(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise SkytrainError(f"{target} cannot be written: {error}") from None
    try:
        yield draft
        follow_umask(draft)
        draft.replace(target)  # replaces an empty folder; raises if files were added meanwhile
    except BaseException as error:
        shutil.rmtree(draft, ignore_errors=True)
        if isinstance(error, OSError):
            raise SkytrainError(f"{target} cannot be written: {error}") from error
        raise


def follow_umask(path: Path) -> None:
    """Set the modes of a file, or of a folder and its contents, to those that `open` and `mkdir` would give.

    mkdtemp and safetensors' writer create files that only their owner can read.
    """
    mask = os.umask(0)
    os.umask(mask)
    for each in [path, *path.rglob("*")] if path.is_dir() else [path]:
        each.chmod((0o777 if each.is_dir() else 0o666) & ~mask)
