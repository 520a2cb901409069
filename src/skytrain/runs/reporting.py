"""Progress reporting of long operations. The command line displays it; library callers may use `Silent`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..config import format_seconds


class Reporter(Protocol):
    """The receiver of a long operation's output: lines of text, tables, and the progress of named stages."""

    def note(self, text: str) -> None: ...

    def table(self, title: str, rows: Sequence[tuple[str, str]]) -> None: ...

    def progress(
        self, stage: str, done: float, total: float | None, detail: str = "", seconds_left: float | None = None
    ) -> None:
        """Report `done` of `total` units; a stage ends when `done` reaches `total`.

        `seconds_left` overrides the estimate from elapsed time.
        """
        ...


class Silent:
    """A reporter without output, for programs and tests."""

    def note(self, text: str) -> None:
        return

    def table(self, title: str, rows: Sequence[tuple[str, str]]) -> None:
        return

    def progress(
        self, stage: str, done: float, total: float | None, detail: str = "", seconds_left: float | None = None
    ) -> None:
        return


def progress_line(
    stage: str, done: float, total: float | None, detail: str = "", seconds_left: float | None = None
) -> str:
    """Format progress as one line of text: `train 20/300 | loss 4.2 | 3m10s to go`. It never passes its total."""
    done = done if total is None else min(done, total)
    of = f"/{total:.0f}" if total is not None else ""
    left = f"{format_seconds(round(seconds_left))} to go" if seconds_left else ""
    return " | ".join(part for part in (f"{stage} {done:.0f}{of}", detail, left) if part)
