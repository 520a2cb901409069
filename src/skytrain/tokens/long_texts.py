"""Encodes long texts in pieces, because BPE engines use tens of bytes of memory per input character."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice, pairwise
from typing import Any

import numpy as np

from .encoders import Encode

PIECE_CHARS = 1 << 18
PIECES_AT_ONCE = 4  # enough to keep the engine's threads busy
SEARCH_CHARS = (1 << 8, 1 << 16)  # how far back from a piece's end to search for a boundary: first try, second try
# GPT-2's pattern never puts a letter or digit and a following space or punctuation mark into one word, and BPE
# merges only within words, so a cut between the two does not change any id. Only ASCII and CJK marks are used,
# because newer Unicode versions may reclassify other code points as letters.
BOUNDARY = re.compile("(?<=[^\\W_])(?=[\t\n\r -/:-@\\[-`{-~\u3000-\u303f\uff01-\uff0f])")


def cut_text(text: str, limit: int = PIECE_CHARS) -> Iterator[str]:
    """Split `text` into pieces of at most `limit` characters whose concatenated ids equal the ids of the text.

    A word longer than `limit` is cut anyway; only there may the ids differ.
    """
    start = 0
    while len(text) - start > limit:
        end = _last_boundary(text, start + 1, start + limit) or start + limit
        yield text[start:end]
        start = end
    yield text[start:] if start else text


def _last_boundary(text: str, first: int, last: int) -> int | None:
    for chars in SEARCH_CHARS:
        boundaries = [match.start() for match in BOUNDARY.finditer(text, max(first, last - chars), last)]
        if boundaries:
            return boundaries[-1]
    return None


def cut_long_words(text: str, limit: int, keep: bool = True) -> list[str]:
    """Split `text` after every `limit` consecutive letters, digits or marks; without `keep`, drop these runs.

    The text is a single piece if no word is that long.
    """
    if all(len(word) <= limit for word in text.split()):
        return [text]
    long_run = re.compile(rf"[^\W\d_]{{{limit}}}|\d{{{limit}}}|(?:[^\w\s]|_){{{limit}}}")
    if not keep:
        return long_run.split(text)
    cuts = [0, *(match.end() for match in long_run.finditer(text)), len(text)]
    return [text[start:end] for start, end in pairwise(cuts)]


def encode_in_pieces(encode: Encode, texts: list[str], dtype: type[np.unsignedinteger[Any]]) -> list[np.ndarray]:
    """Return the ids of the texts as `dtype`; long texts are encoded a few pieces at a time."""
    short = iter(encode([text for text in texts if len(text) <= PIECE_CHARS]))
    return [
        _encode_long(encode, text, dtype) if len(text) > PIECE_CHARS else next(short).astype(dtype, copy=False)
        for text in texts
    ]


def _encode_long(encode: Encode, text: str, dtype: type[np.unsignedinteger[Any]]) -> np.ndarray:
    pieces = cut_text(text)
    encoded = list[np.ndarray]()
    while group := list(islice(pieces, PIECES_AT_ONCE)):
        encoded += [ids.astype(dtype) for ids in encode(group)]  # copies, so that the engine's buffers are freed
    return np.concatenate(encoded)
