"""Logs: what the ranks of a run wrote, from the store, and what they write while it lasts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ..config import Config
from ..jobs import job_log_key
from ..runs import LogLine, LogSelection, RunLogs, attempt_key, attempt_numbers, load_run, read_failure, read_outcome
from ..storage import Store, open_store

if TYPE_CHECKING:
    from ..targets import LaunchTarget

POLL_SECONDS = 2.0
EARLY_POLL_SECONDS = 5.0
KEPT_BYTES = 64 << 20  # of the end of a machine's log: whoever writes it decides how long it is
FOLLOWED_LINES = 10_000  # that are asked for again and again; a job writes few before the run has its own log


def has_log(config: Config, run: str) -> bool:
    """Return whether the newest attempt of the run, or its job without attempts, has written a log to the store."""
    store = open_store(config.store)
    newest = attempt_numbers(store, run)[-1:]
    return any(store.list(f"{attempt_key(run, one)}/logs") for one in newest) or bool(store.list(job_log_key(run)))


class EarlyLog:
    """The output of a run's jobs before the run has a log in the store."""

    def __init__(self, target: LaunchTarget, config: Config, run: str) -> None:
        self._target = target
        self._config = config
        self._run = run
        self.found = False  # whether the target has such a log

    def lines(
        self, last: int | None, *, follow: bool = False, wait: Callable[[float], None] = time.sleep
    ) -> Iterator[str]:
        """Yield the last lines; with `follow` also new ones, until the run has its own log or its job has ended."""
        shown = Counter[str]()
        first = True
        while True:
            log = self._target.job_log(self._config, self._run, FOLLOWED_LINES if follow else last)
            if log is None:
                return
            self.found = True
            # The lines of several machines come mixed, and late: new is what was not there so often before.
            counts = Counter[str]()
            new = []
            for line in log.lines:
                counts[line] += 1
                if counts[line] > shown[line]:
                    new.append(line)
            shown |= counts
            yield from new[-last:] if first and follow and last else new
            first = False
            if not follow or log.ended or has_log(self._config, self._run):
                return
            wait(EARLY_POLL_SECONDS)


def logs(
    config: Config,
    run: str,
    selection: LogSelection,
    last: int | None,
    *,
    follow: bool = False,
    wait: Callable[[float], None] = time.sleep,
) -> Iterator[LogLine]:
    """Yield the last entries; with `follow` also new ones, until the attempt has ended and its whole log was read."""
    store = open_store(config.store)
    if kept := _job_logs(store, run):
        yield from kept[-last:] if last else kept
        return
    load_run(store, run)  # for its message, if there is no such run
    reader = RunLogs(store, run, selection)
    yield from reader.last(last)
    while follow:
        ended = _has_ended(store, run, reader.attempt())  # before the read: its last lines come before its end
        yield from reader.new()
        if ended:
            return
        wait(POLL_SECONDS)


def _job_logs(store: Store, run: str) -> list[LogLine]:
    """Yield what `launch prepare` printed, on all machines that it had."""
    lines = []
    for stat in sorted(store.list(job_log_key(run)), key=lambda stat: stat.key):
        number = stat.key.rpartition("/")[2].removesuffix(".log")
        if not number.isdecimal():  # not a machine's log
            continue
        written = datetime.fromtimestamp(stat.modified, UTC).isoformat(timespec="seconds")
        text = store.read_range(stat.key, max(0, stat.size - KEPT_BYTES), KEPT_BYTES).decode(errors="replace")
        lines += [LogLine(written, int(number), 0, line) for line in text.splitlines()]
    return lines


def _has_ended(store: Store, run: str, attempt: int) -> bool:
    return read_outcome(store, run, attempt) is not None or read_failure(store, run, attempt) is not None


def log_text(line: LogLine, *, with_rank: bool) -> str:
    """Return an entry for people; further lines of its text are indented like the first."""
    start = f"{line.at}  " + (f"[rank {line.rank}] " if with_rank else "")
    return start + line.text.replace("\n", "\n" + " " * len(start))
