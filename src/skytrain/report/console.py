"""Progress for people: bars in a terminal, plain lines elsewhere, on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..config import format_seconds, visible
from ..runs import progress_line, progress_reached

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

PLAIN_SECONDS = 5.0  # between lines of a stage that does not print every step


class Console:
    """The progress display of every command (a `runs.Reporter`)."""

    def __init__(self) -> None:
        self._watched = sys.stderr.isatty()
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._printed_at: dict[str, float] = {}

    def note(self, text: str) -> None:
        if self._bars:
            from rich.text import Text

            self._bars.console.print(Text(visible(text)))
        else:
            print(visible(text), file=sys.stderr, flush=True)

    def table(self, title: str, rows: Sequence[tuple[str, str]]) -> None:
        width = max(len(name) for name, _ in rows)
        lines = [title, *(f"  {name:<{width}}  {value}" for name, value in rows)]
        self.note("\n".join(lines))

    def progress(
        self, stage: str, done: float, total: float | None, detail: str = "", seconds_left: float | None = None
    ) -> None:
        done = done if total is None else min(done, total)  # a total may be an estimate
        if self._watched:
            self._bar(visible(stage), done, total, visible(detail), seconds_left)
        else:
            self._line(stage, done, total, detail, seconds_left)

    def _line(self, stage: str, done: float, total: float | None, detail: str, seconds_left: float | None) -> None:
        finished = total is not None and done >= total
        now = time.monotonic()
        # Training reports only the steps that trainer.log_every asks for, so each gets a line.
        if not (finished or stage == "train" or now - self._printed_at.get(stage, -PLAIN_SECONDS) >= PLAIN_SECONDS):
            return
        self._printed_at[stage] = now
        word = "step" if stage == "train" else stage
        print(visible(progress_line(word, done, total, detail, seconds_left)), file=sys.stderr, flush=True)

    def _bar(self, stage: str, done: float, total: float | None, detail: str, seconds_left: float | None) -> None:
        if stage not in self._tasks:
            self.close()  # stages run one after another; finished bars stay on the screen
        if self._bars is None:
            self._bars = _new_bars()
            self._bars.start()
        if stage not in self._tasks:
            self._tasks[stage] = self._bars.add_task(stage, total=total, detail=detail, left="", reached="")
        task = self._tasks[stage]
        bars = self._bars
        bars.update(task, completed=done, total=total, detail=detail, reached=progress_reached(done, total))
        if seconds_left is None:
            seconds_left = next(each.time_remaining for each in bars.tasks if each.id == task)
        bars.update(task, left=f"{format_seconds(round(seconds_left))} to go" if seconds_left else "")
        if total is not None and done >= total and all(task.finished for task in self._bars.tasks):
            self.close()

    def close(self) -> None:
        if self._bars:
            self._bars.stop()
            self._bars = None
            self._tasks = {}

    def __enter__(self) -> Console:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _new_bars() -> Progress:
    """Return bars with name, count and time to go. Details after them are cut at the edge of the terminal."""
    from rich.console import Console as RichConsole
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    rest = Column(ratio=1, no_wrap=True, overflow="ellipsis")
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=12),
        TextColumn("{task.fields[reached]}"),
        TextColumn("{task.fields[left]}", markup=False),
        TextColumn("{task.fields[detail]}", markup=False, table_column=rest),
        console=RichConsole(stderr=True),
        expand=True,
    )
