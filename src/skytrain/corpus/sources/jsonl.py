"""JSON lines: one document per line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from ...storage import parse_json
from ..documents import BadRecord, Document
from ..files import WHOLE, FileSpan, InputFile, byte_spans, lines_from
from .base import SpannedSource, UserFiles
from .records import RecordKeys, record_to_document


@dataclass(frozen=True)
class JsonLines(UserFiles, SpannedSource):
    """JSON lines: .jsonl, .jsonl.gz and .jsonl.zst.

    Without `id_key`, a document is named by its file and line. Other keys become meta.
    """

    text_key: str = "text"
    id_key: str | None = None

    def spans(self, file: InputFile, size: int) -> list[FileSpan]:
        return byte_spans(file, size)

    def records_in(self, file: InputFile, span: FileSpan, before: int) -> Iterator[Document | BadRecord | None]:
        return json_records(file, RecordKeys(self.text_key, self.id_key, "jsonl"), span, before)


def json_records(
    file: InputFile, keys: RecordKeys, span: FileSpan = WHOLE, before: int = 0
) -> Iterator[Document | BadRecord | None]:
    """Yield one item for each line that begins in the span; None for an empty line."""
    with file.open() as stream:
        for number, (position, line) in enumerate(lines_from(stream, span.start), start=before + 1):
            if span.end is not None and position > span.end:
                return
            yield _document(file, number, line, keys) if line.strip() else None


def _document(file: InputFile, number: int, line: bytes, keys: RecordKeys) -> Document | BadRecord:
    where = f"{file.url}:{number}"
    try:
        record = parse_json(line.decode("utf-8-sig" if number == 1 else "utf-8"))
    except UnicodeDecodeError as error:
        return BadRecord("encoding", f"{where}: byte {line[error.start]:#04x} is not UTF-8")
    except json.JSONDecodeError as error:
        return BadRecord("json", f"{where}: not JSON: {error.msg} at column {error.colno}")
    except ValueError as error:  # nested too deeply, or a number of thousands of digits
        return BadRecord("json", f"{where}: {error}")
    if not isinstance(record, dict):
        return BadRecord(
            "json", f"{where}: a line must be an object such as {{{keys.text!r}: ...}}, not {type(record).__name__}"
        )
    return record_to_document(record, where, f"{file.name}:{number}", keys)
