"""The interface shared by folder and bucket stores."""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import ObjectError, StoreError

Progress = Callable[[str, float], None]
"""A function that is called with a key and the bytes by which its transfer advanced (negative when it starts over)."""

TEMPORARY_PREFIX = ".skytrain-"
RECORD_BYTES = 64 << 20  # of an object that is read whole: the largest records that Skytrain writes are a few MiB
MANIFEST_BYTES = 1 << 30  # of the list of a large data set or checkpoint, or of a tokenizer's file


@dataclass(frozen=True)
class Stat:
    """Metadata of one object. `etag` is opaque: it changes whenever the object does and has no other meaning."""

    key: str
    size: int
    etag: str
    modified: float = 0.0  # when it was last written, in seconds by the store's clock


class Store(ABC):
    """Objects under one root, addressed by relative keys with `/` as the separator: `runs/a/run.json`.

    Writes are atomic: a reader sees a complete object or none, even during a concurrent replacement or after a crash.
    """

    root: str
    patience_seconds: float  # how long an operation retries while the store is unreachable

    @property
    def failing(self) -> bool:
        """Return whether operations are currently failing and being retried."""
        return False

    def url(self, key: str) -> str:
        return f"{self.root}/{key}" if key else self.root

    @abstractmethod
    def read(self, key: str, at_most: int | None = RECORD_BYTES) -> bytes:
        """Return the object's bytes. Raises `NotFound` if it does not exist.

        Raises `TooLarge` before anything is read if it has more than `at_most` bytes: whoever can write to the store
        decides how many. None is for data, whose size is not known beforehand.
        """

    @abstractmethod
    def read_range(self, key: str, start: int, length: int) -> bytes:
        """Return `read(key)[start : start + length]`: fewer bytes near the end of the object, none past it."""

    @abstractmethod
    def write(self, key: str, data: bytes) -> None:
        """Store `data` at `key`, replacing any existing object."""

    @abstractmethod
    def write_parts(self, key: str, parts: Sequence[memoryview]) -> None:
        """Store several buffers as one object, like `write`. Large objects are not joined in memory."""

    @abstractmethod
    def create(self, key: str, data: bytes) -> bool:
        """Store `data` at `key` if no object exists there, and return whether it was stored.

        Exactly one of several concurrent writers gets `True`.
        """

    @abstractmethod
    def list(self, prefix: str = "") -> list[Stat]:
        """Return every object below the folder `prefix`, at any depth, sorted by key."""

    @abstractmethod
    def folders(self, prefix: str = "") -> builtins.list[str]:
        """Return the names of the immediate subfolders of `prefix`, sorted."""

    @abstractmethod
    def stat(self, key: str) -> Stat | None:
        """Return the object's size and etag, or None if it does not exist."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Delete the object. A missing object is not an error."""

    @abstractmethod
    def delete_all(self, prefix: str) -> None:
        """Delete every object below the folder `prefix`."""

    @abstractmethod
    def upload(self, path: Path | str, key: str, progress: Progress | None = None, sha256: str | None = None) -> str:
        """Copy a local file to `key` and return the sha256 of the stored bytes.

        If `sha256` is given, a file with another hash is refused, and a bucket keeps the hash with the object to
        verify later reads of all of it.
        """

    @abstractmethod
    def download(self, key: str, path: Path | str, sha256: str | None = None, progress: Progress | None = None) -> None:
        """Copy the object to a local file, which appears only when it is complete.

        It must match `sha256`, or else the hash that is stored with the object, if there is one.
        """

    @abstractmethod
    def local_path(self, key: str) -> Path | None:
        """Return the object's or folder's path on the local file system; None for a bucket."""

    @abstractmethod
    def patient(self, seconds: float) -> Store:
        """Return a view of this store whose operations retry for `seconds` while it is unreachable."""

    def hurried(self, seconds: float) -> Store:
        """Return a view of this store whose operations retry for at most `seconds`."""
        return self.patient(min(seconds, self.patience_seconds))

    def exists(self, key: str) -> bool:
        return self.stat(key) is not None


def check_key(root: str, key: str) -> str:
    """Return the key, or raise `StoreError` unless it names a single object below the root."""
    parts = key.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\\" in key or not key.isprintable():
        raise ObjectError(
            "use",
            f"{root}/{key}",
            f"{key!r} is not a key",
            hint="a key is relative, has no '..' and no empty part: runs/a/run.json",
        )
    if any(part.startswith(TEMPORARY_PREFIX) for part in parts):
        raise ObjectError(
            "use", f"{root}/{key}", f"names that start with {TEMPORARY_PREFIX!r} are reserved for files being written"
        )
    return key


def is_key(root: str, name: str) -> bool:
    """Return whether the name is that of an object which a store can read."""
    try:
        return check_key(root, name) == name
    except StoreError:
        return False


def check_prefix(root: str, prefix: str) -> str:
    """Return the validated prefix without its trailing slash; the root itself is ''."""
    prefix = prefix.removesuffix("/")
    return check_key(root, prefix) if prefix else ""


def refuse_root(root: str, prefix: str) -> None:
    """Raise `StoreError` for an empty prefix, which would delete the entire store."""
    if not check_prefix(root, prefix):
        raise StoreError("delete", root, "that is the entire store", hint="name a folder below it")
