"""Input files given by path or glob, local or in S3, compressed or not, behind one interface."""

from __future__ import annotations

import dataclasses
import glob
import hashlib
import io
import os
import posixpath
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, cast

from ..config import ConfigError, MissingExtra, SkytrainError

if TYPE_CHECKING:
    from ..storage import Store

KEY = "data.source.paths"
PACKED = (".gz", ".zst", ".parquet", ".bz2", ".xz")
UNPACKED_TIMES = 3.0  # bytes of text in a byte of a compressed file; assumed
READ_BYTES = 8 << 20
MAX_LINE_BYTES = (
    1 << 30
)  # of a line or a document: a compressed file of a few kilobytes can have one that fills any memory
WEB_HINT = "download it and name the file, or list addresses of JSON lines in a file: data=dolma data.source.repo=null data.source.lists=FILE"
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}


class FileSpan(NamedTuple):
    """A part of a file that can be read without the parts before it: bytes of plain text, or row groups of parquet."""

    start: int
    end: int | None  # None: to the end of the file


WHOLE = FileSpan(0, None)


@dataclass(frozen=True)
class InputFile:
    """One file. `name` is relative to the inputs' common parent, so document ids do not depend on the machine."""

    name: str
    url: str
    size: int
    store: Store | None = None
    key: str = ""
    etag: str | None = None
    _opened: list[IO[bytes]] = field(default_factory=list, init=False, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": []}  # open files are not pickled

    @property
    def is_compressed(self) -> bool:
        return posixpath.splitext(self.name)[1] in COMPRESSIONS

    def position(self) -> int:
        """Return the current read position in bytes; 0 if the file is not open."""
        return self._opened[-1].tell() if self._opened else 0

    def fingerprint(self) -> dict[str, Any]:
        if self.store is not None:
            return {"name": self.name, "size": self.size, "etag": self.etag}
        with _open_file(self.url) as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        return {"name": self.name, "size": self.size, "sha256": digest}

    @contextmanager
    def open(self, decompress: bool = True) -> Iterator[IO[bytes]]:
        """Open the file for reading, decompressed according to its extension.

        A truncated or corrupt archive raises an error that names the file.
        """
        with self._tracked() as raw:
            codec = COMPRESSIONS.get(posixpath.splitext(self.name)[1])
            if codec is None or not decompress:
                yield raw
                return
            try:
                import pyarrow
            except ImportError:
                raise MissingExtra("pyarrow", "data") from None
            try:
                with pyarrow.CompressedInputStream(pyarrow.PythonFile(raw, "r"), codec) as stream:
                    yield cast(IO[bytes], io.BufferedReader(stream, READ_BYTES))
            except OSError as error:
                raise UnreadableFile(f"{self.url}: not a complete {codec} file: {error}") from None

    @contextmanager
    def _tracked(self) -> Iterator[IO[bytes]]:
        with self._raw() as raw:
            self._opened.append(raw)
            try:
                yield raw
            finally:
                self._opened.pop()

    def _raw(self) -> IO[bytes]:
        if self.store is None:
            return _open_file(self.url)
        return buffered_ranges(partial(self.store.read_range, self.key), self.size)


def buffered_ranges(read_range: Callable[[int, int], bytes], size: int) -> IO[bytes]:
    """Return a remote object as a buffered file; `read_range(start, length)` makes one request."""
    return cast(IO[bytes], io.BufferedReader(_Ranges(read_range, size), READ_BYTES))


class _Ranges(io.RawIOBase):
    def __init__(self, read_range: Callable[[int, int], bytes], size: int) -> None:
        self.read_range = read_range
        self.size = size
        self.position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self.position, io.SEEK_END: self.size}[whence]
        return self.position

    def tell(self) -> int:
        return self.position

    def readinto(self, buffer: Any) -> int:
        length = min(len(buffer), self.size - self.position)
        if length <= 0:
            return 0
        buffer[:length] = self.read_range(self.position, length)
        self.position += length
        return length


def byte_spans(file: InputFile, size: int) -> list[FileSpan]:
    """Cut a file of plain text into spans of `size` bytes; a compressed one can only be read from its start."""
    if file.is_compressed or file.size <= size:
        return [WHOLE]
    starts = range(0, file.size, size)
    return [FileSpan(start, start + size if start + size < file.size else None) for start in starts]


def lines_from(stream: IO[bytes], start: int) -> Iterator[tuple[int, bytes]]:
    """Yield the position and content of each line that begins after byte `start`, or of every line if that is 0.

    The line that begins at `start` itself belongs to the span before, which reads the lines up to and including its end.
    """
    position = start
    if start:
        stream.seek(start)
        position += len(_line_at(stream, position))
    while line := _line_at(stream, position):
        yield position, line
        position += len(line)


def _line_at(stream: IO[bytes], position: int) -> bytes:
    line = stream.readline(MAX_LINE_BYTES + 1)
    if len(line) > MAX_LINE_BYTES:
        raise UnreadableFile(
            f"the line at byte {position} has more than {MAX_LINE_BYTES:,} bytes\n  divide it into documents"
        )
    return line


