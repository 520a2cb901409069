"""Read the JSON objects and JSON-lines streams of a run from the store; damage raises DamagedRecord with a remedy."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any, TypeVar

from ..config import EXIT_CODES, ConfigError, SkytrainError, build
from ..storage import Store, TooLarge


class DamagedRecord(SkytrainError):
    """The error of a run's record whose content is damaged."""

    exit_code = EXIT_CODES["damaged"]

    def __init__(self, store: Store, key: str, error: Exception, line: int | None = None) -> None:
        where = store.url(key) if line is None else f"line {line} of {store.url(key)}"
        super().__init__(
            f"{where} is damaged: {error!r}\n"
            "  restore it from a backup or an older version of the object, or delete it and lose what it recorded"
        )


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


def is_counts(value: Any) -> bool:
    """Return whether the value is what machines have cost so far, as `meter.Count` has it, by their keys."""
    kinds = {"usd": is_amount, "seconds": is_amount, "boot": is_text, "boot_seconds": is_clock}
    return is_mapping(value) and all(
        is_mapping(count) and count.keys() == kinds.keys() and all(kind(count[name]) for name, kind in kinds.items())
        for count in value.values()
    )


NO_SHAPE: Shape = {}
SPEND: Shape = {
    "machines": maybe(is_counts),
    "usd": maybe(is_amount),
    "usd_per_hour": maybe(is_amount),
    "save_seconds": maybe(is_amount),
    "saved_step": maybe(is_whole),
    "at": maybe(is_text),
}


@contextmanager
def record_of(store: Store, key: str) -> Iterator[None]:
    """Report what goes wrong inside the block with the content of this object as damage."""
    try:
        yield
    except ConfigError as error:  # a field of another type
        raise DamagedRecord(store, key, error) from None
    except SkytrainError:
        raise
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, OverflowError) as error:
        raise DamagedRecord(store, key, error) from None


def read_object(store: Store, key: str, shape: Shape = NO_SHAPE) -> dict[str, Any]:
    """Read a JSON object whose fields are of these kinds. Raises NotFound if there is none."""
    return _parse(store, key, _read(store, key), shape)


def read_typed(store: Store, key: str, schema: type[T], **missing: Any) -> T:
    """Read a JSON object as a dataclass whose fields have the declared types. `missing` are values of fields that it may lack."""
    fields = read_object(store, key)
    try:
        record: T = build(schema, {**missing, **fields})
    except ValueError as error:
        raise DamagedRecord(store, key, error) from None
    return record


def read_lines(store: Store, key: str, shape: Shape = NO_SHAPE) -> list[dict[str, Any]]:
    """Return the records of one part. Parts are written atomically, so a line that is not a record means damage."""
    return [_parse(store, key, line, shape, number) for number, line in enumerate(_read(store, key).splitlines(), 1)]


def _read(store: Store, key: str) -> bytes:
    try:
        return store.read(key)
    except TooLarge as error:
        raise DamagedRecord(store, key, ValueError(error.problem)) from None


def _parse(store: Store, key: str, text: bytes, shape: Shape, line: int | None = None) -> dict[str, Any]:
    try:
        value = json.loads(text)
        if not isinstance(value, dict):
            raise TypeError("it is not a JSON object")
        if wrong := [name for name, kind in shape.items() if not kind(value.get(name))]:
            raise TypeError(f"{', '.join(wrong)} cannot be {value.get(wrong[0])!r:.60}")
    except (ValueError, TypeError, RecursionError) as error:  # not JSON, not UTF-8, or nested too deeply
        raise DamagedRecord(store, key, error, line) from None
    return value
