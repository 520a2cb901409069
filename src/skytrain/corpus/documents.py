"""Documents, and the parquet files that hold them."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from skytrain.config import MissingExtra

ROWS_AT_ONCE = 1024


@dataclass(frozen=True)
class Document:
    """One text with a name that stays the same from run to run."""

    id: str
    text: str
    source: str
    meta: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class BadRecord:
    """What a source yields in place of a document that it cannot read; `data.bad_records` says whether that stops the work."""

    kind: str  # a word to count by: json, encoding, text, size, file
    problem: str  # the file, the line and what is wrong


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra("pyarrow", "data") from None
    return pyarrow, pyarrow.parquet


def to_parquet(documents: list[Document], texts: list[str], compression: str = "zstd") -> bytes:
    """The documents, with what their texts have become."""
    pa, _ = _pyarrow()
    kind = pa.large_string()
    table = pa.table(
        {
            "id": pa.array([document.id for document in documents], kind),
            "text": pa.array(texts, kind),
            "source": pa.array([document.source for document in documents], kind),
            # JSON, because sources differ in what they say about a document and a parquet column has one type.
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


def tables_to_parquet(tables: Iterable[Any], compression: str = "zstd") -> bytes:
    """One file of tables that need not be in memory together: each becomes a row group."""
    _, parquet = _pyarrow()
    sink = io.BytesIO()
    writer = None
    for table in tables:
        if writer is None:
            writer = parquet.ParquetWriter(
                sink, table.schema, compression=compression, use_dictionary=["source"], write_statistics=False
            )
        writer.write_table(table)
    assert writer is not None
    writer.close()
    return sink.getvalue()


def from_parquet(body: bytes, rows: list[int] | None = None) -> Iterator[Document]:
    """The documents of a file, or those of its rows that are asked for."""
    pa, parquet = _pyarrow()
    if rows is None:
        batches = parquet.ParquetFile(pa.BufferReader(body)).iter_batches(ROWS_AT_ONCE)
    else:
        batches = parquet.read_table(pa.BufferReader(body)).take(rows).to_batches(ROWS_AT_ONCE)
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in ("id", "text", "source", "meta"))
        for id_, text, source, meta in zip(*columns, strict=True):
            yield Document(id_, text, source, json.loads(meta))


def texts_in_parquet(body: bytes) -> Iterator[tuple[str, str]]:
    """Ids and texts alone, which is all that a tokenizer needs."""
    pa, parquet = _pyarrow()
    for batch in parquet.ParquetFile(pa.BufferReader(body)).iter_batches(ROWS_AT_ONCE, columns=["id", "text"]):
        yield from zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
