"""Metrics as numbered parts of JSON lines: objects in a store are never appended to."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from ..storage import Store

FLUSH_SECONDS = 10.0


class MetricsWriter:
    """Collects records and writes a part every few seconds, so that a killed run loses little and a store sees few objects."""

    def __init__(self, store: Store, prefix: str) -> None:
        self._store, self._prefix = store, prefix
        self._lines: list[str] = []
        self._part = len(store.list(prefix + "/"))
        self._flushed_at = time.monotonic()

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self._lines.append(json.dumps({"step": step, **metrics}))
        if time.monotonic() - self._flushed_at >= FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        if self._lines:
            self._store.write(f"{self._prefix}/{self._part:05d}.jsonl", ("\n".join(self._lines) + "\n").encode())
            self._part += 1
            self._lines = []
        self._flushed_at = time.monotonic()


def read_metrics(store: Store, run: str) -> list[dict[str, Any]]:
    """Every record of a run in order of step; where attempts overlap, the newest attempt's word counts."""
    by_step: dict[tuple[int, tuple[str, ...]], dict[str, Any]] = {}
    for stat in store.list(f"runs/{run}/attempts/"):
        if "/metrics/" in stat.key:
            for line in store.read(stat.key).decode().splitlines():
                record = json.loads(line)
                by_step[record["step"], tuple(sorted(record))] = record
    return [by_step[key] for key in sorted(by_step)]
