"""Records from files: JSON lines, JSON, parquet, and plain text."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

from ...config import MissingExtra, SkytrainError
from ...storage import parse_json, unpack_gzip


def read_records(name: str, data: bytes) -> Iterator[dict[str, Any]]:
    """Return the records of a file, whose name tells its kind. A text file is one record with the field `text`."""
    bare = name.removesuffix(".gz")
    if name.endswith(".gz"):
        try:
            data = unpack_gzip(data)
        except ValueError as error:
            raise SkytrainError(f"{name}: {error}") from None
    if bare.endswith(".parquet"):
        return _parquet(name, data)
    if bare.endswith((".jsonl", ".json")):
        return _json(name, _decoded(name, data))
    if bare.endswith((".txt", ".md")) or "." not in bare.rpartition("/")[2]:
        return iter([{"text": _decoded(name, data)}])
    raise SkytrainError(f"{name}: only .jsonl, .json, .parquet, .txt and .md are understood")


def _decoded(name: str, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SkytrainError(f"{name}: not UTF-8 at byte {error.start}") from None


def _json(name: str, text: str) -> Iterator[dict[str, Any]]:
    if text.lstrip()[:1] == "[":
        listed = _loaded(name, text, "")
        return iter([_mapping(name, record, f"record {number}") for number, record in enumerate(listed)])
    lines = enumerate(text.split("\n"), start=1)
    return (
        _mapping(name, _loaded(name, line, f", line {number}"), f"line {number}")
        for number, line in lines
        if line.strip()
    )


def _loaded(name: str, text: str, where: str) -> Any:
    try:
        return parse_json(text)
    except ValueError as error:
        raise SkytrainError(f"{name}{where}: not JSON: {error}") from None


def _mapping(name: str, record: Any, where: str) -> dict[str, Any]:
    if not isinstance(record, dict):
        raise SkytrainError(f"{name}, {where}: {str(record)[:40]!r} is not an object")
    return record


def as_text(value: Any, name: str) -> str:
    """Return a field's value, which must be text that UTF-8 can hold: JSON may escape half of a surrogate pair."""
    if not isinstance(value, str):
        raise SkytrainError(f"{name} is {value!r}; it must be text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise SkytrainError(
            f"{name} has half of a surrogate pair at character {error.start}: not Unicode text"
        ) from None
    return value


def _parquet(name: str, data: bytes) -> Iterator[dict[str, Any]]:
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise MissingExtra("pyarrow", "data") from None
    from pyarrow import ArrowException

    try:
        return iter(parquet.read_table(io.BytesIO(data)).to_pylist())
    except (ArrowException, OSError) as error:
        raise SkytrainError(f"{name}: not a parquet file: {str(error).partition(chr(10))[0]}") from None
