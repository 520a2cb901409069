"""The one interface to a folder and to a bucket."""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import StoreError

Progress = Callable[[str, float], None]
"""Called with a key and the bytes by which its transfer advanced (negative when a transfer starts over)."""

TEMPORARY_PREFIX = ".skytrain-"


@dataclass(frozen=True)
class Stat:
    """One object. `etag` changes whenever the object does; nothing else may be read from it."""

    key: str
    size: int
    etag: str


class Store(ABC):
    """Objects under one root, by key: `runs/a/run.json`. Keys are relative, with `/` between their parts.

    A reader sees an object whole or not at all, also while another process replaces it, and after a crash.
    """

    root: str
    patience_seconds: float  # that an operation keeps trying while the store cannot be reached

    @property
    def failing(self) -> bool:
        """Whether operations are failing at present, and are retried."""
        return False

    def url(self, key: str) -> str:
        return f"{self.root}/{key}" if key else self.root

    @abstractmethod
    def read(self, key: str) -> bytes:
        """The whole object. NotFound when there is none."""

    @abstractmethod
    def read_range(self, key: str, start: int, length: int) -> bytes:
        """The same bytes as `read(key)[start : start + length]`: fewer at the end, none past it."""

    @abstractmethod
    def write(self, key: str, data: bytes) -> None:
        """Put `data` at `key`, in place of what was there."""

    @abstractmethod
    def write_parts(self, key: str, parts: Sequence[memoryview]) -> None:
        """As `write`, from several buffers one after the other, which are never joined in memory."""

    @abstractmethod
    def create(self, key: str, data: bytes) -> bool:
        """Put `data` at `key` only if nothing is there; False if something is. Of many who try, one wins."""

    @abstractmethod
    def list(self, prefix: str = "") -> list[Stat]:
        """Every object below the folder `prefix`, at any depth, sorted by key."""

    @abstractmethod
    def folders(self, prefix: str = "") -> builtins.list[str]:
        """Names of the folders right below the folder `prefix`, sorted."""

    @abstractmethod
    def stat(self, key: str) -> Stat | None:
        """The object's size and etag; None when there is none."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove the object; nothing happens when there is none."""

    @abstractmethod
    def delete_all(self, prefix: str) -> None:
        """Remove every object below the folder `prefix`."""

    @abstractmethod
    def upload(self, path: Path | str, key: str, progress: Progress | None = None) -> str:
        """Copy a local file to `key`; returns the sha256 of what was stored."""

    @abstractmethod
    def download(self, key: str, path: Path | str, sha256: str | None = None, progress: Progress | None = None) -> None:
        """Copy the object to a local file, which appears only when it is whole and has the given sha256."""

    @abstractmethod
    def local_path(self, key: str) -> Path | None:
        """Where the object or folder is on this machine's disks; None for a bucket."""

    @abstractmethod
    def patient(self, seconds: float) -> Store:
        """The same store, whose operations keep trying for so long while it cannot be reached."""

    def hurried(self, seconds: float) -> Store:
        """The same store, whose operations give up after so long at the latest."""
        return self.patient(min(seconds, self.patience_seconds))

    def exists(self, key: str) -> bool:
        return self.stat(key) is not None


def check_key(root: str, key: str) -> str:
    """The key, if it names one object below the root and nothing else."""
    parts = key.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\\" in key or not key.isprintable():
        raise StoreError(
            "use",
            f"{root}/{key}",
            f"{key!r} is not a key",
            hint="a key is relative, has no '..' and no empty part: runs/a/run.json",
        )
    if any(part.startswith(TEMPORARY_PREFIX) for part in parts):
        raise StoreError(
            "use", f"{root}/{key}", f"names that start with {TEMPORARY_PREFIX!r} are kept for files being written"
        )
    return key


def check_prefix(root: str, prefix: str) -> str:
    """The prefix without its last slash; the root itself is ''."""
    prefix = prefix.removesuffix("/")
    return check_key(root, prefix) if prefix else ""


def refuse_root(root: str, prefix: str) -> None:
    """Refuse to delete the whole store, which an empty prefix would mean."""
    if not check_prefix(root, prefix):
        raise StoreError("delete", root, "that is the whole store", hint="name a folder below it")
