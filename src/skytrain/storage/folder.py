"""A folder as a store. Plain system calls, so that it also works in the forked workers of a data loader."""

from __future__ import annotations

import builtins
import errno
import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .base import TEMPORARY_PREFIX, Progress, Stat, Store, check_key, check_prefix
from .errors import AccessDenied, NotFound, StoreError

COPY_BYTES = 4 << 20


class FolderStore(Store):
    """Objects are files below `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder.as_uri()

    def read(self, key: str) -> bytes:
        with explained("read", self.url(key)):
            return self._path(key).read_bytes()

    def read_range(self, key: str, start: int, length: int) -> bytes:
        assert start >= 0 and length >= 0, (start, length)
        with explained("read", self.url(key)), self._path(key).open("rb") as file:
            file.seek(start)
            return file.read(length)

    def write(self, key: str, data: bytes) -> None:
        with explained("write", self.url(key)):
            write_whole(self._path(key), [data], publish=os.replace)

    def create(self, key: str, data: bytes) -> bool:
        path = self._path(key)
        with explained("create", self.url(key)):
            if path.exists():
                return False
            try:
                # A link, unlike a rename, fails when the name is taken: the file appears whole, and only once.
                write_whole(path, [data], publish=link)
            except FileExistsError:
                return False
            return True

    def list(self, prefix: str = "") -> list[Stat]:
        found = []
        with explained("list", self.url(prefix)):
            for folder, _, names in os.walk(self._path_of_prefix(prefix), onerror=_raise_unless_missing):
                for name in names:
                    if not name.startswith(TEMPORARY_PREFIX):
                        path = Path(folder, name)
                        with suppress(FileNotFoundError):  # deleted since the folder was read
                            found.append(self._stat(path.relative_to(self.folder).as_posix(), path))
        return sorted(found, key=lambda stat: stat.key)

    def folders(self, prefix: str = "") -> builtins.list[str]:
        folder = self._path_of_prefix(prefix)
        with explained("list", self.url(prefix)), suppress(FileNotFoundError, NotADirectoryError):
            return sorted(path.name for path in folder.iterdir() if path.is_dir())
        return []

    def stat(self, key: str) -> Stat | None:
        path = self._path(key)
        with explained("stat", self.url(key)), suppress(FileNotFoundError, NotADirectoryError):
            return self._stat(key, path) if not path.is_dir() else None
        return None

    def delete(self, key: str) -> None:
        path = self._path(key)
        with explained("delete", self.url(key)), suppress(FileNotFoundError, NotADirectoryError):
            path.unlink()
            self._remove_empty(path.parent)

    def delete_all(self, prefix: str) -> None:
        path = self._path_of_prefix(prefix)
        if path == self.folder:
            raise StoreError("delete", self.root, "this would delete the whole store", hint="name a folder below it")
        with explained("delete", self.url(prefix)), suppress(FileNotFoundError, NotADirectoryError):
            shutil.rmtree(path)
            self._remove_empty(path.parent)

    def upload(self, path: Path | str, key: str, progress: Progress | None = None) -> str:
        target, digest = self._path(key), hashlib.sha256()
        with explained("upload", self.url(key), source=Path(path)), Path(path).open("rb") as file:
            write_whole(target, hashed(file_chunks(file), digest, key, progress), publish=os.replace)
        return digest.hexdigest()

    def download(self, key: str, path: Path | str, sha256: str | None = None, progress: Progress | None = None) -> None:
        digest = hashlib.sha256()

        def publish(temporary: Path, target: Path) -> None:
            if sha256 is not None and digest.hexdigest() != sha256:
                raise wrong_bytes(self.url(key), sha256, digest.hexdigest())
            temporary.replace(target)

        with explained("download", self.url(key)), self._path(key).open("rb") as file:
            write_whole(Path(path), hashed(file_chunks(file), digest, key, progress), publish=publish)

    def local_path(self, key: str) -> Path | None:
        return self._path(key) if key else self.folder

    def _path(self, key: str) -> Path:
        return self.folder / check_key(self.root, key)

    def _path_of_prefix(self, prefix: str) -> Path:
        return self.folder / check_prefix(self.root, prefix)

    @staticmethod
    def _stat(key: str, path: Path) -> Stat:
        status = path.stat()
        return Stat(key, status.st_size, f"{status.st_mtime_ns:x}-{status.st_size:x}-{status.st_ino:x}")

    def _remove_empty(self, folder: Path) -> None:
        """A bucket has no empty folders; neither has this store."""
        with suppress(OSError):  # not empty, or gone already: both are what we want
            while folder != self.folder:
                folder.rmdir()
                folder = folder.parent


def write_whole(path: Path, chunks: Iterable[bytes], publish: Callable[[Path, Path], object]) -> None:
    """Write a file so that its name shows all of it or nothing, now and after a power cut."""
    temporary = path.with_name(TEMPORARY_PREFIX + secrets.token_hex(8))
    try:
        with _open_new(temporary) as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        publish(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the name itself
    finally:
        os.close(folder)


def _open_new(path: Path):  # type: ignore[no-untyped-def]  # typed as open() is
    for _ in range(100):
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # another process removed the folder because it was empty
            return path.open("xb")
    return path.open("xb")


def link(temporary: Path, path: Path) -> None:
    path.hardlink_to(temporary)


def file_chunks(file) -> Iterator[bytes]:  # type: ignore[no-untyped-def]
    while chunk := file.read(COPY_BYTES):
        yield chunk


def hashed(chunks: Iterable[bytes], digest, key: str, progress: Progress | None) -> Iterator[bytes]:  # type: ignore[no-untyped-def]
    for chunk in chunks:
        digest.update(chunk)
        yield chunk
        if progress:
            progress(key, len(chunk))


def wrong_bytes(url: str, expected: str, actual: str) -> StoreError:
    return StoreError(
        "download",
        url,
        f"its sha256 is {actual}, but {expected} was expected",
        hint="the object was altered or replaced: make it again",
    )


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


@contextmanager
def explained(operation: str, url: str, source: Path | None = None) -> Iterator[None]:
    """Turn the system's errors into ours."""
    try:
        yield
    except OSError as error:
        problem = f"{error.strerror or error} ({error.filename})" if error.filename else str(error)
        if isinstance(error, FileNotFoundError) and source is not None and not source.exists():
            raise StoreError(operation, url, f"there is no file {source}") from error
        if isinstance(error, FileNotFoundError):
            raise NotFound(operation, url, "there is no such object") from error
        if isinstance(error, PermissionError) or error.errno == errno.EROFS:
            raise AccessDenied(
                operation, url, problem, hint="give this user the right to write there, or set store.root"
            ) from error
        hint = "set store.root to a folder that can be written"
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            hint = "the disk is full: make room, or set store.root to another disk; nothing half-written was left"
        raise StoreError(operation, url, problem, hint=hint) from error
