"""A thread uploads what a run writes to the store every few seconds, so that no step waits for it.

A stream is numbered parts, since objects are not appended to. The newest part is written again, whole, until it is
large: so a week of seconds makes hundreds of objects, and a reader is never more than seconds behind.
"""

from __future__ import annotations

import json
import struct
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from ..config import SkytrainError
from ..storage import Store

EVERY_SECONDS = 5.0
PART_BYTES = 256 * 1024
CLOSE_SECONDS = 60.0  # that a store which does not answer may hold up the end


class Stream(Protocol):
    """Something that brings what is new to its place, whole or not at all, when the thread comes round."""

    def flush(self) -> None: ...


class Lines:
    """JSON records as numbered parts `<prefix><part>.jsonl`."""

    def __init__(self, store: Store, prefix: str) -> None:
        self._store, self._prefix = store, prefix
        self._lock = threading.Lock()
        self._sealed: list[tuple[int, bytes]] = []  # full parts that the store does not have yet
        self._number, self._part, self._changed = 0, bytearray(), False

    def write(self, record: Mapping[str, Any]) -> None:
        line = json.dumps(record).encode() + b"\n"
        with self._lock:
            if self._part and len(self._part) + len(line) > PART_BYTES:
                self._sealed.append((self._number, bytes(self._part)))
                self._number, self._part = self._number + 1, bytearray()
            self._part += line
            self._changed = True

    def flush(self) -> None:
        with self._lock:
            sealed = len(self._sealed)
            parts = [*self._sealed, *([(self._number, bytes(self._part))] if self._changed else [])]
            self._changed = False
        written = 0
        try:
            for number, body in parts:
                self._store.write(f"{self._prefix}{number:05d}.jsonl", body)
                written += 1
        finally:
            with self._lock:
                del self._sealed[: min(written, sealed)]  # not the part in hand, which may have been sealed since
                self._changed = self._changed or written < len(parts)


class EventFiles:
    """TensorBoard's files in a local folder, each as parts of whole records: readers take several files for one."""

    def __init__(self, store: Store, folder: Path, key: str) -> None:
        self._store, self._folder, self._key = store, folder, key
        self._begun: dict[Path, tuple[int, int]] = {}  # part in hand, and where in the file it begins
        self._sent: dict[Path, int] = {}  # bytes of the file that the store has

    def flush(self) -> None:
        for path in sorted(self._folder.rglob("*")):
            if path.is_file() and path.stat().st_size > self._sent.get(path, 0):
                self._flush(path)

    def _flush(self, path: Path) -> None:
        name = f"{self._key}/{path.relative_to(self._folder).as_posix()}"
        if "tfevents" not in path.name:
            self._store.upload(path, name)
            self._sent[path] = path.stat().st_size
            return
        number, start = self._begun.get(path, (0, 0))
        with path.open("rb") as file:
            file.seek(start)
            data = file.read()
        end = whole_records(data)
        if start + end > self._sent.get(path, 0):
            self._store.write(f"{name}.{number:05d}", data[:end])
            self._sent[path] = start + end
        if end >= PART_BYTES:
            number, start = number + 1, start + end
        self._begun[path] = (number, start)


def whole_records(data: bytes) -> int:
    """Bytes of the complete records at the beginning: length (8), its checksum (4), the record, its checksum (4)."""
    end = 0
    while end + 12 <= len(data):
        size = 16 + struct.unpack_from("<Q", data, end)[0]
        if end + size > len(data):
            break
        end += size
    return end


class Sync:
    """The thread. A stream whose store does not answer keeps what it has and tries again; that is said once, and its end too."""

    def __init__(self, tell: Callable[[str], None], every_seconds: float = EVERY_SECONDS) -> None:
        self._tell, self._every = tell, every_seconds
        self._streams: list[Stream] = []
        self._essential: list[Stream] = []
        self._before: list[Callable[[], None]] = []
        self._troubled: dict[int, Exception] = {}  # by the id of the stream, its last error
        self._wake, self._closing = threading.Event(), False
        self._flushing = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="skytrain-sync", daemon=True)

    def add(self, stream: Stream, *, essential: bool = False) -> None:
        """`essential`: no checkpoint is committed before all of it is in the store."""
        self._streams.append(stream)
        if essential:
            self._essential.append(stream)

    def each_time(self, work: Callable[[], None]) -> None:
        """`work` is done by the thread before it flushes: a heartbeat, a look at the store."""
        self._before.append(work)

    def start(self) -> None:
        self._thread.start()

    def _work(self) -> None:
        while not self._closing:
            self._wake.wait(self._every)
            self._wake.clear()
            self.flush()

    def flush(self, timeout_seconds: float = -1) -> bool:
        """Whether everything has reached its place. A flush under way is waited for, without a limit by default."""
        if not self._flushing.acquire(timeout=timeout_seconds):
            return False
        try:
            done = [self._try(work) for work in [*self._before, *(stream.flush for stream in self._streams)]]
        finally:
            self._flushing.release()
        return all(done)

    def flush_for_commit(self) -> None:
        """Flushes, and raises where an essential stream has not reached the store."""
        self.flush()
        for stream in self._essential:
            error = self._troubled.get(id(stream))
            if isinstance(error, SkytrainError):
                raise error
            if error is not None:
                raise SkytrainError(f"metrics or spend did not reach the store: {error!r}") from error

    def _try(self, work: Callable[[], None]) -> bool:
        # Which stream this is; a bound method is a new object each time.
        identity = id(getattr(work, "__self__", work))
        try:
            work()
        except Exception as error:  # whatever it is, the thread must go on: other streams depend on it
            if identity not in self._troubled:
                described = error if isinstance(error, SkytrainError | OSError) else repr(error)
                self._tell(f"warning: {described}\n  training continues, and this is tried again every few seconds")
            self._troubled[identity] = error
            return False
        if self._troubled.pop(identity, None) is not None:
            self._tell("the store answers again: nothing was lost")
        return True

    def close(self, timeout_seconds: float = CLOSE_SECONDS) -> None:
        """A last flush, tried until it succeeds or time is up."""
        self._closing = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)
        deadline = time.monotonic() + timeout_seconds
        while not self.flush(max(0.0, deadline - time.monotonic())):
            if time.monotonic() >= deadline:
                self._tell("warning: the last lines of the log and metrics did not reach the store")
                return
            self._wake.wait(min(1.0, self._every))
            self._wake.clear()
