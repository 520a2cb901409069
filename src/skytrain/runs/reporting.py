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
    left = f"{format_seconds(round(seconds_left))} to go" if seconds_left else ""
    return " | ".join(part for part in (f"{stage} {progress_reached(done, total)}", detail, left) if part)


def progress_reached(done: float, total: float | None) -> str:
    """Format how far a stage is: `20/300`, or of less than one unit, such as some kilobytes of a megabyte, `40%`."""
    if total is None:
        return f"{done:.0f}"
    done = min(done, total)
    return f"{100 * done / total:.0f}%" if 0 < total < 1 else f"{done:.0f}/{total:.0f}"
