"""Plain text files: one document a file, or documents between separator lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from ..documents import BadRecord, Document
from ..files import InputFile
from .base import UserFiles

BOM = b"\xef\xbb\xbf"
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
LINE_ENDS = b"\r\n"


@dataclass(frozen=True)
class TextFiles(UserFiles):
    """UTF-8 text, .gz and .zst too.

    `separator` is a line that ends a document, as `<|endoftext|>` does in TinyStories V2; without one each file is a document.
    """

    separator: str | None = None

    def documents_in(self, file: InputFile) -> Iterator[Document | BadRecord]:
        return read_text(file, self.separator)


def read_text(file: InputFile, separator: str | None) -> Iterator[Document | BadRecord]:
    with file.open() as stream:
        if separator is None:
            yield _document(file.name, stream.read(), file, 0)
            return
        for number, (start, body) in enumerate(_split(stream, separator.encode())):
            yield _document(f"{file.name}:{number}", body, file, start)


def has_separator_line(file: InputFile, separator: str) -> bool:
    wanted = separator.encode()
    with file.open() as stream:
        return any(line.rstrip(LINE_ENDS) == wanted for line in stream)


def _split(stream: IO[bytes], separator: bytes) -> Iterator[tuple[int, bytes]]:
    """Each document with the byte at which it starts; the line end before a separator belongs to the separator."""
    lines: list[bytes] = []
    start = position = 0
    for line in stream:
        position += len(line)
        if line.rstrip(LINE_ENDS) == separator:
            yield start, _without_line_end(b"".join(lines))
            lines, start = [], position
        else:
            lines.append(line)
    if lines:
        yield start, _without_line_end(b"".join(lines))


def _without_line_end(body: bytes) -> bytes:
    return body.removesuffix(b"\n").removesuffix(b"\r")


def _document(id_: str, body: bytes, file: InputFile, start: int) -> Document | BadRecord:
    if not start:
        body = body.removeprefix(BOM)
    try:
        return Document(id_, body.decode(), "text")
    except UnicodeDecodeError as error:
        where = f"{file.url}: byte {body[error.start]:#04x} at {start + error.start} is not UTF-8"
        encoding = "utf-16" if body.startswith(UTF16_MARKS) else "latin1"
        return BadRecord("encoding", f"{where}\n  convert it first: iconv -f {encoding} -t utf-8")
