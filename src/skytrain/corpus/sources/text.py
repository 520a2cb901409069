"""Plain text files: one document a file, or documents between separator lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

from ..documents import BadRecord, Document
from ..files import InputFile, find_files, readable

BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class TextFiles:
    """UTF-8 files by path or glob, in a folder or s3://, .gz and .zst too.

    `separator` is a line of its own that ends a document, as `<|endoftext|>` does in TinyStories V2; without one each file is a document.
    """

    paths: str | Sequence[str]
    separator: str | None = None

    def fingerprint(self) -> dict[str, Any]:
        return {"files": [file.fingerprint() for file in self.pieces()]}

    def pieces(self) -> list[InputFile]:
        return find_files(self.paths)

    def documents(self) -> Iterator[Document | BadRecord]:
        for file in self.pieces():
            yield from self.read(file)

    def read(self, file: InputFile) -> Iterator[Document | BadRecord]:
        return readable(file, self._documents)

    def _documents(self, file: InputFile) -> Iterator[Document | BadRecord]:
        with file.open() as stream:
            if self.separator is None:
                yield _document(file.name, stream.read(), file, 0)
                return
            for number, (start, body) in enumerate(_split(stream, self.separator.encode())):
                yield _document(f"{file.name}:{number}", body, file, start)


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


def _document(id_: str, body: bytes, file: InputFile, start: int) -> Document | BadRecord:
    if not start:
        body = body.removeprefix(BOM)
    try:
        return Document(id_, body.decode(), "text")
    except UnicodeDecodeError as error:
        where = f"{file.url}: byte {body[error.start]:#04x} at {start + error.start} is not UTF-8"
        return BadRecord("encoding", f"{where}\n  convert it first: iconv -f latin1 -t utf-8")
