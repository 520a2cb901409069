"""Copies objects from one store to another: verified, resumable, and never complete by looks before it is.

The second run of a copy transfers only what is missing or differs. What a copy has verified is noted in the user's
cache, with the etags of both objects, so that it need not be read again; without that note, objects of equal size are
compared by their hashes.
"""

from __future__ import annotations

import hashlib
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..config import SkytrainError, plural
from .base import Progress, Stat, Store
from .copy_journal import CopyJournal
from .errors import StoreError

CONCURRENT_OBJECTS = 4  # each large object has concurrent parts of its own
READ_BYTES = 8 << 20
SHOWN = 5

Action = Literal["copy", "replace", "keep"]


@dataclass(frozen=True)
class CopyItem:
    """One object of the source, and what is to be done about it at the target."""

    source: Stat
    action: Action


@dataclass(frozen=True)
class CopyPlan:
    """What a copy would do."""

    source: Store
    target: Store
    items: tuple[CopyItem, ...]

    def having(self, *actions: Action) -> list[Stat]:
        return [item.source for item in self.items if item.action in actions]

    @property
    def to_copy(self) -> list[Stat]:
        return self.having("copy", "replace")

    @property
    def bytes(self) -> int:
        return sum(stat.size for stat in self.to_copy)


def plan_copy(source: Store, target: Store, journal: CopyJournal, progress: Progress | None = None) -> CopyPlan:
    """Compare the two stores. `progress` hears of the bytes that had to be read for that."""
    check_apart(source, target)
    stats = source.list()
    if not stats:
        raise SkytrainError(
            f"there is nothing to copy at {source.root}\n  check the path; a bucket's prefix is a folder"
        )
    there = {stat.key: stat for stat in target.list()}

    def item(stat: Stat) -> CopyItem:
        other = there.get(stat.key)
        if other is None:
            return CopyItem(stat, "copy")
        same = other.size == stat.size and (
            journal.knows(stat, other) or _same_bytes(source, target, stat, other, journal, progress)
        )
        return CopyItem(stat, "keep" if same else "replace")

    with ThreadPoolExecutor(CONCURRENT_OBJECTS) as pool:
        return CopyPlan(source, target, tuple(pool.map(item, stats)))


def refuse_replacing(plan: CopyPlan) -> None:
    """Raise SkytrainError if objects at the target would be replaced by different ones."""
    different = plan.having("replace")
    if different:
        names = [f"    {stat.key}" for stat in different[:SHOWN]]
        more = [f"    and {len(different) - SHOWN} more"] if len(different) > SHOWN else []
        raise SkytrainError(
            "\n".join(
                [
                    f"{plural(len(different), 'object')} at {plan.target.root} differ from those at {plan.source.root}:",
                    *names,
                    *more,
                    "  nothing was copied; --overwrite replaces them",
                ]
            )
        )


def run_copy(plan: CopyPlan, journal: CopyJournal, progress: Progress | None = None) -> None:
    """Copy what the plan says.

    Objects that declare others complete come last, in their order; those that are to be replaced are deleted first.
    So a copy that is cut off, and a reader during it, never see a marker without what it stands for.
    """
    for stat in plan.having("replace"):
        if completes(stat.key):
            plan.target.delete(stat.key)
    stats = plan.to_copy
    for rank in sorted({completes(stat.key) for stat in stats}):
        _copy_all(plan, [stat for stat in stats if completes(stat.key) == rank], journal, progress)


def completes(key: str) -> int:
    """The order in which an object is copied: 0 for content, then what declares content complete."""
    name = key.rpartition("/")[2]
    if name == "manifest.json":
        return 1
    if name.startswith("COMMITTED"):
        return 2
    return 3 if name == "run.json" else 0


def check_apart(source: Store, target: Store) -> None:
    """Raise SkytrainError if one store is inside the other."""
    here = f"{source.root}/"
    there = f"{target.root}/"
    if here.startswith(there) or there.startswith(here):
        raise SkytrainError(f"cannot copy {source.root} to {target.root}: one is inside the other")


def _copy_all(plan: CopyPlan, stats: Sequence[Stat], journal: CopyJournal, progress: Progress | None) -> None:
    failed = threading.Event()

    def copy(stat: Stat) -> None:
        if failed.is_set():
            return
        try:
            sha256 = _copy_one(plan.source, plan.target, stat, progress)
            stored = plan.target.stat(stat.key)
            if stored is None or stored.size != stat.size:
                raise StoreError(
                    "copy", plan.source.url(stat.key), "it changed while it was copied", hint="run it again"
                )
            journal.note(stat, stored, sha256)
        except BaseException:
            failed.set()  # the others finish the objects that they have begun
            raise

    with ThreadPoolExecutor(CONCURRENT_OBJECTS) as pool:
        for _ in pool.map(copy, stats):
            pass


def _copy_one(source: Store, target: Store, stat: Stat, progress: Progress | None) -> str:
    """Copy one object and return its sha256. The bytes pass through a local file: both stores can verify that."""
    path = source.local_path(stat.key)
    if path is not None:
        return target.upload(path, stat.key, progress, sha256=_file_sha256(path))
    goal = target.local_path(stat.key)
    if goal is not None:
        source.download(stat.key, goal, progress=progress)
        return _file_sha256(goal)
    with tempfile.TemporaryDirectory(prefix="skytrain-copy-") as folder:
        local = Path(folder, "object")
        source.download(stat.key, local)
        return target.upload(local, stat.key, progress, sha256=_file_sha256(local))


def _same_bytes(
    source: Store, target: Store, stat: Stat, other: Stat, journal: CopyJournal, progress: Progress | None
) -> bool:
    hashes = [_sha256(store, stat.key, stat.size, progress) for store in (source, target)]
    if hashes[0] != hashes[1]:
        return False
    journal.note(stat, other, hashes[0])
    return True


def _sha256(store: Store, key: str, size: int, progress: Progress | None) -> str:
    digest = hashlib.sha256()
    for start in range(0, size, READ_BYTES):
        data = store.read_range(key, start, READ_BYTES)
        digest.update(data)
        if progress:
            progress(key, len(data))
    return digest.hexdigest()


def _file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def total_progress(total: int, tell: Callable[[float, float, str], None]) -> Progress:
    """Return a `Progress` for concurrent transfers that reports the bytes done, of `total`."""
    lock = threading.Lock()
    done = 0.0

    def advance(key: str, amount: float) -> None:
        nonlocal done
        with lock:
            done += amount
            tell(done, total, key)

    return advance
