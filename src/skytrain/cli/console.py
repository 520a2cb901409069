"""Output for people: progress bars in a terminal, plain lines elsewhere. Progress goes to stderr, data to stdout."""

from __future__ import annotations

import io
import select
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import typer

from ..report import Console


def reporter() -> Console:
    return Console()


def print_table(rows: Sequence[tuple[str, ...]]) -> None:
    from ..report import text_table

    print(text_table(rows))


def pause(seconds: float) -> None:
    """Wait; end the command if the reader of its output has gone, as in `status --watch | head`."""
    try:
        poll = select.poll()
        output = sys.stdout.fileno()
    except (AttributeError, io.UnsupportedOperation):  # not on every system, and not where Python itself captures it
        time.sleep(seconds)
        return
    poll.register(output, 0)  # errors and the other end's absence are reported without being asked for
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        if poll.poll(left * 1000):
            raise BrokenPipeError


@contextmanager
def ended_by_reader() -> Iterator[None]:
    """End the command quietly when the reader of its output goes away."""
    try:
        yield
    except BrokenPipeError:
        sys.stdout = open("/dev/null", "w")  # noqa: PTH123, SIM115 - so that the interpreter's last flush is quiet
        raise typer.Exit(0) from None