def read_whole(stream: IO[bytes]) -> bytes:
    """Read a file that is one document."""
    body = stream.read(MAX_LINE_BYTES + 1)
    check_document_bytes(len(body))
    return body


def check_document_bytes(size: int) -> None:
    """Raise UnreadableFile for a document that would fill the memory."""
    if size > MAX_LINE_BYTES:
        raise UnreadableFile(f"a document has more than {MAX_LINE_BYTES:,} bytes\n  divide it into documents")


class LimitedLines(io.RawIOBase):
    """A stream whose lines are read by somebody else; one that never ends raises UnreadableFile."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._size = 0  # of the current line so far

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(min(len(buffer), READ_BYTES))
        end = max(data.rfind(b"\n"), data.rfind(b"\r"))
        self._size = len(data) - end - 1 if end >= 0 else self._size + len(data)
        check_document_bytes(self._size)
        buffer[: len(data)] = data
        return len(data)


def unpacked_bytes(files: Sequence[InputFile]) -> float:
    """Return about how many bytes of text the files have."""
    return sum(file.size * (UNPACKED_TIMES if file.name.endswith(PACKED) else 1.0) for file in files)


class UnreadableFile(SkytrainError):
    """A file is truncated or not of the expected format."""


def find_files(paths: str | Sequence[str], key: str = KEY) -> list[InputFile]:
    """Return all files that the paths and globs match, sorted by name.

    Raises if a path does not exist, a glob matches nothing, or a file is empty.
    """
    patterns = [paths] if isinstance(paths, str) else list(paths)
    if not patterns:
        raise ConfigError(key, "is an empty list", hint="give a path or a glob such as 'corpus/*.txt'")
    by_url: dict[str, InputFile] = {}
    for pattern in patterns:
        matches = _in_store(pattern, key) if pattern.startswith("s3://") else _in_folder(pattern, key)
        by_url.update({file.url: file for file in matches})
    if empty := [file.url for file in by_url.values() if not file.size]:
        more = f", and so are {len(empty) - 1} others" if len(empty) > 1 else ""
        raise SkytrainError(f"{empty[0]} is empty{more} (from {key})\n  remove it or leave it out of the glob")
    return sorted(_named(list(by_url.values())), key=lambda file: file.name)


def _in_folder(pattern: str, key: str) -> list[InputFile]:
    path = Path(pattern.removeprefix("file://")).expanduser()
    try:
        # Path.glob does not support absolute patterns.
        names = [path] if path.is_file() else [Path(name) for name in glob.glob(str(path), recursive=True)]  # noqa: PTH207
        matches = [name.resolve() for name in names if name.is_file()]
        files = [InputFile(name="", url=str(match), size=match.stat().st_size) for match in matches]
    except PermissionError as error:
        raise _no_right(error) from None
    if not files and path.is_dir():
        raise ConfigError(key, f"{pattern!r} is a folder", hint=f"name the files in it: {key}='{path}/*'")
    if not files and pattern.startswith(("http://", "https://")):
        raise ConfigError(key, f"{pattern!r} is a web address", hint=WEB_HINT)
    if not files:
        raise ConfigError(key, _nothing_there(pattern))
    return files


def _open_file(path: str) -> io.BufferedReader:
    try:
        return Path(path).open("rb")
    except PermissionError as error:
        raise _no_right(error) from None
    except FileNotFoundError:
        raise SkytrainError(
            f"{path} has disappeared since the files were listed\n  put it back, or run this again without it"
        ) from None


def _no_right(error: PermissionError) -> SkytrainError:
    return SkytrainError(f"{error.filename}: {error.strerror}\n  give this user permission to read it")


def _in_store(pattern: str, key: str) -> list[InputFile]:
    from ..storage import open_store

    bucket, _, path = pattern.removeprefix("s3://").partition("/")
    store = open_store(f"s3://{bucket}")
    fixed = re.split(r"[*?\[]", path, maxsplit=1)[0]
    matcher = re.compile(_glob_to_regex(path))
    # The store lists by folder, so a partial file name is not a valid prefix.
    matches = [stat for stat in store.list(posixpath.dirname(fixed)) if matcher.fullmatch(stat.key)]
    if not matches:
        raise ConfigError(key, _nothing_there(pattern))
    return [
        InputFile(name="", url=store.url(stat.key), size=stat.size, store=store, key=stat.key, etag=stat.etag)
        for stat in matches
    ]


def _glob_to_regex(pattern: str) -> str:
    wildcards = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    pieces = re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]*\])", pattern)
    return "".join(wildcards.get(piece, piece if piece.startswith("[") else re.escape(piece)) for piece in pieces)


def _nothing_there(pattern: str) -> str:
    return f"no file matches {pattern!r}" if glob.has_magic(pattern) else f"no such file: {pattern!r}"


def _named(files: list[InputFile]) -> list[InputFile]:
    folder = os.path.commonpath([posixpath.dirname(file.url) for file in files])
    return [dataclasses.replace(file, name=os.path.relpath(file.url, folder)) for file in files]
