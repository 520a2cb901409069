"""Tables: parquet and CSV, one document a row."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from skytrain.config import nearest

from ..documents import BadRecord, Document
from ..files import InputFile, UnreadableFile
from .base import UserFiles
from .records import record_to_document

ROWS_AT_ONCE = 1024


@dataclass(frozen=True)
class ParquetFiles(UserFiles):
    """Parquet; without `id_key` a document is named by its file and row. Other columns travel along as meta."""

    text_key: str = "text"
    id_key: str | None = None

    def documents_in(self, file: InputFile) -> Iterator[Document | BadRecord]:
        return read_parquet(file, self.text_key, self.id_key)


def read_parquet(
    file: InputFile, text_key: str, id_key: str | None, source: str = "parquet"
) -> Iterator[Document | BadRecord]:
    import pyarrow
    import pyarrow.parquet

    with file.open() as stream:
        try:
            table = pyarrow.parquet.ParquetFile(pyarrow.PythonFile(stream, "r"))
            missing = _missing(table.schema_arrow.names, text_key, id_key)
            if missing:
                raise UnreadableFile(f"{file.url}: {missing}{_token_hint(table.schema_arrow)}")
            number = 0
            for batch in table.iter_batches(ROWS_AT_ONCE):
                for record in batch.to_pylist():
                    yield record_to_document(
                        record, f"{file.url} row {number}", f"{file.name}:{number}", text_key, id_key, source
                    )
                    number += 1
        except (pyarrow.ArrowException, OSError) as error:
            raise UnreadableFile(f"{file.url}: not a whole parquet file: {error}") from None


def _token_hint(schema: Any) -> str:
    from pyarrow import types

    for field in schema:
        kind = field.type
        if (types.is_list(kind) or types.is_large_list(kind)) and types.is_integer(kind.value_type):
            return f"\n  {field.name!r} looks like token ids: data=parquet-tokens data.source.column={field.name}"
    return ""


@dataclass(frozen=True)
class CsvFiles(UserFiles):
    """CSV with a header line, .gz and .zst too."""

    text_key: str = "text"
    id_key: str | None = None
    delimiter: str = ","

    def documents_in(self, file: InputFile) -> Iterator[Document | BadRecord]:
        csv.field_size_limit(sys.maxsize)  # a document is longer than what csv calls a field
        with file.open() as stream:
            # Bytes that are no UTF-8 pass as lone surrogates, so that they spoil their own row only.
            lines = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline="")
            rows = csv.DictReader(lines, delimiter=self.delimiter, strict=True)
            missing = _missing(list(rows.fieldnames or []), self.text_key, self.id_key)
            if missing:
                raise UnreadableFile(f"{file.url}: {missing}")
            try:
                for number, row in enumerate(rows):
                    record = {name: value for name, value in row.items() if isinstance(name, str)}
                    where = f"{file.url}:{rows.line_num}"
                    yield record_to_document(record, where, f"{file.name}:{number}", self.text_key, self.id_key, "csv")
            except csv.Error as error:
                raise UnreadableFile(f"{file.url}:{rows.line_num}: not CSV: {error}") from None


def _missing(columns: list[str], text_key: str, id_key: str | None) -> str | None:
    for name, key in (("text_key", text_key), ("id_key", id_key)):
        if key is not None and key not in columns:
            guess = nearest(key, columns)
            hint = f"did you mean data.source.{name}={guess}?" if guess else f"its columns: {', '.join(columns)}"
            return f"no column {key!r}\n  {hint}"
    return None
