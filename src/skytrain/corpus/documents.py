"""Documents, and the parquet files that hold them."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from skytrain.config import MissingExtra


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


def to_parquet(documents: list[Document]) -> bytes:
    pa, _ = _pyarrow()
    text = pa.large_string()
    table = pa.table(
        {
            "id": pa.array([document.id for document in documents], text),
            "text": pa.array([document.text for document in documents], text),
            "source": pa.array([document.source for document in documents], text),
            # JSON, because sources differ in what they say about a document and a parquet column has one type.
            "meta": pa.array(
                [
                    json.dumps(document.meta, sort_keys=True, ensure_ascii=False, default=str)
                    if document.meta
                    else "{}"
                    for document in documents
                ],
                text,
            ),
        }
    )
    return table_to_parquet(table)


def table_to_parquet(table: Any) -> bytes:
    _, parquet = _pyarrow()
    sink = io.BytesIO()
    parquet.write_table(table, sink, compression="zstd", use_dictionary=["source"], write_statistics=False)
    return sink.getvalue()


def from_parquet(body: bytes, rows: list[int] | None = None) -> Iterator[Document]:
    """The documents of a file, or those of its rows that are asked for."""
    pa, parquet = _pyarrow()
    table = parquet.read_table(pa.BufferReader(body))
    if rows is not None:
        table = table.take(rows)
    for batch in table.to_batches(max_chunksize=1024):
        columns = (batch.column(name).to_pylist() for name in ("id", "text", "source", "meta"))
        for id_, text, source, meta in zip(*columns, strict=True):
            yield Document(id_, text, source, json.loads(meta))
