"""A local disk cache of shards: one verified download per node, within a size limit, shared by ranks and runs.

Each shard has a folder named by the hash of its content, so runs that read the same data share it:
    <sha256>/tokens.bin   appears only when complete and verified
    <sha256>/verified     the file's size, times and inode when its hash was last computed
    <sha256>/lock         exclusive lock while downloading or evicting, shared lock while reading;
                          the kernel releases it when the process dies for any reason
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import shutil
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from ..config import SkytrainError, format_bytes, format_seconds, user_cache_folder
from ..storage import AccessDenied, NotFound, Patience, Retry, Store, StoreError, StoreUnreachable
from .shards import sha256_of_file

log = logging.getLogger("skytrain.tokens")

# After this many downloads with a wrong hash, the stored object is considered wrong, not the transfer.
DAMAGED_DOWNLOADS = 8
POLL_SECONDS = 0.1
TRY_SECONDS = 10.0  # retry time of one download call; cancellation is checked between calls
NVME = Path("/opt/dlami/nvme")
STAMP = "verified"
HASH = re.compile("[0-9a-f]{64}")


class Cancelled(Exception):
    """The error of a request for a shard that its caller cancelled."""


class Pin:
    """A shard in use by this process: it cannot be evicted until the pin is released."""

    _all: ClassVar[weakref.WeakSet[Pin]] = weakref.WeakSet()

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock
        Pin._all.add(self)

    @classmethod
    def of_nothing(cls, path: Path) -> Pin:
        """Return a pin without a lock, for a file that is read in place and never evicted."""
        return cls(path, -1)

    def release(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    __del__ = release

    @classmethod
    def forget_in_child(cls) -> None:
        # A forked data loader worker inherits our locks; they stay held until its copies are closed too.
        for pin in cls._all:
            pin.release()


os.register_at_fork(after_in_child=Pin.forget_in_child)


def default_folder() -> Path:
    """Return a folder on the NVMe disk of AWS deep learning images, if mounted, else in the user's cache folder."""
    if os.access(NVME, os.W_OK):
        return NVME / "skytrain" / "tokens"
    return user_cache_folder() / "skytrain" / "tokens"


@dataclass(frozen=True)
class Waiting:
    """A caller's permission to wait for other processes. `Cancelled` is raised once `cancelled()` returns true."""

    allowed: bool = True
    cancelled: Callable[[], bool] = lambda: False


WAIT = Waiting()


