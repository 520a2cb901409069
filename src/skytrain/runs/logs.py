"""The log of each rank: written during the run (reports, libraries' warnings, a fatal traceback) and read afterwards."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from ..config import SkytrainError, without_secrets
from ..storage import Store, read_lines
from .attempts import attempt_key, attempt_numbers, now, read_attempt
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
    return {"at": now(), "text": without_secrets(text)}


class _Handler(logging.Handler):
    def __init__(self, write: Write) -> None:
        super().__init__(logging.WARNING)
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        self._write(self.format(record))


@contextmanager
def libraries_logged(write: Write) -> Iterator[None]:
    """Log warnings and errors of libraries too, and the error that ends this block."""
    handler = _Handler(write)
    logging.getLogger().addHandler(handler)
    try:
        yield
    except BaseException:
        write(traceback.format_exc())
        raise
    finally:
        logging.getLogger().removeHandler(handler)


@dataclass(frozen=True)
class LogLine:
    """One entry of a rank's log; `text` may have several lines."""

    at: str
    attempt: int
    rank: int
    text: str


@dataclass(frozen=True)
class LogSelection:
    """The choice of logs to read: by default rank 0 of the newest attempt."""

    attempt: int | None = None
    ranks: frozenset[int] | None = frozenset({0})  # None: all
    node: int | None = None  # all ranks of this node; replaces `ranks`

    def holds(self, rank: int, ranks_per_node: int) -> bool:
        if self.node is not None:
            return rank // ranks_per_node == self.node
        return self.ranks is None or rank in self.ranks


@dataclass
class RunLogs:
    """The selected logs of a run. `new` returns what was added since the last call of `last` or `new`."""

    store: Store
    run: str
    selection: LogSelection
    # (attempt, rank) -> the newest part that was read, its etag and the number of its entries
    _seen: dict[tuple[int, int], tuple[int, str, int]] = field(default_factory=dict)

    def attempt(self) -> int:
        """Return the selected attempt, or the newest. Raises SkytrainError if there is none."""
        numbers = attempt_numbers(self.store, self.run)
        wanted = self.selection.attempt
        if not numbers:
            raise SkytrainError(f"run {self.run!r} has not started: it has no logs yet")
        if wanted is not None and wanted not in numbers:
            raise SkytrainError(f"--attempt {wanted}: run {self.run!r} has attempts {numbers[0]} to {numbers[-1]}")
        return numbers[-1] if wanted is None else wanted

    def last(self, count: int | None) -> list[LogLine]:
        """Return the last `count` entries, or all. Raises SkytrainError if the selected ranks wrote no log."""
        attempt = self.attempt()
        parts = self._parts(attempt)
        if not parts:
            raise SkytrainError(self._nothing(attempt))
        lines: list[LogLine] = []
        for rank, etags in parts.items():
            rank_lines: list[LogLine] = []
            for number in sorted(etags, reverse=True):
                here = self._read(attempt, rank, number)
                if not rank_lines:
                    self._seen[attempt, rank] = (number, etags[number], len(here))
                rank_lines = [*here, *rank_lines]
                if count is not None and len(rank_lines) >= count:
                    break
            lines += rank_lines
        lines.sort(key=lambda line: line.at)  # stable: a rank's own lines keep their order
        return lines if count is None else lines[-count:] if count else []

    def new(self) -> list[LogLine]:
        """Return what was added since the last call, also by attempts that started since, unless one is selected."""
        newest = self.attempt()
        begun = [attempt for attempt, _ in self._seen]
        attempts = [number for number in attempt_numbers(self.store, self.run) if number >= max(begun, default=newest)]
        lines = [line for number in attempts if number <= newest for line in self._added(number)]
        lines.sort(key=lambda line: (line.attempt, line.at))
        return lines

    def _added(self, attempt: int) -> Iterator[LogLine]:
        for rank, etags in self._parts(attempt).items():
            part, etag, count = self._seen.get((attempt, rank), (-1, "", 0))
            for number in sorted(etags):
                if number < part or (number == part and etags[number] == etag):
                    continue
                lines = self._read(attempt, rank, number)
                yield from lines[count if number == part else 0 :]
                self._seen[attempt, rank] = (number, etags[number], len(lines))

    def _parts(self, attempt: int) -> dict[int, dict[int, str]]:
        """Return the parts of each selected rank by number, with their etags."""
        prefix = f"{attempt_key(self.run, attempt)}/logs/"
        per_node = int(read_attempt(self.store, self.run, attempt).get("ranks_per_node") or 1)
        parts: dict[int, dict[int, str]] = {}
        for stat in self.store.list(prefix):
            rank, _, number = stat.key.removeprefix(prefix).removesuffix(".jsonl").partition("-")
            if rank.isdecimal() and number.isdecimal() and self.selection.holds(int(rank), per_node):
                parts.setdefault(int(rank), {})[int(number)] = stat.etag
        return dict(sorted(parts.items()))

    def _read(self, attempt: int, rank: int, number: int) -> list[LogLine]:
        key = f"{attempt_key(self.run, attempt)}/logs/{rank}-{number:05d}.jsonl"
        return [
            LogLine(str(record.get("at", "")), attempt, rank, str(record.get("text", "")))
            for record in read_lines(self.store, key)
        ]

    def _nothing(self, attempt: int) -> str:
        everyone = RunLogs(self.store, self.run, LogSelection(attempt, ranks=None))._parts(attempt)
        if not everyone:
            return f"attempt {attempt} of run {self.run!r} has written no log yet"
        known = ", ".join(map(str, everyone))
        return f"attempt {attempt} of run {self.run!r} has no log of the selected ranks\n  ranks with a log: {known}"
