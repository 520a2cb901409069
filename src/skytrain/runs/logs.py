"""The log of each rank: its reports, warnings and errors of libraries, and the traceback of a fatal error."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from .attempts import now
from .reporting import Reporter, progress_line

Write = Callable[[str], None]


class LoggedReporter:
    """A reporter that forwards everything to another reporter and writes it to the log."""

    def __init__(self, reporter: Reporter, write: Write) -> None:
        self._reporter = reporter
        self._write = write

    def note(self, text: str) -> None:
        self._write(text)
        self._reporter.note(text)

    def table(self, title: str, rows: Sequence[tuple[str, str]]) -> None:
        self._write("\n".join([title, *(f"  {name}  {value}" for name, value in rows)]))
        self._reporter.table(title, rows)

    def progress(
        self, stage: str, done: float, total: float | None, detail: str = "", seconds_left: float | None = None
    ) -> None:
        self._write(progress_line(stage, done, total, detail, seconds_left))
        self._reporter.progress(stage, done, total, detail, seconds_left)


def log_record(text: str) -> dict[str, str]:
    return {"at": now(), "text": text}


class _Handler(logging.Handler):
    def __init__(self, write: Write) -> None:
        super().__init__(logging.WARNING)
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        self._write(self.format(record))


@contextmanager
def libraries_logged(write: Write) -> Iterator[None]:
    """Also log warnings and errors of libraries, and the error that ends this block."""
    handler = _Handler(write)
    logging.getLogger().addHandler(handler)
    try:
        yield
    except BaseException:
        write(traceback.format_exc())
        raise
    finally:
        logging.getLogger().removeHandler(handler)
