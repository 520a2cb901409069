"""A folder that is created atomically."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..config import SkytrainError


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A temporary sibling to write into: renamed to `target` when the block succeeds, removed when it raises."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise SkytrainError(f"{target} exists and is not an empty folder\n  choose another, or remove it first")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise SkytrainError(f"{target} cannot be written: {error}") from None
    try:
        yield draft
        follow_umask(draft)
        draft.replace(target)  # an empty folder may be replaced; one that filled up meanwhile is an error
    except BaseException as error:
        shutil.rmtree(draft, ignore_errors=True)
        if isinstance(error, OSError):
            raise SkytrainError(f"{target} cannot be written: {error}") from error
        raise


def follow_umask(path: Path) -> None:
    """Set the modes of a file, or of a folder and its contents, to those of plain `open` and `mkdir`.

    mkdtemp and safetensors' writer create files that only their owner can read.
    """
    mask = os.umask(0)
    os.umask(mask)
    for each in [path, *path.rglob("*")] if path.is_dir() else [path]:
        each.chmod((0o777 if each.is_dir() else 0o666) & ~mask)
