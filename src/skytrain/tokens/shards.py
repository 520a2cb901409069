"""The shard format (an llm.c header, then tokens, with an index of document ends) and the assignment to splits."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import numpy as np

from ..corpus import VALIDATION_FILE

Split = Literal["train", "validation"]

HEADER_INTS = 256
HEADER_BYTES = 4 * HEADER_INTS
# The header stores the number of tokens as an int32.
MAX_SHARD_TOKENS = 2**31 - 1
# (magic, version) as llm.c writes them: the first for GPT-2's uint16, the second for Llama 3's uint32.
MAGIC_OF_DTYPE = {"uint16": (20240520, 1), "uint32": (20240801, 7)}
DTYPE_OF_MAGIC = {magic: dtype for dtype, magic in MAGIC_OF_DTYPE.items()}


def dtype_for(vocab_size: int) -> str:
    """Return the narrowest dtype that holds every id of the vocabulary."""
    return "uint16" if vocab_size <= 2**16 else "uint32"


def mask_bytes(tokens: int) -> int:
    """Return the size of the loss mask of a shard: one bit per token."""
    return -(-tokens // 8)


def pack_header(dtype: str, tokens: int) -> bytes:
    assert 0 <= tokens <= MAX_SHARD_TOKENS
    header = np.zeros(HEADER_INTS, dtype="<i4")
    header[:2] = MAGIC_OF_DTYPE[dtype]
    header[2] = tokens
    return header.tobytes()


def unpack_header(data: bytes) -> tuple[str, int] | None:
    """Return the dtype and the number of tokens, or None if these bytes are not an llm.c header."""
    if len(data) < HEADER_BYTES:
        return None
    magic, version, tokens = (int(value) for value in np.frombuffer(data, dtype="<i4", count=3))
    dtype = DTYPE_OF_MAGIC.get((magic, version))
    return None if dtype is None else (dtype, tokens)


def split_of(document_id: str, validation_fraction: float) -> Split:
    """Return a document's split. It depends only on the id, so reordering, rerunning or adding documents keeps it."""
    if document_id.startswith(VALIDATION_FILE):
        return "validation"
    return "validation" if _split_point(document_id) < validation_fraction else "train"


def dividing_fraction(document_ids: Iterable[str], share: float) -> float | None:
    """Return a validation fraction that puts about `share` of the documents, at least one and not all, in validation.

    It has as few decimals as possible. With fewer than two documents it is None.
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


def in_place_stamp(cache_folder: Path, path: Path) -> Path:
    """Return the path where a cache records that a file which is read in place was verified."""
    return cache_folder / "in-place" / hashlib.sha256(str(path).encode()).hexdigest()


def sha256_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
