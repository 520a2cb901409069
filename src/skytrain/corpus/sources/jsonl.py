"""JSON lines: one document a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from ..documents import BadRecord, Document
from ..files import InputFile
from .base import UserFiles
from .records import record_to_document


@dataclass(frozen=True)
class JsonLines(UserFiles):
    """.jsonl, .jsonl.gz and .jsonl.zst.

    Without `id_key` a document is named by its file and line. Other keys travel along as meta.
    """

    text_key: str = "text"
    id_key: str | None = None

    def documents_in(self, file: InputFile) -> Iterator[Document | BadRecord]:
        return read_json_lines(file, self.text_key, self.id_key)


def read_json_lines(
    file: InputFile, text_key: str, id_key: str | None, source: str = "jsonl"
) -> Iterator[Document | BadRecord]:
    with file.open() as stream:
        for number, line in enumerate(stream, start=1):
            if line.strip():
                yield _document(file, number, line, text_key, id_key, source)


def _document(
    file: InputFile, number: int, line: bytes, text_key: str, id_key: str | None, source: str
) -> Document | BadRecord:
    where = f"{file.url}:{number}"
    try:
        record = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
    except UnicodeDecodeError as error:
        return BadRecord("encoding", f"{where}: byte {line[error.start]:#04x} is not UTF-8")
    except json.JSONDecodeError as error:
        return BadRecord("json", f"{where}: not JSON: {error.msg} at column {error.colno}")
    except RecursionError:
        return BadRecord("json", f"{where}: JSON nested too deep")
    if not isinstance(record, dict):
        return BadRecord(
            "json", f"{where}: a line must be an object such as {{{text_key!r}: ...}}, not {type(record).__name__}"
        )
    return record_to_document(record, where, f"{file.name}:{number}", text_key, id_key, source)
