"""Tables: parquet and CSV, one document per row."""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ...config import ConfigError, nearest
from ..documents import BadRecord, Document
from ..files import MAX_LINE_BYTES, WHOLE, FileSpan, InputFile, LimitedLines, UnreadableFile
from .base import SpannedSource, UserFiles
from .records import RecordKeys, record_to_document

ROWS_AT_ONCE = 1024
TAB = r"\t"  # as one types it in a shell


@dataclass(frozen=True)
class ParquetFiles(UserFiles, SpannedSource):
    """Parquet files. Without `id_key`, a document is named by its file and row. Other columns become meta."""

    text_key: str = "text"
    id_key: str | None = None

    def spans(self, file: InputFile, size: int) -> list[FileSpan]:
        return row_group_spans(file, size)

    def records_in(self, file: InputFile, span: FileSpan, before: int) -> Iterator[Document | BadRecord | None]:
        return parquet_records(file, RecordKeys(self.text_key, self.id_key, "parquet"), span, before)


def row_group_spans(file: InputFile, size: int) -> list[FileSpan]:
    """Cut a file between row groups into spans of at least `size` stored bytes."""
    if file.is_compressed or file.size <= size:
        return [WHOLE]
    try:
        with _open_parquet(file) as table:
            sizes = [_stored_bytes(table.metadata.row_group(group)) for group in range(table.num_row_groups)]
    except UnreadableFile:
        return [WHOLE]  # reading it reports what is wrong
    starts = [0]
    filled = 0
    for group, stored in enumerate(sizes):
        if filled >= size:
            starts.append(group)
            filled = 0
        filled += stored
    return [FileSpan(start, end) for start, end in zip(starts, [*starts[1:], None], strict=True)]


def _stored_bytes(group: Any) -> int:
    return sum(group.column(column).total_compressed_size for column in range(group.num_columns))


def parquet_records(
    file: InputFile, keys: RecordKeys, span: FileSpan = WHOLE, before: int = 0
) -> Iterator[Document | BadRecord | None]:
    """Yield one item for each row. Row groups are read one by one, so that damage in one loses no rows before it."""
    with _open_parquet(file) as table:
        missing = _missing(table.schema_arrow.names, keys)
        if missing:
            raise UnreadableFile(f"{file.url}: {missing}{_token_hint(table.schema_arrow)}")
        number = before
        for group in range(table.num_row_groups)[span.start : span.end]:
            for batch in table.iter_batches(ROWS_AT_ONCE, row_groups=[group]):
                for record in batch.to_pylist():
                    where = f"{file.url} row {number}"
                    name = f"{file.name}:{number}"
                    yield record_to_document(record, where, name, keys)
                    number += 1


@contextmanager
def _open_parquet(file: InputFile) -> Iterator[Any]:
    """Open a file; damage, found now or while it is read, raises an error that names the file."""
    import pyarrow
    import pyarrow.parquet

    with file.open() as stream:
        try:
            yield pyarrow.parquet.ParquetFile(pyarrow.PythonFile(stream, "r"))
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:  # texts need not be UTF-8
            raise UnreadableFile(f"{file.url}: not a complete parquet file: {error}") from None


def _token_hint(schema: Any) -> str:
    from pyarrow import types

    for field in schema:
        kind = field.type
        if (types.is_list(kind) or types.is_large_list(kind)) and types.is_integer(kind.value_type):
            return f"\n  {field.name!r} looks like token ids: data=parquet-tokens {shlex.quote(f'data.source.column={field.name}')}"
    return ""


@dataclass(frozen=True)
class CsvFiles(UserFiles):
    """CSV files with a header line, plain or as .gz or .zst."""

    text_key: str = "text"
    id_key: str | None = None
    delimiter: str = ","

    def __post_init__(self) -> None:
        if len(self._mark) != 1:
            hint = f"give the character between two columns; for tabs: data.source.delimiter='{TAB}'"
            raise ConfigError("data.source.delimiter", f"{self.delimiter!r} is not one character", hint=hint)

    @property
    def _mark(self) -> str:
        return "\t" if self.delimiter == TAB else self.delimiter

    def documents_in(self, file: InputFile) -> Iterator[Document | BadRecord]:
        csv.field_size_limit(MAX_LINE_BYTES)  # documents are longer than the module's default limit
        with file.open() as stream:
            # Bytes that are not UTF-8 become lone surrogates, so that they spoil only their row.
            limited = io.BufferedReader(LimitedLines(stream))
            lines = io.TextIOWrapper(limited, encoding="utf-8-sig", errors="surrogateescape", newline="")
            rows = csv.DictReader(lines, delimiter=self._mark, strict=True)
            keys = RecordKeys(self.text_key, self.id_key, "csv")
            try:
                columns = list(rows.fieldnames or [])
                if missing := _missing(columns, keys):
                    raise UnreadableFile(f"{file.url}: {_other_delimiter(columns) or missing}")
                for number, row in enumerate(rows):
                    record = {name: value for name, value in row.items() if isinstance(name, str)}
                    where = f"{file.url}:{rows.line_num}"
                    yield record_to_document(record, where, f"{file.name}:{number}", keys)
            except csv.Error as error:
                raise UnreadableFile(f"{file.url}:{rows.line_num}: not CSV: {error}") from None


def _other_delimiter(columns: list[str]) -> str | None:
    """Return what is wrong where the header line has the mark of another program between its columns."""
    marks = {";": ";", "\t": TAB, "|": "|"}
    other = next((mark for mark in marks if len(columns) == 1 and mark in columns[0]), None)
    if other is None:
        return None
    return f"its header is one column, {columns[0]!r}\n  try data.source.delimiter='{marks[other]}'"


def _missing(columns: list[str], keys: RecordKeys) -> str | None:
    for name, key in (("text_key", keys.text), ("id_key", keys.id)):
        if key is not None and key not in columns:
            guess = nearest(key, columns)
            hint = (
                f"did you mean {shlex.quote(f'data.source.{name}={guess}')}?"
                if guess
                else f"its columns: {', '.join(columns)}"
            )
            return f"no column {key!r}\n  {hint}"
    return None
