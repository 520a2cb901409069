"""Which checkpoints are kept. Others are deleted marker first, so that no reader finds an incomplete folder."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..runs import attempt_numbers
from ..storage import Store, StoreError
from .commits import VALIDATION, Commit, committed, marker_key, read_marker, read_validation
from .errors import DamagedCheckpoint

DELETES = 3
LEAST = 2  # the newest may be damaged
_FOLDER = re.compile(r"(?P<attempt>\d+)\.\d+")


@dataclass(frozen=True)
class Keep:
    """Keeps the newest `last`, those at every `every`-th step, and the `best` by validation loss."""

    last: int = LEAST
    every: int | None = None
    best: int = 0

    def dropped(self, found: Sequence[Commit], losses: Mapping[int, float]) -> list[Commit]:
        kept = {commit.step for commit in found[-max(self.last, LEAST) :]}
        kept |= {commit.step for commit in found if self.every and commit.step % self.every == 0}
        measured = [commit.step for commit in found if commit.step in losses]
        kept |= set(sorted(measured, key=lambda step: (losses[step], step))[: self.best])
        return [commit for commit in found if commit.step not in kept]


@dataclass(frozen=True)
class Pruned:
    steps: list[int]  # of checkpoints
    leftovers: list[str]  # keys of folders that belong to no checkpoint


def prune(store: Store, run: str, keep: Keep, *, attempt: int | None = None, dry_run: bool = False) -> Pruned:
    """Deletes checkpoints beyond `keep`, and the files of saves that never finished.

    `attempt` is the caller's own, which has no other running save; without it, the newest attempt may be saving.
    """
    found = committed(store, run)
    losses: dict[int, float] = {}
    if keep.best:
        measured = {commit.step: read_validation(store, commit) for commit in found}
        losses = {step: loss for step, loss in measured.items() if loss is not None}
    dropped = keep.dropped(found, losses)
    remaining = [commit for commit in found if commit not in dropped]
    if not dry_run:
        for commit in dropped:
            folders = _folders(store, commit)
            _delete_marker(store, commit.marker_key)
            for folder in folders:
                store.delete_all(folder)
    leftovers = _leftovers(store, run, found if dry_run else remaining, attempt)
    if not dry_run:
        _clear(store, run, leftovers, remaining)
    return Pruned([commit.step for commit in dropped], leftovers)


def _folders(store: Store, commit: Commit) -> list[str]:
    """The folders of a checkpoint's files; with an unreadable marker, all folders of its attempt."""
    try:
        return [f"{commit.key}/{read_marker(store, commit).folder}"]
    except DamagedCheckpoint:
        return [f"{commit.key}/{name}" for name in store.folders(commit.key) if name.startswith(f"{commit.attempt}.")]


def _delete_marker(store: Store, key: str) -> None:
    """Deletes a marker and checks that it is gone: some servers accept damaged requests, for another key."""
    for _ in range(DELETES):
        store.delete(key)
        if not store.exists(key):
            return
    raise StoreError("delete", store.url(key), "it still exists, so its files were kept too")


def _leftovers(store: Store, run: str, kept: list[Commit], attempt: int | None) -> list[str]:
    """Folders that belong to no checkpoint, except those of an attempt that may be writing them."""
    newest = max(attempt_numbers(store, run), default=0) if attempt is None else attempt + 1
    used = {folder for commit in kept for folder in _folders(store, commit)}
    # By folders and not by objects: on a disk, a folder may contain only an incomplete file.
    steps = [f"runs/{run}/checkpoints/{name}" for name in store.folders(f"runs/{run}/checkpoints/")]
    found = [f"{step}/{name}" for step in steps for name in store.folders(step) if _attempt(name) < newest]
    return sorted(set(found) - used)


def _attempt(folder: str) -> float:
    match = _FOLDER.fullmatch(folder)
    return int(match["attempt"]) if match else math.inf


def _clear(store: Store, run: str, leftovers: list[str], kept: list[Commit]) -> None:
    """Deletes those folders, their invalid markers, and validation losses of steps without a checkpoint."""
    counting = {commit.marker_key for commit in kept}
    for folder in leftovers:
        step, _, name = folder.rpartition("/")
        marker = marker_key(step, int(name.partition(".")[0]))
        if marker not in counting:
            _delete_marker(store, marker)
        store.delete_all(folder)
    steps: dict[str, list[str]] = {}
    for stat in store.list(f"runs/{run}/checkpoints/"):
        step, _, name = stat.key.removeprefix(f"runs/{run}/checkpoints/").partition("/")
        steps.setdefault(step, []).append(name)
    for step, names in steps.items():
        if names == [VALIDATION]:
            store.delete(f"runs/{run}/checkpoints/{step}/{VALIDATION}")
