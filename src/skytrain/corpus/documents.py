"""Documents, and the parquet files that hold them."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..config import MissingExtra
from ..storage import parse_json

ROWS_AT_ONCE = 1024


@dataclass(frozen=True)
class Document:
    """One text with an id that is stable across runs."""

    id: str
    text: str
    source: str
    meta: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class BadRecord:
    """Yielded by a source in place of an unreadable document; `data.bad_records` decides whether that is an error."""

    kind: str  # the category to count: json, encoding, text, size, file
    problem: str  # the file, the line and what is wrong


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra("pyarrow", "data") from None
    return pyarrow, pyarrow.parquet


def to_parquet(documents: list[Document], texts: list[str], compression: str = "zstd") -> bytes:
    """Serialize the documents with their cleaned texts."""
    pa, _ = _pyarrow()
    kind = pa.large_string()
    table = pa.table(
        {
            "id": pa.array([document.id for document in documents], kind),
            "text": pa.array(texts, kind),
            "source": pa.array([document.source for document in documents], kind),
            # JSON, because metadata differs between sources and a parquet column has one type.
            "meta": pa.array(
                [
                    json.dumps(document.meta, sort_keys=True, ensure_ascii=False, default=str)
                    if document.meta
                    else "{}"
                    for document in documents
                ],
                kind,
            ),
        }
    )
    return tables_to_parquet([table], compression)


def tables_to_parquet(
    tables: Iterable[Any], compression: str = "zstd", metadata: dict[bytes, bytes] | None = None
) -> bytes:
    """Write tables into one file, each as a row group, without holding all of them in memory."""
    _, parquet = _pyarrow()
    sink = io.BytesIO()
    writer = None
    for table in tables:
        if writer is None:
            schema = table.schema.with_metadata(metadata) if metadata else table.schema
            writer = parquet.ParquetWriter(
                sink, schema, compression=compression, use_dictionary=["source"], write_statistics=False
            )
        writer.write_table(table)
    assert writer is not None
    writer.close()
    return sink.getvalue()


def from_parquet(body: bytes, rows: list[int] | None = None) -> Iterator[Document]:
    """Yield the documents of a file, or only those in `rows`."""
    pa, parquet = _pyarrow()
    if rows is None:
        batches = parquet.ParquetFile(pa.BufferReader(body)).iter_batches(ROWS_AT_ONCE)
    else:
        batches = parquet.read_table(pa.BufferReader(body)).take(rows).to_batches(ROWS_AT_ONCE)
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in ("id", "text", "source", "meta"))
        for id_, text, source, meta in zip(*columns, strict=True):
            yield Document(id_, text, source, parse_json(meta))


def column_at(body: bytes, name: str, rows: list[int]) -> list[str]:
    """Return one column, such as the texts, of some rows of a file, in the order of `rows`."""
    pa, parquet = _pyarrow()
    column = parquet.read_table(pa.BufferReader(body), columns=[name]).column(name)
    values: list[str] = column.take(pa.array(rows, pa.int64())).to_pylist()
    return values


def texts_in_parquet(body: bytes) -> Iterator[tuple[str, str]]:
    """Yield only ids and texts, which is all that a tokenizer needs."""
    pa, parquet = _pyarrow()
    for batch in parquet.ParquetFile(pa.BufferReader(body)).iter_batches(ROWS_AT_ONCE, columns=["id", "text"]):
        yield from zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
