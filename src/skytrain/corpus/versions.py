"""Names for preparations: a hash of everything that decides the bytes, and nothing else."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

from skytrain.config import DataConfig

VERSION_DIGITS = 12


def canonical_json(value: Any) -> bytes:
    """One spelling for one value, so that its hash can be compared between machines."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def corpus_version(data: DataConfig, fingerprint: dict[str, Any]) -> str:
    """The version of a preparation: its settings and what the source would yield."""
    return _digest({"recipe": _recipe(data), "fingerprint": fingerprint})


def recipe_hash(data: DataConfig) -> str:
    """The settings alone: a machine without the sources finds what was prepared from them by this."""
    return _digest({"recipe": _recipe(data)})


def _recipe(data: DataConfig) -> dict[str, Any]:
    recipe = dataclasses.asdict(data)
    del recipe["version"]  # chooses among preparations, so it cannot be part of one
    return recipe


def _digest(value: Any) -> str:
    return hashlib.sha256(canonical_json(value)).hexdigest()[:VERSION_DIGITS]
