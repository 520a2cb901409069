"""Local copies of a run's TensorBoard event files, whose parts are joined again and grow as the store's do."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from ..storage import NotFound, Store

_PART = re.compile(r"(?P<file>.*tfevents.*)\.(?P<number>\d{5})")


def events_key(run: str) -> str:
    return f"runs/{run}/tensorboard"


class EventCopies:
    """Event files in `folder`. A part is only ever extended, so each refresh appends what has been added."""

    def __init__(self, store: Store, run: str, folder: Path) -> None:
        self._store = store
        self._key = events_key(run)
        self._folder = folder
        self._copied: dict[str, int] = {}  # bytes of each part

    def refresh(self) -> int:
        """Copy what is new; returns the number of bytes."""
        parts: dict[str, list[tuple[int, str, int]]] = defaultdict(list)
        for stat in self._store.list(f"{self._key}/"):
            part = _PART.fullmatch(stat.key.removeprefix(f"{self._key}/"))
            if part:
                parts[part["file"]].append((int(part["number"]), stat.key, stat.size))
        return sum(self._extend(file, sorted(its)) for file, its in parts.items())

    def _extend(self, file: str, parts: list[tuple[int, str, int]]) -> int:
        path = self._folder / file
        added = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as copy:
            for _, key, size in parts:
                known = self._copied.get(key, 0)
                if size <= known:
                    continue
                try:
                    data = self._store.read_range(key, known, size - known)
                except NotFound:  # the run was deleted or renamed
                    break
                copy.write(data)
                self._copied[key] = known + len(data)
                added += len(data)
        return added
