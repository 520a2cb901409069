"""Plain text files: one document a file, or documents between separator lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

from skytrain.config import SkytrainError

from ..documents import Document
from .files import InputFile, find_files

BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class TextFiles:
    """UTF-8 files by path or glob, in a folder or s3://, .gz and .zst too.

    `separator` is a line of its own that ends a document, as `<|endoftext|>` does in TinyStories V2; without one each file is a document.
    """

    paths: str | Sequence[str]
    separator: str | None = None

    def fingerprint(self) -> dict[str, Any]:
        return {"files": [file.fingerprint() for file in find_files(self.paths)]}

    def documents(self) -> Iterator[Document]:
        for file in find_files(self.paths):
            with file.open() as stream:
                if self.separator is None:
                    yield Document(file.name, _decode(stream.read(), file, 0), "text")
                    continue
                for number, (start, body) in enumerate(_split(stream, self.separator.encode())):
                    yield Document(f"{file.name}:{number}", _decode(body, file, start), "text")


def _split(stream: IO[bytes], separator: bytes) -> Iterator[tuple[int, bytes]]:
    """Each document with the byte at which it starts; the line end before a separator belongs to the separator."""
    lines: list[bytes] = []
    start = position = 0
    for line in stream:
        position += len(line)
        if line.rstrip(b"\r\n") == separator:
            yield start, _without_line_end(b"".join(lines))
            lines, start = [], position
        else:
            lines.append(line)
    if lines:
        yield start, _without_line_end(b"".join(lines))


def _without_line_end(body: bytes) -> bytes:
    return body.removesuffix(b"\n").removesuffix(b"\r")


def _decode(body: bytes, file: InputFile, start: int) -> str:
    if not start:
        body = body.removeprefix(BOM)
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise SkytrainError(
            f"{file.url}: byte {body[error.start]:#04x} at {start + error.start} is not UTF-8\n  convert it first: iconv -f latin1 -t utf-8"
        ) from None
