"""How long work tells its watcher what it is doing. The command line draws it; a library caller may stay silent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Reporter(Protocol):
    """What a story needs of its surroundings: a line, a table, and progress of a named stage."""

    def note(self, text: str) -> None: ...

    def table(self, title: str, rows: Sequence[tuple[str, str]]) -> None: ...

    def progress(self, stage: str, done: float, total: float | None, detail: str = "") -> None:
        """`done` of `total` units; a stage ends when done reaches total."""
        ...


class Silent:
    """A reporter for programs and tests."""

    def note(self, text: str) -> None:
        return

    def table(self, title: str, rows: Sequence[tuple[str, str]]) -> None:
        return

    def progress(self, stage: str, done: float, total: float | None, detail: str = "") -> None:
        return
