"""Metrics of a run in the store: numbered parts of JSON lines under each attempt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..storage import Store
from .attempts import attempt_key, read_fence
from .reading import DamagedRecord, is_number, is_whole, maybe, read_lines
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
    by_step: dict[tuple[int, tuple[str, ...]], dict[str, Any]] = {}
    fence = read_fence(store, run)
    for attempt, record in _records(store, run):
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
                raise DamagedRecord(store, key, TypeError(f"{name} cannot be {value!r:.60}"), line)
    return records


def _records(store: Store, run: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, key in _parts(store, run):
        for record in _lines(store, key):
            yield number, record


def _parts(store: Store, run: str) -> list[tuple[int, str]]:
    """Return the parts sorted by attempt and part number (as text, attempt 10 would come before attempt 2)."""
    parts: list[tuple[int, str]] = []
    for stat in store.list(f"runs/{run}/attempts/"):
        folder, _, rest = stat.key.removeprefix(f"runs/{run}/attempts/").partition("/")
        if rest.startswith("metrics/") and folder.isdigit():
            parts.append((int(folder), stat.key))
    return sorted(parts)
