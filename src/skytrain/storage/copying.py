"""Copies objects from one store to another: verified, resumable, and never looking complete before it is.

The second run of a copy transfers only what is missing or differs. The objects that a copy has verified are noted in
the user's cache, with the etags of both sides, so that they need not be read again; without such a note, objects of
equal size are compared by their hashes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..config import SkytrainError, plural, skytrain_cache_folder
from .base import Progress, Stat, Store
from .errors import StoreError
from .reading import parse_json

CONCURRENT_OBJECTS = 4  # the parts of each large object are concurrent too
READ_BYTES = 8 << 20
SHOWN = 5

Action = Literal["copy", "replace", "keep"]


class CopyJournal:
    """The verified objects of one pair of stores, in the user's cache. Losing it costs time, never correctness."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._known: dict[str, tuple[str, str]] = {}  # the etags of both sides, by key
        if path.exists():
            for line in path.read_text(errors="replace").splitlines():
                with contextlib.suppress(ValueError, KeyError, TypeError):  # the last line of a killed process
                    record = parse_json(line)
                    self._known[record["key"]] = (record["source"], record["target"])

    @classmethod
    def of(cls, source: Store, target: Store) -> CopyJournal:
        name = hashlib.sha256(f"{source.root}\n{target.root}".encode()).hexdigest()[:16]
        return cls(skytrain_cache_folder() / "copies" / f"{name}.jsonl")

    def knows(self, source: Stat, target: Stat) -> bool:
        """Return whether these two objects were found to be equal, and neither has changed since."""
        return self._known.get(source.key) == (source.etag, target.etag)

    def note(self, source: Stat, target: Stat, sha256: str) -> None:
        record = {"key": source.key, "source": source.etag, "target": target.etag, "sha256": sha256}
        with self._lock:
            self._known[source.key] = (source.etag, target.etag)
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a") as file:
                file.write(json.dumps(record) + "\n")


@dataclass(frozen=True)
class CopyItem:
    """One object of the source, and what to do with it at the target."""

    source: Stat
    action: Action


@dataclass(frozen=True)
class CopyPlan:
    """The objects that a copy would transfer, replace and keep."""

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


def plan_copy(
    source: Store, target: Store, journal: CopyJournal, progress: Progress | None = None, only: str | None = None
) -> CopyPlan:
    """Compare the two stores, or one object of theirs. `progress` is called with the bytes that are read for that."""
    if only is None:
        check_apart(source, target)
        stats = source.list()
    else:
        stats = [stat for stat in (source.stat(only),) if stat is not None]
    if not stats:
        raise SkytrainError(
            f"there is nothing to copy at {source.root}\n  check the path; a bucket's prefix is a folder"
        )
    others = target.list() if only is None else [target.stat(only)]
    there = {stat.key: stat for stat in others if stat is not None}

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
    """Carry out the plan.

    Objects that declare others complete are copied last, in the order of `completes`; those to be replaced are deleted
    first. So neither an interrupted copy nor a reader during it sees a marker without the objects that it stands for.
    """
    for stat in plan.having("replace"):
        if completes(stat.key):
            plan.target.delete(stat.key)
    stats = plan.to_copy
    for rank in sorted({completes(stat.key) for stat in stats}):
        _copy_all(plan, [stat for stat in stats if completes(stat.key) == rank], journal, progress)


def completes(key: str) -> int:
    """Return the place of an object in the order of copying: 0 for content, more for what declares content complete."""
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
            failed.set()  # other threads finish the object that they are copying
            raise

    with ThreadPoolExecutor(CONCURRENT_OBJECTS) as pool:
        for _ in pool.map(copy, stats):
            pass


def _copy_one(source: Store, target: Store, stat: Stat, progress: Progress | None) -> str:
    """Copy one object and return its sha256. The bytes pass through a local file, which both stores can verify."""
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
