"""What copies have verified, noted in the user's cache. Losing it costs time, never correctness."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from pathlib import Path

from ..config import skytrain_cache_folder
from .base import Stat, Store


class CopyJournal:
    """The verified objects of one pair of stores: the etags of both sides, by key."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._known: dict[str, tuple[str, str]] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                with contextlib.suppress(ValueError, KeyError, TypeError):  # the last line of a killed process
                    record = json.loads(line)
                    self._known[record["key"]] = (record["source"], record["target"])

    @classmethod
    def of(cls, source: Store, target: Store) -> CopyJournal:
        name = hashlib.sha256(f"{source.root}\n{target.root}".encode()).hexdigest()[:16]
        return cls(skytrain_cache_folder() / "copies" / f"{name}.jsonl")

    def knows(self, source: Stat, target: Stat) -> bool:
        """Whether these two objects were found to be equal, and neither has changed since."""
        return self._known.get(source.key) == (source.etag, target.etag)

    def note(self, source: Stat, target: Stat, sha256: str) -> None:
        record = {"key": source.key, "source": source.etag, "target": target.etag, "sha256": sha256}
        with self._lock:
            self._known[source.key] = (source.etag, target.etag)
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a") as file:
                file.write(json.dumps(record) + "\n")
