"""Plain text files: one document per file, or documents between separator lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from ..documents import BadRecord, Document
from ..files import WHOLE, FileSpan, InputFile, byte_spans, check_document_bytes, lines_from, read_whole
from .base import SpannedSource, UserFiles

BOM = b"\xef\xbb\xbf"
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
LINE_ENDS = b"\r\n"


@dataclass(frozen=True)
class TextFiles(UserFiles, SpannedSource):
    """UTF-8 text, plain or as .gz or .zst.

    `separator` is a line that ends a document, such as `<|endoftext|>` in TinyStories V2; without it each file is a document.
    """

    separator: str | None = None

    def spans(self, file: InputFile, size: int) -> list[FileSpan]:
        return text_spans(file, self.separator, size)

    def records_in(self, file: InputFile, span: FileSpan, before: int) -> Iterator[Document | BadRecord | None]:
        return text_records(file, self.separator, span, before)


def text_spans(file: InputFile, separator: str | None, size: int) -> list[FileSpan]:
    return [WHOLE] if separator is None else byte_spans(file, size)


def text_records(
    file: InputFile, separator: str | None, span: FileSpan = WHOLE, before: int = 0
) -> Iterator[Document | BadRecord]:
    with file.open() as stream:
        if separator is None:
            yield _document(file.name, read_whole(stream), file, 0)
            return
        for number, (start, body) in enumerate(_split(stream, separator.encode(), span), start=before):
            yield _document(f"{file.name}:{number}", body, file, start)


def has_separator_line(file: InputFile, separator: str) -> bool:
    wanted = separator.encode()
    with file.open() as stream:
        return any(line.rstrip(LINE_ENDS) == wanted for _, line in lines_from(stream, 0))


def _split(stream: IO[bytes], separator: bytes, span: FileSpan) -> Iterator[tuple[int, bytes]]:
    """Yield the first byte and the content of each document; the line end before a separator belongs to the separator.

    A span has the documents after the separators that begin in it; the first span also has the first document.
    """
    lines: list[bytes] = []
    start = 0
    is_inside = span.start == 0
    for position, line in lines_from(stream, span.start):
        is_beyond = span.end is not None and position > span.end
        if line.rstrip(LINE_ENDS) == separator:
            if is_inside:
                yield start, _without_line_end(b"".join(lines))
            if is_beyond:
                return
            lines = []
            start = position + len(line)
            is_inside = True
        elif is_inside:
            lines.append(line)
            check_document_bytes(position + len(line) - start)
        elif is_beyond:
            return
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
