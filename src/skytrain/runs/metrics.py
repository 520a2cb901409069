"""Metrics of a run in the store: numbered parts of JSON lines under each attempt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..storage import Stat, Store, damaged, is_number, is_whole, maybe, read_lines
from .attempts import attempt_key, read_fence
from .sync import Lines

LAST_PARTS = 4  # enough for far more steps than there are between two validations


class MetricsWriter:
    """The stream of metrics by step, which is uploaded when it is flushed."""

    def __init__(self, store: Store, run: str, attempt: int) -> None:
        self.lines = Lines(store, f"{attempt_key(run, attempt)}/metrics/")

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self.lines.write({"step": step, **metrics})


def read_metrics(store: Store, run: str) -> list[dict[str, Any]]:
    """Return all records of a run in order of step; where attempts overlap, those of the newest attempt."""
    return MetricsReader(store, run).read()


class MetricsReader:
    """The metrics of a run, read again and again: only parts that have changed are fetched."""

    def __init__(self, store: Store, run: str) -> None:
        self._store = store
        self._run = run
        self._known: dict[str, tuple[str, list[dict[str, Any]]]] = {}  # key -> etag, records

    def read(self) -> list[dict[str, Any]]:
        """Return all records in order of step; where attempts overlap, those of the newest attempt."""
        by_step: dict[tuple[int, tuple[str, ...]], dict[str, Any]] = {}
        fence = read_fence(self._store, self._run)
        for attempt, stat in _part_stats(self._store, self._run):
            known = self._known.get(stat.key)
            if known is None or known[0] != stat.etag:
                known = self._known[stat.key] = (stat.etag, _lines(self._store, stat.key))
            for record in known[1]:
                if fence.admits(attempt, record["step"]):
                    by_step[record["step"], tuple(sorted(record))] = record
        return [by_step[key] for key in sorted(by_step)]


def last_metrics(store: Store, run: str) -> dict[str, Any]:
    """Return the newest step and the newest value of each metric, reading only the last few parts."""
    fence = read_fence(store, run)
    last = dict[str, Any]()
    for number, key in reversed(_parts(store, run)[-LAST_PARTS:]):
        for record in reversed(_lines(store, key)):
            if fence.admits(number, record["step"]):
                last = {**record, **last}
    return last


def was_measured(store: Store, run: str, name: str, step: int) -> bool:
    """Return whether any attempt has recorded this metric at this step."""
    for _, key in reversed(_parts(store, run)):
        records = _lines(store, key)
        if any(record["step"] == step and name in record for record in records):
            return True
        if records and records[0]["step"] < step:
            return False
    return False


def _lines(store: Store, key: str) -> list[dict[str, Any]]:
    """Return the records of one part: a step, and numbers."""
    records = read_lines(store, key, {"step": is_whole})
    for line, record in enumerate(records, 1):
        for name, value in record.items():
            if not maybe(is_number)(value):
                raise damaged(f"line {line} of {store.url(key)}", f"{name} cannot be {value!r:.60}")
    return records


def _parts(store: Store, run: str) -> list[tuple[int, str]]:
    return [(attempt, stat.key) for attempt, stat in _part_stats(store, run)]


def _part_stats(store: Store, run: str) -> list[tuple[int, Stat]]:
    """Return the parts sorted by attempt and part number (as text, attempt 10 would come before attempt 2)."""
    parts: list[tuple[int, Stat]] = []
    for stat in store.list(f"runs/{run}/attempts/"):
        folder, _, rest = stat.key.removeprefix(f"runs/{run}/attempts/").partition("/")
        if rest.startswith("metrics/") and folder.isdecimal():
            parts.append((int(folder), stat))
    return sorted(parts, key=lambda part: (part[0], part[1].key))