@dataclass(frozen=True)
class ShardCache:
    folder: Path = field(default_factory=default_folder)
    limit_bytes: int | None = None  # limit for all shards in the folder, across runs; None: the free disk space
    wait_seconds: float = 600.0  # longest wait for an unresponsive store, or for space that other runs use

    def path(self, sha256: str) -> Path:
        """Return where the shard with this hash is. A manifest names the hash, and must not name another folder with it."""
        if not isinstance(sha256, str) or not HASH.fullmatch(sha256):
            raise SkytrainError(f"a manifest has {sha256!r:.80} in place of a sha256\n  prepare the data again")
        return self.folder / sha256 / "tokens.bin"

    def fetch(
        self,
        store: Store,
        key: str,
        sha256: str,
        size: int,
        waiting: Waiting = WAIT,
        make: Callable[[Path], None] | None = None,
    ) -> Pin | None:
        """Make the object local and verified, and return a pin on it.

        Return None if waiting is not allowed while another process fetches the object or uses the space. For an
        object of unknown hash, pass `make`, which writes the file at the given path; `sha256` then only names it.
        """
        if self.limit_bytes is not None and size > self.limit_bytes:
            raise SkytrainError(
                f"{store.url(key)} has {format_bytes(size)}, more than the cache {self.folder} may hold ({format_bytes(self.limit_bytes)})\n"
                "  set a larger loader.cache_limit, or prepare smaller shards (data.shard_tokens)"
            )
        path = self.path(sha256)
        stamp = path.with_name(STAMP)
        lock = self._open_lock(path.parent / "lock")
        try:
            while True:
                # Shared lock first: many processes may use a complete file at once.
                if not _flock(lock, fcntl.LOCK_SH, waiting.allowed):
                    return None
                if path.exists() and _is_verified(path, sha256, stamp):
                    os.utime(lock)  # the least recently used is evicted first
                    return Pin(path, os.dup(lock))
                if not _flock(lock, fcntl.LOCK_EX, waiting.allowed):
                    return None
                if not path.exists() or not (make is None and verify_once(path, sha256, stamp)):
                    self._remove(path.parent)
                    if not self._make_room(lock, size, store.url(key), waiting):
                        return None
                    if make is None:
                        self.download(store, key, path, sha256, waiting.cancelled)
                    else:
                        make(path)
                    os.ftruncate(lock, 0)
                    assert verify_once(path, sha256, stamp, known_good=True)
                # Converting to a shared lock releases it briefly, and the file may be evicted meanwhile: check again.
        finally:
            os.close(lock)

    def used_bytes(self) -> int:
        with self._folder_lock():
            return sum(entry.bytes for entry in self._entries())

    def _make_room(self, lock: int, size: int, url: str, waiting: Waiting) -> bool:
        """Evict shards until `size` more bytes fit, reserve them, and return True.

        If other processes hold too much, wait for them; return False if waiting is not allowed.
        """
        deadline = time.monotonic() + self.wait_seconds
        said = False
        while True:
            with self._folder_lock():
                missing = self._missing_bytes(size)
                for entry in sorted(self._entries(), key=lambda entry: entry.used_at):
                    if missing <= 0:
                        break
                    missing -= self._evict(entry)
                if missing <= 0:
                    os.pwrite(lock, str(size).encode(), 0)
                    return True
            if not waiting.allowed:
                return False
            if time.monotonic() > deadline:
                limit = (
                    "its disk is full" if self.limit_bytes is None else f"its limit is {format_bytes(self.limit_bytes)}"
                )
                raise SkytrainError(
                    f"the cache {self.folder} has no room for {url} ({format_bytes(size)}): {limit}, and running jobs read all that is in it\n"
                    "  give this run its own loader.cache_dir, or a larger loader.cache_limit"
                )
            if not said:
                log.warning(
                    "waiting up to %s for room in the cache %s, which other runs use",
                    format_seconds(self.wait_seconds),
                    self.folder,
                )
                said = True
            _sleep(POLL_SECONDS, waiting.cancelled)

    def _missing_bytes(self, size: int) -> int:
        over_disk = size - shutil.disk_usage(self.folder).free
        if self.limit_bytes is None:
            return over_disk
        return max(over_disk, sum(entry.bytes for entry in self._entries()) + size - self.limit_bytes)

    def _entries(self) -> list[_Entry]:
        """Return the cache entries. The caller must hold the folder lock."""
        entries = []
        for folder in self.folder.iterdir():
            if not HASH.fullmatch(folder.name):  # not a shard's: the folder may have been something else before
                continue
            lock_path = folder / "lock"
            path = folder / "tokens.bin"
            with suppress(FileNotFoundError):
                if lock_path.exists():
                    # A download in progress counts as the bytes that it reserved.
                    size = path.stat().st_size if path.exists() else int(lock_path.read_text() or 0)
                    entries.append(_Entry(folder, size, lock_path.stat().st_mtime_ns))
        return entries

    def _evict(self, entry: _Entry) -> int:
        """Evict a shard and return the bytes freed: 0 if a process is reading or downloading it."""
        lock = self._open_lock(entry.folder / "lock")
        try:
            if not entry.bytes or not _flock(lock, fcntl.LOCK_EX, wait=False):
                return 0
            self._remove(entry.folder)
            os.ftruncate(lock, 0)  # drop the reservation of a process that died
            return entry.bytes
        finally:
            os.close(lock)

    @staticmethod
    def _remove(folder: Path) -> None:
        """Delete all files of a shard except the lock, which the caller must hold."""
        for path in folder.iterdir():
            if path.name != "lock":
                path.unlink()

    def download(
        self, store: Store, key: str, path: Path, sha256: str | None, cancelled: Callable[[], bool] = lambda: False
    ) -> None:
        """Copy an object to a local file, retrying for up to `wait_seconds` while the store is unavailable."""
        quick = store.hurried(min(TRY_SECONDS, self.wait_seconds))
        patience = Patience(Retry(self.wait_seconds, POLL_SECONDS, longest_wait_seconds=5.0))
        failures = 0
        while True:
            try:
                return quick.download(key, path, sha256=sha256)
            except NotFound:
                raise SkytrainError(
                    f"{store.url(key)} is missing, though the manifest names it\n  prepare the data again, or copy the shard back"
                ) from None
            except StoreError as error:
                if isinstance(error, AccessDenied) and error.tried_seconds is None:
                    raise  # access was never granted
                if isinstance(error.__cause__, OSError) and error.__cause__.errno in (
                    errno.ENOSPC,
                    errno.EDQUOT,
                    errno.EROFS,
                    errno.EACCES,
                ):
                    raise _unusable(self.folder, error.__cause__) from error
                failures += 1
                answers = _answers(quick, key)
                wait = patience.failed()
                if answers and failures >= DAMAGED_DOWNLOADS:
                    raise SkytrainError(
                        f"{store.url(key)} cannot be had as its manifest describes it: {error}"
                    ) from error
                if wait is None and not answers:
                    raise self._gave_up(error) from error
                if not answers:
                    log.warning(
                        "%s does not answer; trying again for up to %s", store.root, format_seconds(self.wait_seconds)
                    )
                _sleep(wait or POLL_SECONDS, cancelled)

    def _gave_up(self, error: StoreError) -> StoreError:
        kind = AccessDenied if isinstance(error, AccessDenied) else StoreUnreachable
        return kind(
            error.operation,
            error.url,
            f"no answer for {format_seconds(self.wait_seconds)} (store.patience): {error.problem}",
            hint="the same command resumes from the last checkpoint",
        )

    def _open_lock(self, path: Path) -> int:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise _unusable(self.folder, error) from error

    @contextmanager
    def _folder_lock(self) -> Iterator[None]:
        lock = self._open_lock(self.folder / ".lock")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


