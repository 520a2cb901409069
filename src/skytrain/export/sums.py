"""Hashes of an exported folder, as `sha256sum` writes and checks them. This module does not need torch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from ..config import SkytrainError

SUMS = "SHA256SUMS"
NOT_HASHED = (SUMS, "README.md")  # people edit the model card
Progress = Callable[[float, float], None]  # bytes done, and in total


def files_of(folder: Path) -> list[Path]:
    """Return the files of a folder, in order; raises SkytrainError for a link to a file that is not the model's.

    Whoever made the folder could otherwise have any file of yours uploaded. Files of the hub's cache are links into it.
    """
    inside = folder.resolve()
    blobs = inside.parents[1] / "blobs" if len(inside.parents) > 1 and inside.parent.name == "snapshots" else inside
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in found:
        if not path.resolve().is_relative_to(inside) and not path.resolve().is_relative_to(blobs):
            raise SkytrainError(
                f"{path} is a link to {path.resolve()}, which is not a file of this folder\n"
                "  remove it, or copy the file there"
            )
    return found


def write_sums(folder: Path) -> None:
    """Write the hashes of all files of the folder except the model card."""
    files = [path for path in files_of(folder) if path.name not in NOT_HASHED]
    lines = [f"{hash_file(path)}  {path.relative_to(folder).as_posix()}\n" for path in files]
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")


def read_sums(text: str, where: str) -> dict[str, str]:
    """Return the hash of each file by its name. `where` names the list in an error."""
    sums = {}
    for line in text.splitlines():
        digest, separator, name = line.partition("  ")
        if not separator or len(digest) != 64 or name.startswith("/") or ".." in name.split("/"):
            raise SkytrainError(
                f"{where} is damaged: {line[:80]!r} is not a hash and a file name\n  export the model again"
            )
        sums[name] = digest
    return sums


def check_sums(folder: Path, progress: Progress = lambda done, total: None) -> bool:
    """Compare all files with the folder's hashes; return False if it has none, like a folder of another program.

    Raises SkytrainError for a file that is missing or has changed, and for weights that are not among the hashes.
    """
    path = folder / SUMS
    if not path.is_file():
        return False
    sums = read_sums(path.read_text(encoding="utf-8", errors="replace"), str(path))
    missing = [name for name in sums if not (folder / name).is_file()]
    if missing:
        raise SkytrainError(f"{folder / missing[0]} is missing\n  {SUMS} names it: export the model again")
    unknown = sorted(each.name for each in folder.glob("*.safetensors") if each.name not in sums)
    if unknown:
        raise SkytrainError(f"{folder / unknown[0]} is not in {SUMS}\n  remove it, or export the model again")
    total = sum((folder / name).stat().st_size for name in sums)
    done = 0
    for name, expected in sums.items():
        if hash_file(folder / name) != expected:
            raise SkytrainError(
                f"{folder / name} was damaged or changed since the export: its hash is not that of {SUMS}\n"
                f"  export the model again; or remove {path}, if you changed the file on purpose"
            )
        done += (folder / name).stat().st_size
        progress(done, total)
    return True


def hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
