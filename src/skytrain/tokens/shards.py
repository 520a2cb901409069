"""The bytes of a shard: an llm.c header, then tokens; and next to it the ends of its documents. Also the rule that assigns documents to splits."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import numpy as np

Split = Literal["train", "validation"]

HEADER_INTS = 256
HEADER_BYTES = 4 * HEADER_INTS
# The header counts tokens in an int32.
MAX_SHARD_TOKENS = 2**31 - 1
# (magic, version) as llm.c writes them: the first for GPT-2's uint16, the second for Llama 3's uint32.
MAGIC_OF_DTYPE = {"uint16": (20240520, 1), "uint32": (20240801, 7)}
DTYPE_OF_MAGIC = {magic: dtype for dtype, magic in MAGIC_OF_DTYPE.items()}


def dtype_for(vocab_size: int) -> str:
    """The narrowest token type that holds every id of the vocabulary."""
    return "uint16" if vocab_size <= 2**16 else "uint32"


def pack_header(dtype: str, tokens: int) -> bytes:
    assert 0 <= tokens <= MAX_SHARD_TOKENS
    header = np.zeros(HEADER_INTS, dtype="<i4")
    header[:2] = MAGIC_OF_DTYPE[dtype]
    header[2] = tokens
    return header.tobytes()


def unpack_header(data: bytes) -> tuple[str, int] | None:
    """The dtype and the number of tokens that follow, or None where these bytes are no header of this family."""
    if len(data) < HEADER_BYTES:
        return None
    magic, version, tokens = (int(value) for value in np.frombuffer(data, dtype="<i4", count=3))
    dtype = DTYPE_OF_MAGIC.get((magic, version))
    return None if dtype is None else (dtype, tokens)


def split_of(document_id: str, validation_fraction: float) -> Split:
    """The split a document belongs to; decided by its id alone, so that no order, no rerun and no added document moves it."""
    return "validation" if _split_point(document_id) < validation_fraction else "train"


def dividing_fraction(document_ids: Iterable[str], share: float) -> float | None:
    """A validation fraction with which about `share` of the documents, at least one and not all, are in validation.

    It has as few decimals as possible. None where there are fewer than two documents.
    """
    points = sorted({_split_point(each) for each in document_ids})
    if len(points) < 2:
        return None
    count = min(max(1, round(share * len(points))), len(points) - 1)
    decimals = 1
    while (fraction := (math.floor(points[count - 1] * 10**decimals) + 1) / 10**decimals) > points[count]:
        decimals += 1
    return fraction


def _split_point(document_id: str) -> float:
    return int.from_bytes(hashlib.sha256(document_id.encode()).digest()[:8], "big") / 2**64


def sha256_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
