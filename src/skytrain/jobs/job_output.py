"""The output of a job that keeps no log of its own: shown here, and kept in the store while it runs."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from typing import IO

from ..storage import Store, StoreError

KEPT_LINES = 2000  # the last ones
KEEP_SECONDS = 30.0  # between two writes to the store


def job_log_key(run: str, name: str = "") -> str:
    """Return the key of a job's output, which is named by its generation; without a name, that of their folder."""
    return f"runs/{run}/job-logs/{name}{name and '.log'}"


class JobOutput:
    """Reads a job's output in a thread, prints it, and writes the last lines to the run's folder."""

    def __init__(self, store: Store, run: str, name: str) -> None:
        self._store = store
        self._key = job_log_key(run, name)
        self._lines: deque[bytes] = deque(maxlen=KEPT_LINES)
        self._kept_at = time.monotonic()
        self._kept = 0
        self._count = 0
        self._thread: threading.Thread | None = None

    def read(self, stream: IO[bytes]) -> None:
        self._thread = threading.Thread(target=self._read, args=[stream], daemon=True)
        self._thread.start()

    def _read(self, stream: IO[bytes]) -> None:
        for line in stream:
            sys.stderr.buffer.write(line)
            sys.stderr.flush()
            self._lines.append(line)
            self._count += 1

    def keep(self, *, ended: bool) -> None:
        """Write the lines to the store if it is time, or the last time. A failure leaves them to the next write."""
        if ended and self._thread is not None:
            self._thread.join(5.0)  # a worker that outlives the job may hold the pipe
        if not ended and (time.monotonic() - self._kept_at < KEEP_SECONDS or self._count == self._kept):
            return
        self._kept_at = time.monotonic()
        count = self._count
        try:
            self._store.write(self._key, b"".join(list(self._lines)))
            self._kept = count
        except StoreError as error:
            print(f"warning: the job's output could not be kept: {error}", file=sys.stderr)  # noqa: T201
