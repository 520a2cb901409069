"""Which checkpoints are kept, and how the others go: the marker first, so that no reader meets half a folder."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..runs import attempts
from ..storage import Store
from .commits import VALIDATION, Commit, committed, marker_key, read_marker, read_validation

LEAST = 2  # the newest may be the one that is damaged
_FOLDER = re.compile(r"(?P<step>.*/step-\d+)/(?P<folder>(?P<attempt>\d+)\.\d+)/[^/]+")
_MARKER = re.compile(r"(?P<step>.*/step-\d+)/COMMITTED\.(?P<attempt>\d+)")


@dataclass(frozen=True)
class Keep:
    """The newest `last`, those at every `every`-th step, and the `best` by validation loss."""

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
    leftovers: list[str]  # keys of folders that no checkpoint uses


def prune(store: Store, run: str, keep: Keep, *, attempt: int | None = None, dry_run: bool = False) -> Pruned:
    """Deletes checkpoints beyond `keep`, and what saves that never finished left behind.

    `attempt` is the caller's own, which has no other save under way; without one, the newest attempt may be saving.
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
            store.delete(commit.marker_key)
    leftovers = _leftovers(store, run, remaining, attempt, dry_run)
    return Pruned([commit.step for commit in dropped], leftovers)


def _leftovers(store: Store, run: str, remaining: list[Commit], attempt: int | None, dry_run: bool) -> list[str]:
    """Folders of no checkpoint. Never those of an attempt that may be writing them."""
    newest = max(attempts(store, run), default=0) if attempt is None else attempt + 1
    used = {f"{commit.key}/{read_marker(store, commit).folder}" for commit in remaining}
    stats = store.list(f"runs/{run}/checkpoints/")
    idle = {
        f"{match['step']}/{match['folder']}": match
        for stat in stats
        if (match := _FOLDER.fullmatch(stat.key)) and int(match["attempt"]) < newest
    }
    gone = sorted(set(idle) - used)
    if dry_run:
        return gone
    counting = {(commit.key, commit.attempt) for commit in remaining}
    for stat in stats:
        marker = _MARKER.fullmatch(stat.key)
        if marker and int(marker["attempt"]) < newest and (marker["step"], int(marker["attempt"])) not in counting:
            store.delete(marker_key(marker["step"], int(marker["attempt"])))
    for key in gone:
        store.delete_all(key)
    for step in {idle[key]["step"] for key in gone} - {commit.key for commit in remaining}:
        if all(stat.key.endswith(VALIDATION) for stat in store.list(step)):
            store.delete(f"{step}/{VALIDATION}")
    return gone
