"""A checkpoint's folder: files, a manifest of their sizes and hashes, and a marker that is created last.

A folder without the marker does not exist: whoever reads asks for `committed_steps` and sees whole checkpoints only.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ..config import SkytrainError
from ..storage import NotFound, Store

COMMITTED = "COMMITTED"
FORMAT = 1


def step_key(run: str, step: int) -> str:
    return f"runs/{run}/checkpoints/step-{step:09d}"


def committed_steps(store: Store, run: str) -> list[int]:
    """Steps with a whole checkpoint, in order."""
    prefix = f"runs/{run}/checkpoints/"
    steps = [int(name.removeprefix("step-")) for name in store.folders(prefix) if name.startswith("step-")]
    return [step for step in sorted(steps) if store.exists(f"{step_key(run, step)}/{COMMITTED}")]


def write_folder(store: Store, key: str, files: Mapping[str, Path]) -> None:
    """Upload `files` (name -> local path), then the manifest, then the marker."""
    if store.exists(f"{key}/{COMMITTED}"):
        raise SkytrainError(f"{store.url(key)} is a committed checkpoint already; it is not overwritten")
    listed = {}
    for name, path in files.items():
        digest = store.upload(path, f"{key}/{name}")
        listed[name] = {"bytes": path.stat().st_size, "sha256": digest}
    manifest = json.dumps({"format": FORMAT, "files": listed}, indent=2, sort_keys=True).encode()
    store.write(f"{key}/manifest.json", manifest)
    store.create(f"{key}/{COMMITTED}", hashlib.sha256(manifest).hexdigest().encode())


class FolderReader:
    """The files of one committed checkpoint, fetched and verified when asked for."""

    def __init__(self, store: Store, key: str) -> None:
        self._store, self._key = store, key
        try:
            marker = store.read(f"{key}/{COMMITTED}").decode()
            manifest = store.read(f"{key}/manifest.json")
        except NotFound:
            raise SkytrainError(f"{store.url(key)} is not a committed checkpoint") from None
        if hashlib.sha256(manifest).hexdigest() != marker:
            raise SkytrainError(f"{store.url(key)}/manifest.json was altered after the checkpoint was committed")
        parsed = json.loads(manifest)
        if parsed["format"] > FORMAT:
            raise SkytrainError(
                f"{store.url(key)} has format {parsed['format']}; this version reads up to {FORMAT}\n  use a newer Skytrain"
            )
        self._files = parsed["files"]
        self._scratch = tempfile.TemporaryDirectory(prefix="skytrain-checkpoint-")

    def __enter__(self) -> FolderReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._scratch.cleanup()

    def fetch(self, name: str) -> Path:
        """A verified local copy, valid until the reader is closed."""
        path = Path(self._scratch.name) / name
        self._store.download(f"{self._key}/{name}", path, sha256=self._files[name]["sha256"])
        return path


def prune(store: Store, run: str, keep: int) -> list[int]:
    """Delete all but the newest `keep` committed checkpoints; the marker goes first, so that no reader meets half a folder."""
    gone = committed_steps(store, run)[:-keep]
    for step in gone:
        store.delete(f"{step_key(run, step)}/{COMMITTED}")
        store.delete_all(step_key(run, step) + "/")
    return gone
