"""A thread that uploads a run's output to the store every few seconds, so that no step waits for it.

A stream is a sequence of numbered parts, because objects cannot be appended to. The newest part is rewritten until it
is large: a week of uploads makes only hundreds of objects, and readers lag by a few seconds at most.
"""

from __future__ import annotations

import errno
import json
import re
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from ..aws import CloudWatch, LogDestination
from ..config import SkytrainError
from ..storage import RECORD_BYTES, NotFound, ObjectError, Store, check_key

EVERY_SECONDS = 5.0
PART_BYTES = 256 * 1024
EVENTS_PART = re.compile(
    r"(?P<file>(.*/)?[^/]*tfevents[^/]*?)(\.(?P<number>\d{5}))?"
)  # part of an event file; on file:// all of one
# What a folder says of names that only a bucket takes: too long, or both a file's and a folder's.
NAMELESS = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG)
CLOUDWATCH_CLOSE_SECONDS = 5.0  # limit on sending the last lines of a process
CLOSE_SECONDS = 60.0  # longest delay of the end by a store that does not respond


class Stream(Protocol):
    """A source of output whose `flush` uploads new data atomically; the thread calls it periodically."""

    def flush(self) -> None: ...


class Lines:
    """A stream of JSON records in numbered parts `<prefix><part>.jsonl`."""

    def __init__(self, store: Store, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self._lock = threading.Lock()
        self._sealed: list[tuple[int, bytes]] = []  # full parts that the store does not have yet
        self._number = 0
        self._part = bytearray()
        self._changed = False

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
                del self._sealed[: min(written, sealed)]  # not the current part, which may have been sealed since
                self._changed = self._changed or written < len(parts)


class EventFiles:
    """TensorBoard event files of a local folder, uploaded in parts of whole records; readers merge the parts."""

    def __init__(self, store: Store, folder: Path, key: str) -> None:
        self._store = store
        self._folder = folder
        self._key = key
        self._begun: dict[Path, tuple[int, int]] = {}  # current part, and its offset in the file
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
    """Return the size of the leading complete records: length (8), its checksum (4), the record, its checksum (4)."""
    end = 0
    while end + 12 <= len(data):
        size = 16 + struct.unpack_from("<Q", data, end)[0]
        if end + size > len(data):
            break
        end += size
    return end


def events_key(run: str) -> str:
    return f"runs/{run}/tensorboard"


class EventCopies:
    """Local copies of a run's event files, with their parts joined. A part only grows, so a refresh appends."""

    def __init__(self, store: Store, run: str, folder: Path) -> None:
        self._store = store
        self._key = events_key(run)
        self._folder = folder
        self._copied: dict[str, int] = {}  # bytes of each part

    def refresh(self) -> int:
        """Copy what is new, and return the number of bytes."""
        parts: dict[str, list[tuple[int, str, int]]] = defaultdict(list)
        for stat in self._store.list(f"{self._key}/"):
            part = EVENTS_PART.fullmatch(stat.key.removeprefix(f"{self._key}/"))
            if part:
                parts[part["file"]].append((int(part["number"] or 0), stat.key, stat.size))
        return sum(self._extend(file, sorted(its)) for file, its in parts.items())

    def _extend(self, file: str, parts: list[tuple[int, str, int]]) -> int:
        check_key(self._store.root, file)  # a bucket may have keys with `..`
        try:
            return self._append(self._folder / file, parts)
        except OSError as error:
            if error.errno not in NAMELESS:
                raise
            hint = "delete it: it is not Skytrain's"
            url = self._store.url(f"{self._key}/{file}")
            raise ObjectError("copy", url, str(error.strerror), hint=hint) from error

    def _append(self, path: Path, parts: list[tuple[int, str, int]]) -> int:
        added = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as copy:
            for _, key, size in parts:
                while (known := self._copied.get(key, 0)) < size:
                    try:
                        data = self._store.read_range(key, known, min(size - known, RECORD_BYTES))
                    except NotFound:  # the run was deleted or renamed
                        return added
                    if not data:
                        break
                    copy.write(data)
                    self._copied[key] = known + len(data)
                    added += len(data)
        return added


class Sync:
    """The upload thread. A failed stream keeps its data and is retried; failure and recovery are reported once."""

    def __init__(
        self,
        tell: Callable[[str], None],
        every_seconds: float = EVERY_SECONDS,
        *,
        to: str = "the store",
        keeps_all: bool = True,  # whatever happens; otherwise streams drop what they cannot hold
    ) -> None:
        self._tell = tell
        self._every = every_seconds
        self._to = to
        self._keeps_all = keeps_all
        self._streams: list[Stream] = []
        self._essential: list[Stream] = []
        self._before: list[Callable[[], None]] = []
        self._troubled: dict[int, Exception] = {}  # by the id of the stream, its last error
        self._wake = threading.Event()
        self._closing = False
        self._flushing = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="skytrain-sync", daemon=True)

    def add(self, stream: Stream, *, essential: bool = False) -> None:
        """Add a stream. No checkpoint is committed before all of an `essential` stream is in the store."""
        self._streams.append(stream)
        if essential:
            self._essential.append(stream)

    def each_time(self, work: Callable[[], None]) -> None:
        """Call `work` in the thread before each flush, for example for a heartbeat or to poll the store."""
        self._before.append(work)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Let the thread flush now, without waiting for it."""
        self._wake.set()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Keep the thread idle during this block: a process that is forked then inherits no lock that it holds."""
        with self._flushing:
            yield

    def _work(self) -> None:
        while not self._closing:
            self._wake.wait(self._every)
            self._wake.clear()
            self.flush()

    def flush(self, timeout_seconds: float = -1) -> bool:
        """Flush all streams and return whether all succeeded.

        Waits for a flush in progress, by default without a timeout.
        """
        if not self._flushing.acquire(timeout=timeout_seconds):
            return False
        try:
            done = [self._try(work) for work in [*self._before, *(stream.flush for stream in self._streams)]]
        finally:
            self._flushing.release()
        return all(done)

    def flush_for_commit(self) -> None:
        """Flush, and raise if an essential stream was not uploaded completely."""
        self.flush()
        for stream in self._essential:
            error = self._troubled.get(id(stream))
            if isinstance(error, SkytrainError):
                raise error
            if error is not None:
                raise SkytrainError(f"metrics or spend did not reach the store: {error!r}") from error

    def _try(self, work: Callable[[], None]) -> bool:
        # Identify the stream itself: a bound method is a new object each time.
        identity = id(getattr(work, "__self__", work))
        try:
            work()
        except Exception as error:  # the thread must survive any error: other streams depend on it
            if identity not in self._troubled:
                described = error if isinstance(error, SkytrainError | OSError) else repr(error)
                self._tell(f"warning: {described}\n  training continues, retrying every few seconds")
            self._troubled[identity] = error
            return False
        if self._troubled.pop(identity, None) is not None:
            self._tell(f"{self._to} answers again{': nothing was lost' if self._keeps_all else ''}")
        return True

    def close(self, timeout_seconds: float = CLOSE_SECONDS) -> None:
        """Stop the thread, then flush once more, retrying until it succeeds or times out."""
        self._closing = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)
        deadline = time.monotonic() + timeout_seconds
        while not self.flush(max(0.0, deadline - time.monotonic())):
            if time.monotonic() >= deadline:
                self._tell(f"warning: the last lines of the log and metrics did not reach {self._to}")
                return
            self._wake.wait(min(1.0, self._every))
            self._wake.clear()


@contextmanager
def cloudwatch_stream(
    destination: LogDestination | None, run: str, stream: str, tell: Callable[[str], None]
) -> Iterator[CloudWatch | None]:
    """Send lines in a thread for the time of this block; None without a destination. Problems are told, once."""
    if destination is None:
        yield None
        return
    try:
        lines = CloudWatch(destination, stream, run)
    except SkytrainError as error:
        if destination.creates_group:  # it was requested by a setting, which cannot be followed
            raise
        tell(f"warning: nothing is sent to CloudWatch: {error}")
        yield None
        return
    sync = Sync(tell, to="CloudWatch", keeps_all=False)
    sync.add(lines)
    sync.start()
    try:
        yield lines
    finally:
        sync.close(CLOUDWATCH_CLOSE_SECONDS)
