"""Reads token ids from parquet: a column of lists of integers, one document a row."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from ..config import SkytrainError, nearest
from ..corpus import InputFile, find_files

COLUMNS = ("tokens", "input_ids", "token_ids", "ids")  # tried in this order where no column is named
BATCH_BYTES = 32 << 20
BATCH_ROWS = 10_000


@dataclass(frozen=True)
class ParquetTokens:
    """Parquet of token ids, in a folder or s3://; `prepare` turns it into shards.

    `column` holds lists of integers; null means tokens, input_ids, token_ids or ids, or the only column of lists.
    A row is a document. `eot` is the token between documents: rows may begin or end with it, and a row that has it
    inside is several documents. Null means the token that begins a document in the tokenizer.
    """

    paths: str | Sequence[str]
    column: str | None = None
    eot: int | None = None

    def pieces(self) -> list[InputFile]:
        return find_files(self.paths)

    def fingerprint(self) -> dict[str, Any]:
        return {"files": [file.fingerprint() for file in self.pieces()]}

    def token_documents(self, vocab_size: int) -> Iterator[np.ndarray]:
        eot = vocab_size - 1 if self.eot is None else self.eot
        empty = True
        for file in self.pieces():
            for row in read_token_rows(file, self.column, vocab_size):
                for ids in cut_documents(row, eot):
                    yield ids
                    empty = False
        if empty:
            raise SkytrainError(f"data.source.paths={self.paths}: no row of any file holds a token")


def cut_documents(tokens: np.ndarray, eot: int) -> Iterator[np.ndarray]:
    """Yield the documents between end-of-text tokens, whether these precede or follow a document."""
    places = np.flatnonzero(tokens == eot)
    for start, end in zip([0, *(places + 1).tolist()], [*places.tolist(), len(tokens)], strict=True):
        if end > start:
            yield np.array(tokens[start:end])


def read_token_rows(file: InputFile, column: str | None, vocab_size: int) -> Iterator[np.ndarray]:
    """Yield the token ids of each row; a row without ids, or with one outside the vocabulary, is an error."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with file.open(decompress=False) as stream:
        try:
            table = pq.ParquetFile(pa.PythonFile(stream, "r"))
            name = _choose(table.schema_arrow, column, file)
            first = 0
            for batch in table.iter_batches(_rows_at_once(table.metadata), columns=[name]):
                values, offsets = _checked(batch.column(0), vocab_size, f"{file.url}, column {name!r}", first)
                for start, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
                    yield values[start:end]
                first += batch.num_rows
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise SkytrainError(f"{file.url}: not a whole parquet file: {error}") from None


def _rows_at_once(metadata: Any) -> int:
    """Return the number of rows in a batch, by the mean size of a row, so that long documents need no more memory."""
    size = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    return max(1, min(BATCH_ROWS, BATCH_BYTES * max(1, metadata.num_rows) // max(1, size)))


def _is_tokens(kind: Any) -> bool:
    from pyarrow import types

    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return is_list and types.is_integer(kind.value_type)


def _choose(schema: Any, column: str | None, file: InputFile) -> str:
    """Return the column to read; raise an error if there is none or it holds something else."""
    lists = [field.name for field in schema if _is_tokens(field.type)]
    if column is None:
        known = [name for name in COLUMNS if name in lists] or lists
        if known and (len(lists) == 1 or known[0] in COLUMNS):
            return known[0]
        problem = "several columns of token ids" if lists else "no column of token ids (lists of integers)"
        hint = f"choose one: {shlex.quote(f'data.source.column={lists[0]}')}" if lists else _text_hint(schema)
    elif column in schema.names:
        if column in lists:
            return column
        problem = f"column {column!r} holds {schema.field(column).type}, not lists of integers"
        hint = f"did you mean {shlex.quote(f'data.source.column={lists[0]}')}?" if lists else _text_hint(schema)
    else:
        guess = nearest(column, schema.names) or (lists[0] if lists else None)
        problem = f"no column {column!r}"
        hint = f"did you mean {shlex.quote(f'data.source.column={guess}')}?" if guess else _text_hint(schema)
    described = ", ".join(f"{field.name} ({field.type})" for field in schema)
    raise SkytrainError(f"{file.url}: {problem}; its columns: {described}\n  {hint}")


def _text_hint(schema: Any) -> str:
    from pyarrow import types

    texts = [field.name for field in schema if types.is_string(field.type) or types.is_large_string(field.type)]
    if not texts:
        return "name files with a column of token ids"
    return f"to tokenize documents: data=parquet {shlex.quote(f'data.source.text_key={texts[0]}')}"


def _checked(column: Any, vocab_size: int, where: str, first: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of a batch and where its rows begin and end among them; `first` is the number of its first row."""
    import pyarrow as pa

    def refuse(row: int, problem: str) -> NoReturn:
        raise SkytrainError(f"{where}, row {first + row}: {problem}")

    if column.null_count:
        refuse(int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0]), "null instead of token ids")
    column = column.cast(pa.large_list(column.type.value_type))
    offsets = column.offsets.to_numpy()
    values = column.values
    start = int(offsets[0])
    end = int(offsets[-1])
    values, offsets = values.slice(start, end - start), offsets - start

    def row_of(place: int) -> int:
        return int(np.searchsorted(offsets, place, side="right")) - 1

    if values.null_count:
        at = int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])
        refuse(row_of(at), "a null among its token ids")
    ids = values.to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero((ids < 0) | (ids >= vocab_size))
    if len(wrong):
        hint = "choose the tokenizer that made them: tokenizer=..."
        problem = f"token id {ids[wrong[0]]} is outside the vocabulary of {vocab_size} tokens\n  {hint}"
        refuse(row_of(int(wrong[0])), problem)
    return ids, offsets
