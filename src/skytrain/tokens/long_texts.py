"""Long texts in pieces: BPE engines need tens of bytes of memory for each character that they take at once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

import numpy as np

from .encoders import Encode

PIECE_CHARS = 1 << 18
PIECES_AT_ONCE = 4  # enough to keep the engine's threads busy
SEARCH_CHARS = (1 << 8, 1 << 16)  # how far before a piece's end a place to cut is looked for, first and then
# GPT-2's pattern never puts a letter or digit and a following space or punctuation mark into one word, and BPE
# merges within words only: a cut between the two leaves every id as it is. ASCII and CJK marks alone, because
# newer versions of Unicode turn other code points into letters.
BOUNDARY = re.compile("(?<=[^\\W_])(?=[\t\n\r -/:-@\\[-`{-~\u3000-\u303f\uff01-\uff0f])")


def cut_text(text: str, limit: int = PIECE_CHARS) -> Iterator[str]:
    """`text` in pieces of at most `limit` characters, whose ids one after the other are the ids of the text.

    A run of letters that offers no place to cut is cut anyway: only there may the ids differ.
    """
    start = 0
    while len(text) - start > limit:
        end = _last_boundary(text, start + 1, start + limit) or start + limit
        yield text[start:end]
        start = end
    yield text[start:] if start else text


def _last_boundary(text: str, first: int, last: int) -> int | None:
    for chars in SEARCH_CHARS:
        found = [match.start() for match in BOUNDARY.finditer(text, max(first, last - chars), last)]
        if found:
            return found[-1]
    return None


def encode_in_pieces(encode: Encode, texts: list[str]) -> list[np.ndarray]:
    """`encode` of the texts, with each long one a few pieces at a time."""
    if all(len(text) <= PIECE_CHARS for text in texts):
        return encode(texts)
    short = iter(encode([text for text in texts if len(text) <= PIECE_CHARS]))
    return [_encode_long(encode, text) if len(text) > PIECE_CHARS else next(short) for text in texts]


def _encode_long(encode: Encode, text: str) -> np.ndarray:
    pieces, encoded = cut_text(text), []
    while group := list(islice(pieces, PIECES_AT_ONCE)):
        encoded += encode(group)
    return np.concatenate(encoded)
