"""This machine: Python, the packages, room on the disk."""

from __future__ import annotations

import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ... import __version__
from ...config import format_bytes, skytrain_cache_folder
from .check import Failed, Preflight

OLDEST_PYTHON = (3, 11)
NEEDED_DISK_BYTES = 5e9  # a checkpoint of GPT-2 124M and its data fit
INSTALL = "pip install 'skytrain[train]'"


def python(_: Preflight) -> str:
    found = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < OLDEST_PYTHON:
        raise Failed(f"Python {found} is older than 3.11", "install Python 3.11 or newer")
    return f"Python {found}, Skytrain {__version__}"


def packages(_: Preflight) -> str:
    """Read the installed versions without importing: torch takes seconds."""
    found = []
    missing = []
    for name in ("torch", "lightning", "boto3"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        extra = "aws" if missing == ["boto3"] else "train,aws"
        raise Failed(f"{', '.join(missing)} not installed", f"pip install 'skytrain[{extra}]'")
    return ", ".join(found)


def disk(preflight: Preflight) -> str:
    folder = Path.cwd() if "://" in preflight.config.store.root else Path(preflight.config.store.root).absolute()
    rooms = {str(place): _free(place) for place in (folder, skytrain_cache_folder())}
    place, free = min(rooms.items(), key=lambda room: room[1])
    if free < NEEDED_DISK_BYTES:
        raise Failed(
            f"only {format_bytes(free)} free at {place}",
            f"free at least {format_bytes(NEEDED_DISK_BYTES)}, or set store.root and SKYTRAIN_CACHE to another disk",
        )
    return f"{format_bytes(free)} free at {place}"


def _free(place: Path) -> float:
    while not place.exists():
        place = place.parent
    return float(shutil.disk_usage(place).free)
