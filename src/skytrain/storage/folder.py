"""A store in a local folder.

It uses plain system calls, because obstore's runtime would hang in forked data loader workers.
"""

from __future__ import annotations

import builtins
import copy
import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from .base import RECORD_BYTES, TEMPORARY_PREFIX, Progress, Stat, Store, check_key, check_prefix, refuse_root
from .errors import AccessDenied, NotFound, ObjectError, StoreError, TooLarge
from .retry import Retry
from .transfer import Transfer, altered, changed, file_chunks, write_whole


class FolderStore(Store):
    """A store whose objects are files below `folder`."""

    def __init__(self, folder: Path, patience_seconds: float = Retry().seconds) -> None:
        self.folder = folder
        self.patience_seconds = patience_seconds
        self.root = folder.as_uri()

    def url(self, key: str) -> str:
        return (self.folder / key).as_uri()

    def read(self, key: str, at_most: int | None = RECORD_BYTES) -> bytes:
        path = self._path(key)
        with explained("read", self.url(key)), path.open("rb") as file:
            check_size(self.url(key), os.fstat(file.fileno()).st_size, at_most)
            return file.read()

    def read_range(self, key: str, start: int, length: int) -> bytes:
        assert start >= 0 and length >= 0, (start, length)
        path = self._path(key)
        with explained("read", self.url(key)), path.open("rb") as file:
            file.seek(start)
            return file.read(length)

    def write(self, key: str, data: bytes) -> None:
        path = self._path(key)
        with explained("write", self.url(key)):
            write_whole(path, [data])

    def write_parts(self, key: str, parts: Sequence[memoryview]) -> None:
        path = self._path(key)
        with explained("write", self.url(key)):
            write_whole(path, parts)

    def create(self, key: str, data: bytes) -> bool:
        path = self._path(key)
        with explained("create", self.url(key)):
            if path.exists():
                return False
            try:
                # Unlike a rename, a link fails if the name exists, so exactly one concurrent writer succeeds.
                write_whole(path, [data], publish=os.link)
            except FileExistsError:
                return False
            return True

    def list(self, prefix: str = "") -> list[Stat]:
        top = self._path_of_prefix(prefix)
        stats = []
        with explained("list", self.url(prefix)):
            for folder, _, names in os.walk(top, onerror=_raise_unless_missing):
                for name in names:
                    path = Path(folder, name)
                    with suppress(FileNotFoundError):  # deleted after the folder was listed
                        if not name.startswith(TEMPORARY_PREFIX):
                            stats.append(_stat(path.relative_to(self.folder).as_posix(), path))
        return sorted(stats, key=lambda stat: stat.key)

    def folders(self, prefix: str = "") -> builtins.list[str]:
        folder = self._path_of_prefix(prefix)
        with explained("list", self.url(prefix)), suppress(FileNotFoundError, NotADirectoryError):
            return sorted(path.name for path in folder.iterdir() if path.is_dir())
        return []

    def stat(self, key: str) -> Stat | None:
        path = self._path(key)
        with explained("stat", self.url(key)), suppress(FileNotFoundError, NotADirectoryError):
            return None if path.is_dir() else _stat(key, path)
        return None

    def delete(self, key: str) -> None:
        path = self._path(key)
        with explained("delete", self.url(key)), suppress(FileNotFoundError, NotADirectoryError):
            path.unlink()
            self._remove_empty(path.parent)

    def delete_all(self, prefix: str) -> None:
        refuse_root(self.root, prefix)
        path = self._path_of_prefix(prefix)
        with explained("delete", self.url(prefix)), suppress(FileNotFoundError, NotADirectoryError):
            shutil.rmtree(path)
            self._remove_empty(path.parent)

    def upload(self, path: Path | str, key: str, progress: Progress | None = None, sha256: str | None = None) -> str:
        target = self._path(key)
        transfer = Transfer(key, progress)

        def publish(temporary: Path, name: Path) -> None:
            if sha256 is not None and transfer.sha256 != sha256:
                raise changed(self.url(key), path)
            temporary.replace(name)

        with source_opened(path, self.url(key)) as file, explained("upload", self.url(key)):
            write_whole(target, transfer.through(file_chunks(file)), publish)
        return transfer.sha256

    def download(self, key: str, path: Path | str, sha256: str | None = None, progress: Progress | None = None) -> None:
        source = self._path(key)
        transfer = Transfer(key, progress)

        def publish(temporary: Path, target: Path) -> None:
            if sha256 is not None and transfer.sha256 != sha256:
                raise altered(self.url(key), sha256, transfer.sha256)
            temporary.replace(target)

        url = self.url(key)
        target = Path(path)
        with explained("download", url), source.open("rb") as file, explained("download", url, target):
            write_whole(target, transfer.through(file_chunks(file)), publish)

    def local_path(self, key: str) -> Path | None:
        return self._path_of_prefix(key)

    def patient(self, seconds: float) -> FolderStore:
        # Only recorded for callers that do their own waiting: a disk error is not retried within an operation.
        other = copy.copy(self)
        other.patience_seconds = seconds
        return other

    def _path(self, key: str) -> Path:
        return self.folder / check_key(self.root, key)

    def _path_of_prefix(self, prefix: str) -> Path:
        return self.folder / check_prefix(self.root, prefix)

    def _remove_empty(self, folder: Path) -> None:
        """Remove empty parent folders: like a bucket, this store has no empty folders."""
        with suppress(OSError):  # not empty, or already removed: both are fine
            while folder != self.folder:
                folder.rmdir()
                folder = folder.parent


def _stat(key: str, path: Path) -> Stat:
    status = path.stat()
    etag = f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"
    return Stat(key, status.st_size, etag, status.st_mtime)


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def check_size(url: str, size: int, at_most: int | None) -> None:
    """Raise `TooLarge` for an object that is too large to be read whole."""
    if at_most is not None and size > at_most:
        raise TooLarge(
            "read",
            url,
            f"it has {size:,} bytes, and at most {at_most:,} are read",
            hint="whoever wrote it is not Skytrain",
        )


@contextmanager
def source_opened(path: Path | str, url: str) -> Iterator[BinaryIO]:
    """Open the local file to upload, raising `StoreError` if it cannot be read."""
    with ExitStack() as stack:
        try:
            file = stack.enter_context(Path(path).open("rb"))
        except OSError as error:
            raise StoreError("upload", url, f"{path}: {error.strerror}", hint="name a file that can be read") from error
        yield file


@contextmanager
def explained(operation: str, url: str, target: Path | None = None) -> Iterator[None]:
    """Convert `OSError` into `StoreError`. `target` is the local file being written, if that is not the object."""
    try:
        yield
    except OSError as error:
        if isinstance(error, FileNotFoundError) and operation in ("read", "download") and target is None:
            raise NotFound(operation, url, "there is no such object") from error
        problem = f"{error.strerror} ({error.filename})" if error.filename else str(error.strerror or error)
        elsewhere = (
            "use another folder: store.root=..." if target is None else f"use another folder than {target.parent}"
        )
        if isinstance(error, PermissionError) or error.errno == errno.EROFS:
            raise AccessDenied(
                operation, url, problem, hint=f"give this user permission for it, or {elsewhere}"
            ) from error
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            elsewhere = f"free some space on the disk, or {elsewhere}; nothing half-written was left behind"
        of_one = operation in ("read", "stat") and target is None
        raise (ObjectError if of_one else StoreError)(operation, url, problem, hint=elsewhere) from error
