"""What others may have written, read as data: records of a store, manifests, the JSON of model folders, data sets and plans.

Whoever can write to a store, or hands you a file, decides its bytes. So everything of that kind is read here: not more
than a limit, not nested too deeply, fields of the expected types only. Anything else is a `DamagedRecord`.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..config import EXIT_CODES, ConfigError, SkytrainError, build
from .base import MANIFEST_BYTES, RECORD_BYTES, Store
from .errors import TooLarge

if TYPE_CHECKING:
    import numpy as np

RESTORE = "restore it from a backup or an older version of the object, or delete it and lose what it recorded"
AGAIN = "prepare the data again"
MOST_DEPTH = 100  # of JSON: records nest some ten levels, and whoever walks through one calls itself at each


class DamagedRecord(SkytrainError):
    """What was read is not what it should be."""

    exit_code = EXIT_CODES["damaged"]


def damaged(where: str, problem: object, remedy: str = RESTORE) -> DamagedRecord:
    """Return the error for the content of `where`: a URL, a path, or a line of one."""
    said = str(problem) if isinstance(problem, str | ValueError) else repr(problem)
    return DamagedRecord(f"{where} is damaged: {said[:2000]}\n  {remedy}")


# What the fields of a record are: a field that is missing counts as None. Whoever can write to the store decides the
# values, so what a reader computes with is checked here.
Kind = Callable[[Any], bool]
MOST = 2**63  # of a whole number: larger ones cannot be computed with as floats
Shape = Mapping[str, Kind]
T = TypeVar("T")


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < MOST


def is_number(value: Any) -> bool:
    return isinstance(value, float) or is_whole(value)


def is_amount(value: Any) -> bool:
    """Return whether the value is a number of dollars or seconds: a budget is never reached by NaN, nor with less than 0."""
    return is_number(value) and math.isfinite(value) and value >= 0


def is_clock(value: Any) -> bool:
    """Return whether the value is a reading of a clock, of which only differences count."""
    return is_number(value) and math.isfinite(value)


def is_mapping(value: Any) -> bool:
    return isinstance(value, dict)


def is_list(value: Any) -> bool:
    return isinstance(value, list)


def is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def is_time(value: Any) -> bool:
    """Return whether the value is a time with its zone, in ISO 8601."""
    try:
        return isinstance(value, str) and datetime.fromisoformat(value).tzinfo is not None
    except ValueError:
        return False


def maybe(kind: Kind) -> Kind:
    return lambda value: value is None or kind(value)


NO_SHAPE: Shape = {}


@contextmanager
def data_of(where: str, remedy: str = RESTORE) -> Iterator[None]:
    """Report what goes wrong inside the block with the content of `where` as damage."""
    try:
        yield
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, ArithmeticError) as error:
        if isinstance(error, SkytrainError) and not isinstance(error, ConfigError):  # which `build` raises for a field
            raise
        raise damaged(where, error, remedy) from None


def record_of(store: Store, key: str, remedy: str = RESTORE) -> AbstractContextManager[None]:
    """Report what goes wrong inside the block with the content of this object as damage."""
    return data_of(store.url(key), remedy)


def parse_json(text: bytes | str) -> Any:
    """Return a JSON value. Raises ValueError where it is none, is nested too deeply, or is not UTF-8."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(f"nested more than {MOST_DEPTH} levels deep") from None
    _check_depth(value)
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MOST_DEPTH):
        level = [
            inner
            for each in level
            for inner in (each.values() if isinstance(each, dict) else each if isinstance(each, list) else ())
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise ValueError(f"nested more than {MOST_DEPTH} levels deep")


def parse_object(text: bytes | str, where: str, shape: Shape = NO_SHAPE, remedy: str = RESTORE) -> dict[str, Any]:
    """Return a JSON object whose fields are of these kinds; `where` names its place in the error."""
    with data_of(where, remedy):
        try:
            value = parse_json(text)
        except ValueError as error:
            raise ValueError(f"it cannot be read as JSON: {error}") from None
        if not isinstance(value, dict):
            raise ValueError("it is not a JSON object")
        if wrong := [name for name, kind in shape.items() if not kind(value.get(name))]:
            raise ValueError(f"{', '.join(wrong)} cannot be {value.get(wrong[0])!r:.60}")
    return value


def read_whole(store: Store, key: str, at_most: int = RECORD_BYTES, remedy: str = RESTORE) -> bytes:
    """Return the bytes of an object that is a record. Raises NotFound if there is none."""
    try:
        return store.read(key, at_most)
    except TooLarge as error:
        raise damaged(store.url(key), error.problem, remedy) from None


def read_text(store: Store, key: str, at_most: int = RECORD_BYTES, remedy: str = RESTORE) -> str:
    """Return the text of an object in UTF-8. Raises NotFound if there is none."""
    data = read_whole(store, key, at_most, remedy)
    with record_of(store, key, remedy):
        return data.decode()


def read_object(
    store: Store, key: str, shape: Shape = NO_SHAPE, at_most: int = RECORD_BYTES, remedy: str = RESTORE
) -> dict[str, Any]:
    """Read a JSON object whose fields are of these kinds. Raises NotFound if there is none."""
    return parse_object(read_whole(store, key, at_most, remedy), store.url(key), shape, remedy)


def read_typed(
    store: Store, key: str, schema: type[T], at_most: int = RECORD_BYTES, remedy: str = RESTORE, **missing: Any
) -> T:
    """Read a JSON object as a dataclass whose fields have the declared types. `missing` are values of fields that it may lack."""
    fields = read_object(store, key, at_most=at_most, remedy=remedy)
    with record_of(store, key, remedy):
        record: T = build(schema, {**missing, **fields})
    return record


def read_lines(store: Store, key: str, shape: Shape = NO_SHAPE) -> list[dict[str, Any]]:
    """Return the records of one part. Parts are written atomically, so a line that is not a record means damage."""
    lines = enumerate(read_whole(store, key).splitlines(), 1)
    return [parse_object(line, f"line {number} of {store.url(key)}", shape) for number, line in lines]


def read_data(store: Store, key: str, sha256: str | None = None, remedy: str = AGAIN) -> bytes:
    """Return the bytes of an object of data, of any size; they must have the hash that a manifest gives, where it does."""
    data = store.read(key, at_most=None)
    if sha256 is not None and (found := hashlib.sha256(data).hexdigest()) != sha256:
        raise damaged(
            store.url(key), f"it was altered: {len(data):,} bytes of sha256 {found[:12]}, not the manifest's", remedy
        )
    return data


def read_numbers(store: Store, key: str, dtype: Any, sha256: str | None = None, remedy: str = AGAIN) -> np.ndarray:
    """Return an object of data that is a list of numbers or records."""
    import numpy as np

    data = read_data(store, key, sha256, remedy)
    with record_of(store, key, remedy):
        return np.frombuffer(data, dtype)


def unpack_gzip(data: bytes, at_most: int = MANIFEST_BYTES) -> bytes:
    """Return what a gzip holds. Raises ValueError for one that is damaged, or that a few bytes let grow without end."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            unpacked = file.read(at_most + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"it cannot be unpacked: {error}") from None
    if len(unpacked) > at_most:
        raise ValueError(f"it unpacks to more than {at_most:,} bytes")
    return unpacked


def read_file(path: Path, at_most: int = RECORD_BYTES, remedy: str = RESTORE) -> bytes:
    """Return the bytes of a file of this computer that somebody else may have written. Raises OSError if it cannot be read."""
    with path.open("rb") as file:
        data = file.read(at_most + 1)
    if len(data) > at_most:
        raise damaged(str(path), f"it has more than {at_most:,} bytes, and is not read", remedy)
    return data


def read_file_object(path: Path, at_most: int = RECORD_BYTES, remedy: str = RESTORE) -> dict[str, Any]:
    """Return the JSON object in a file of this computer. Raises OSError if it cannot be read."""
    return parse_object(read_file(path, at_most, remedy), str(path), remedy=remedy)
