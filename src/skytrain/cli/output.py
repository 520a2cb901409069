"""Standard output on which no text of a store, a model or a data set commands the terminal that shows it."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TextIO, cast

from ..config import visible


class VisibleOutput:
    """A stream whose control characters are shown, not obeyed."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        self.stream.write(visible(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def drawn_output() -> TextIO:
    """Return standard output as it is: for what Skytrain draws itself, and for a model's text that a program reads."""
    return sys.stdout.stream if isinstance(sys.stdout, VisibleOutput) else sys.stdout


def tell(text: str, end: str = "\n") -> None:
    """Print a line for people, on stderr, which other libraries draw their bars on."""
    print(visible(text), end=end, file=sys.stderr, flush=True)


@contextmanager
def visible_output() -> Iterator[None]:
    """Show control characters of all that is printed in this block, logged, warned of, or part of an error nobody expected.

    Libraries log and warn, too, of what they read: those with handlers of their own write to stderr themselves.
    """
    before = sys.stdout
    sys.stdout = cast("TextIO", VisibleOutput(before))
    sys.excepthook = _print_error
    threading.excepthook = _print_error_of_thread
    warnings.formatwarning = _format_warning
    logging.setLogRecordFactory(_VisibleRecord)
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_VisibleFormatter())
    try:
        yield
    finally:
        if isinstance(sys.stdout, VisibleOutput):
            sys.stdout = before


def _print_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    tell("".join(traceback.format_exception(kind, error, trace)), end="")


def _print_error_of_thread(failed: threading.ExceptHookArgs) -> None:
    if failed.exc_value is not None and failed.exc_type is not SystemExit:
        _print_error(failed.exc_type, failed.exc_value, failed.exc_traceback)


_plain_warning = warnings.formatwarning


def _format_warning(*warning: Any, **more: Any) -> str:
    return visible(_plain_warning(*warning, **more))


class _VisibleRecord(logging.LogRecord):
    def getMessage(self) -> str:  # noqa: N802 - logging's name
        return visible(super().getMessage())


class _VisibleFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))