@dataclass(frozen=True)
class _Entry:
    folder: Path
    bytes: int
    used_at: int


def verify_once(path: Path, sha256: str, stamp: Path, known_good: bool = False) -> bool:
    """Return whether the file has this hash. The hash is recomputed only if the file changed since `stamp`."""
    if _is_verified(path, sha256, stamp):
        return True
    if not known_good and sha256_of_file(path) != sha256:
        return False
    with suppress(OSError):  # without a stamp, the next process only recomputes the hash
        stamp.parent.mkdir(parents=True, exist_ok=True)
        temporary = stamp.with_name(f"{stamp.name}.{os.getpid()}")
        temporary.write_text(_identity(path, sha256))
        temporary.replace(stamp)
    return True


def _is_verified(path: Path, sha256: str, stamp: Path) -> bool:
    try:
        return stamp.read_text() == _identity(path, sha256)
    except OSError:
        return False


def _identity(path: Path, sha256: str) -> str:
    status = path.stat()
    # Every write updates the change time, and users cannot reset it.
    return f"{sha256} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}"


def _answers(store: Store, key: str) -> bool:
    try:
        return store.stat(key) is not None
    except StoreError:
        return False


def _sleep(seconds: float, cancelled: Callable[[], bool]) -> None:
    until = time.monotonic() + seconds
    while not cancelled() and time.monotonic() < until:
        time.sleep(min(POLL_SECONDS, seconds))
    if cancelled():
        raise Cancelled


def _flock(lock: int, operation: int, wait: bool) -> bool:
    try:
        fcntl.flock(lock, operation | (0 if wait else fcntl.LOCK_NB))
        return True
    except BlockingIOError:
        return False


def _unusable(folder: Path, error: OSError) -> SkytrainError:
    return SkytrainError(
        f"the cache folder {folder} cannot be used: {error.strerror}\n  set loader.cache_dir to a folder on a disk with room that can be written"
    )
