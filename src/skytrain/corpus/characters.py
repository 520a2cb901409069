"""Characters as numbers: the tables and the packing that the compiled rules share.

The stages in this room are also meant to run inside Spark on an older Python, so these modules import
nothing but numpy and numba and use no syntax newer than Python 3.9.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

SPACE, LETTER, WORD = 1, 2, 4  # str.isspace, str.isalpha, str.isalnum
TERMINAL, SENTENCE, CLOSER = 8, 16, 32  # may end a line of prose; ends a sentence; may follow the end of a sentence
SENTENCE_ENDS = ".!?…。！？"
CLOSERS = "\"'”’»)]」』）"
TERMINALS = SENTENCE_ENDS + "\"'”’»"
TABLE_SIZE = 0x33480  # no letter, digit or space lies above the last CJK extension
OTHER = TABLE_SIZE - 1  # stands for all of them


class CharacterTables(NamedTuple):
    """For each code point: what it is, and its lower case where that is one character."""

    flags: np.ndarray  # uint8
    lower: np.ndarray  # uint32


class Packed(NamedTuple):
    """Texts end to end: text i is `codes[starts[i] : starts[i + 1]]`, one number a character."""

    codes: np.ndarray  # uint8 where every text is ASCII, else uint32
    starts: np.ndarray  # int64


@lru_cache(maxsize=1)
def character_tables() -> CharacterTables:
    letters = [chr(code) for code in range(TABLE_SIZE)]
    flags = np.zeros(TABLE_SIZE, np.uint8)
    for bit, test in ((SPACE, str.isspace), (LETTER, str.isalpha), (WORD, str.isalnum)):
        flags |= np.fromiter(map(test, letters), np.uint8, TABLE_SIZE) * np.uint8(bit)
    for bit, members in ((TERMINAL, TERMINALS), (SENTENCE, SENTENCE_ENDS), (CLOSER, CLOSERS)):
        flags[[ord(letter) for letter in members]] |= np.uint8(bit)
    lower = np.fromiter(
        (ord(low) if len(low := letter.lower()) == 1 else ord(letter) for letter in letters), np.uint32, TABLE_SIZE
    )
    return CharacterTables(flags, lower)


def pack(texts: list[str]) -> Packed:
    starts = np.zeros(len(texts) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)), out=starts[1:])
    joined = "".join(texts)
    if joined.isascii():
        return Packed(np.frombuffer(joined.encode("ascii"), np.uint8), starts)
    codes = np.frombuffer(joined.encode("utf-32-le"), np.uint32)
    return Packed(np.minimum(codes, np.uint32(OTHER)), starts)


def simple_lower(text: str) -> str:
    """Lower case that never changes the number of characters; the definition behind `CharacterTables.lower`."""
    return "".join(low if len(low := letter.lower()) == 1 else letter for letter in text)
