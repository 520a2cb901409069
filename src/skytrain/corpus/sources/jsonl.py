"""JSON lines: one document a line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from skytrain.config import SkytrainError, nearest

from ..documents import Document
from .files import InputFile, find_files


@dataclass(frozen=True)
class JsonLines:
    """.jsonl, .jsonl.gz and .jsonl.zst by path or glob, in a folder or s3://.

    Without `id_key` a document is named by its file and line. Other keys travel along as meta.
    """

    paths: str | Sequence[str]
    text_key: str = "text"
    id_key: str | None = None

    def fingerprint(self) -> dict[str, Any]:
        return {"files": [file.fingerprint() for file in find_files(self.paths)]}

    def documents(self) -> Iterator[Document]:
        for file in find_files(self.paths):
            with file.open() as stream:
                for number, line in enumerate(stream, start=1):
                    if line.strip():
                        yield self._document(file, number, line)

    def _document(self, file: InputFile, number: int, line: bytes) -> Document:
        try:
            record = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
        except UnicodeDecodeError as error:
            raise SkytrainError(f"{file.url}:{number}: byte {line[error.start]:#04x} is not UTF-8") from None
        except json.JSONDecodeError as error:
            raise SkytrainError(f"{file.url}:{number}: not JSON: {error.msg} at column {error.colno}") from None
        if not isinstance(record, dict):
            raise SkytrainError(
                f"{file.url}:{number}: a line must be an object such as {{{self.text_key!r}: ...}}, not {type(record).__name__}"
            )
        text = record.pop(self.text_key, None)
        if not isinstance(text, str):
            guess = nearest(self.text_key, record)
            hint = f"did you mean data.source.text_key={guess}?" if guess else f"its keys: {', '.join(record)}"
            raise SkytrainError(f"{file.url}:{number}: {self.text_key!r} is not text\n  {hint}")
        if not _is_unicode(text):
            raise SkytrainError(
                f"{file.url}:{number}: {self.text_key!r} holds half of a surrogate pair, which is not Unicode text"
            )
        if self.id_key is not None and self.id_key not in record:
            raise SkytrainError(
                f"{file.url}:{number}: no {self.id_key!r} (data.source.id_key)\n  its keys: {', '.join(record)}"
            )
        id_ = str(record.pop(self.id_key)) if self.id_key is not None else f"{file.name}:{number}"
        return Document(id_, text, "jsonl", record)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # JSON can spell "\ud800", UTF-8 cannot
        return False
    return True
