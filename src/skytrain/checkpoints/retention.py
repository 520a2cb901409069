"""Decides which checkpoints to keep, and deletes the others marker first, so that no reader sees an incomplete one."""

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
LEAST = 2  # because the newest may be damaged
_FOLDER = re.compile(r"(?P<attempt>\d+)\.\d+")


@dataclass(frozen=True)
class Keep:
    """A rule that keeps the newest `last`, those at every `every`-th step, and the `best` by validation loss."""

    last: int = LEAST
    every: int | None = None
    best: int = 0

    def dropped(self, commits: Sequence[Commit], losses: Mapping[int, float]) -> list[Commit]:
        """Return the commits to delete; `losses` are by step."""
        kept = {commit.step for commit in commits[-max(self.last, LEAST) :]}
        kept |= {commit.step for commit in commits if self.every and commit.step % self.every == 0}
        measured = [commit.step for commit in commits if commit.step in losses]
        kept |= set(sorted(measured, key=lambda step: (losses[step], step))[: self.best])
        return [commit for commit in commits if commit.step not in kept]


@dataclass(frozen=True)
class Pruned:
    """What was deleted, or would be."""

    steps: list[int]  # of checkpoints
    leftovers: list[str]  # keys of folders that belong to no checkpoint


def prune(store: Store, run: str, keep: Keep, *, attempt: int | None = None, dry_run: bool = False) -> Pruned:
    """Delete checkpoints beyond `keep`, and the files of saves that never finished.

    `attempt` is the caller's, which has no other running save; without it, the newest attempt may be saving.
    """
    commits = committed(store, run)
    losses: dict[int, float] = {}
    if keep.best:
        measured = {commit.step: read_validation(store, commit) for commit in commits}
        losses = {step: loss for step, loss in measured.items() if loss is not None}
    dropped = keep.dropped(commits, losses)
    remaining = [commit for commit in commits if commit not in dropped]
    if not dry_run:
        for commit in dropped:
            folders = _folders(store, commit)
            _delete_marker(store, commit.marker_key)
            for folder in folders:
                store.delete_all(folder)
    leftovers = _leftovers(store, run, commits if dry_run else remaining, attempt)
    if not dry_run:
        _clear(store, run, leftovers, remaining)
    return Pruned([commit.step for commit in dropped], leftovers)


def _folders(store: Store, commit: Commit) -> list[str]:
    """Return the folders of a checkpoint's files; if its marker is unreadable, all folders of its attempt."""
    try:
        return [f"{commit.key}/{read_marker(store, commit).folder}"]
    except DamagedCheckpoint:
        return [f"{commit.key}/{name}" for name in store.folders(commit.key) if name.startswith(f"{commit.attempt}.")]


def _delete_marker(store: Store, key: str) -> None:
    """Delete a marker and check that it is gone: some servers accept damaged requests, and delete another key."""
    for _ in range(DELETES):
        store.delete(key)
        if not store.exists(key):
            return
    raise StoreError("delete", store.url(key), "it still exists, so its files were kept too")


def _leftovers(store: Store, run: str, kept: list[Commit], attempt: int | None) -> list[str]:
    """Return the folders that belong to no checkpoint, except those of an attempt that may be writing them."""
    newest = max(attempt_numbers(store, run), default=0) if attempt is None else attempt + 1
    used = {folder for commit in kept for folder in _folders(store, commit)}
    # Listed by folder and not by object: on a disk, a folder may contain only an incomplete file.
    steps = [f"runs/{run}/checkpoints/{name}" for name in store.folders(f"runs/{run}/checkpoints/")]
    folders = [f"{step}/{name}" for step in steps for name in store.folders(step) if _attempt(name) < newest]
    return sorted(set(folders) - used)


def _attempt(folder: str) -> float:
    match = _FOLDER.fullmatch(folder)
    return int(match["attempt"]) if match else math.inf


def _clear(store: Store, run: str, leftovers: list[str], kept: list[Commit]) -> None:
    """Delete the leftovers, their invalid markers, and validation losses of steps without a checkpoint."""
    valid_markers = {commit.marker_key for commit in kept}
    for folder in leftovers:
        step, _, name = folder.rpartition("/")
        marker = marker_key(step, int(name.partition(".")[0]))
        if marker not in valid_markers:
            _delete_marker(store, marker)
        store.delete_all(folder)
    steps: dict[str, list[str]] = {}
    for stat in store.list(f"runs/{run}/checkpoints/"):
        step, _, name = stat.key.removeprefix(f"runs/{run}/checkpoints/").partition("/")
        steps.setdefault(step, []).append(name)
    for step, names in steps.items():
        if names == [VALIDATION]:
            store.delete(f"runs/{run}/checkpoints/{step}/{VALIDATION}")
