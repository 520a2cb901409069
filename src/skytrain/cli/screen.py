"""A run that is followed: redrawn in place on a terminal, a line for each change elsewhere, or JSON lines."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..config import visible
from .console import ended_by_reader, pause
from .output import drawn_output, tell

if TYPE_CHECKING:
    from ..runs import LaunchRecord
    from ..targets import RunEnd, RunFollower, RunView

LINE_SECONDS = 60.0  # between two lines of a run of which only the step has changed


class LiveScreen:
    """The view on a terminal: a table that is redrawn, with the course of the loss, and notes above it."""

    def __init__(self, metrics: Callable[[], list[dict[str, Any]]]) -> None:
        from rich.console import Console
        from rich.live import Live

        self._metrics = metrics
        self._live = Live(console=Console(file=drawn_output(), highlight=False, markup=False), auto_refresh=False)

    def show(self, view: RunView) -> None:
        from rich.text import Text

        from ..report import text_table, trend_rows, view_rows

        if not self._live.is_started:
            self._live.start()
        rows = [*view_rows(view), *trend_rows(self._metrics())]
        self._live.update(Text(f"{text_table(rows)}\n\nCtrl-C ends this view, not the run. {view.at}"))
        self._live.refresh()

    def note(self, text: str) -> None:
        self._live.console.print(visible(text), markup=False)

    def close(self) -> None:
        self._live.stop()


class PlainScreen:
    """The view without a terminal: one line for each event, and one a minute during training."""

    def __init__(self) -> None:
        self._shown: Any = None
        self._shown_at = 0.0

    def show(self, view: RunView) -> None:
        from ..report import headline, view_line

        nodes = [(node.machine, node.state, node.rank) for node in view.nodes]
        event = (headline(view), nodes, view.generation, view.launch, view.status.metered_usd)
        step = view.status.step
        late = time.monotonic() - self._shown_at >= LINE_SECONDS
        if self._shown is None or self._shown[0] != event or (late and self._shown[1] != step):
            self._shown, self._shown_at = (event, step), time.monotonic()
            print(visible(view_line(view)), flush=True)

    def note(self, text: str) -> None:
        tell(text)

    def close(self) -> None:
        return


class JsonScreen(PlainScreen):
    """The view for programs: one JSON object a line."""

    def show(self, view: RunView) -> None:
        print(json.dumps(dataclasses.asdict(view)), flush=True)


def follow_run(follower: RunFollower, *, as_json: bool = False, detached: str = "") -> RunEnd | None:
    """Show the run until it ends, or until Ctrl-C, after which `detached` is printed; None then."""
    screen = JsonScreen() if as_json else LiveScreen(follower.metrics) if sys.stdout.isatty() else PlainScreen()
    try:
        with ended_by_reader():
            return follower.follow(screen, pause)
    except KeyboardInterrupt:
        screen.close()
        tell(f"\n{detached}")
        return None
    finally:
        screen.close()


def follow_launch(follower: RunFollower, words: Sequence[str] = ()) -> int:
    """Follow a run that was just launched; return the exit code: that of the run, or 0 if the user has detached."""
    record = follower.record
    assert record is not None
    end = follow_run(follower, detached=f"detached: {_goes_on(record)}")
    if end is not None:
        print(visible(f"{record.run}: {end.reason} (exit code {end.exit_code})"))
    print_next(record.run, words or [record.target_word])
    return 0 if end is None else end.exit_code


def _goes_on(record: LaunchRecord) -> str:
    return f"{record.run} continues without this terminal, until {record.groups[0].kill_at} at the latest"


def print_next(name: str, words: Sequence[str], *, options: bool = True) -> None:
    """Print what people do next with a run or a sweep that was launched."""
    for verb, option in (("status", "--watch"), ("logs", "--follow"), ("stop", "")):
        print("  " + shlex.join(["skytrain", verb, name, *words, *([option] if options and option else [])]))
