"""Read the JSON objects and JSON-lines streams of a run from the store; damage raises DamagedRecord with a remedy."""

from __future__ import annotations

import json
from typing import Any

from ..config import EXIT_CODES, SkytrainError
from ..storage import Store

LARGEST_BYTES = 64 * 2**20  # of a record: the largest that Skytrain writes are a few


class DamagedRecord(SkytrainError):
    """The error of a run's record whose content is damaged."""

    exit_code = EXIT_CODES["damaged"]

    def __init__(self, store: Store, key: str, error: Exception, line: int | None = None) -> None:
        where = store.url(key) if line is None else f"line {line} of {store.url(key)}"
        super().__init__(
            f"{where} is damaged: {error!r}\n"
            "  restore it from a backup or an older version of the object, or delete it and lose what it recorded"
        )


def read_object(store: Store, key: str) -> dict[str, Any]:
    """Read a JSON object. Raises NotFound if there is none."""
    return _parse(store, key, store.read(key))


def read_lines(store: Store, key: str) -> list[dict[str, Any]]:
    """Return the records of one part. Parts are written atomically, so a line that is not a record means damage."""
    return [_parse(store, key, line, number) for number, line in enumerate(store.read(key).splitlines(), 1)]


def _parse(store: Store, key: str, text: bytes, line: int | None = None) -> dict[str, Any]:
    try:
        if len(text) > LARGEST_BYTES:
            raise ValueError(f"it has {len(text)} bytes")
        value = json.loads(text)
        if not isinstance(value, dict):
            raise TypeError("it is not a JSON object")
    except (ValueError, TypeError, RecursionError) as error:  # not JSON, not UTF-8, or nested too deeply
        raise DamagedRecord(store, key, error, line) from None
    return value
