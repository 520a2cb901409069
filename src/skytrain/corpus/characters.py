"""Character tables and packed texts, shared by the compiled rules.

The rules also run on Spark, whose executors have little installed: these modules import only numpy and numba.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

# Flags of a character: str.isspace, str.isalpha, str.isalnum.
SPACE = 1
LETTER = 2
WORD = 4
# It may end a line of prose; it ends a sentence; it may follow the end of a sentence.
TERMINAL = 8
SENTENCE = 16
CLOSER = 32
# It is counted individually; it is a letter at which a phrase search starts.
MARK = 64
ANCHOR = 128
SENTENCE_ENDS = ".!?…。！？"
CLOSERS = "\"'”’»)]」』）"
TERMINALS = ".?!\"'"  # C4's, and those that FineWeb was made with
MARKS = ".…#{["
ANCHORS = "vkfp"  # rare letters; every phrase that the rules search for contains one
TABLE_SIZE = 0x33480  # no letter, digit or space lies above the last CJK extension
OTHER = TABLE_SIZE - 1  # stands for all of them
GROUP_CHARS = 1 << 18


class CharacterTables(NamedTuple):
    """The class flags of each code point, and its lower case if that is a single character."""

    flags: np.ndarray  # uint8
    lower: np.ndarray  # uint32


class Packed(NamedTuple):
    """Concatenated texts: text i is `codes[starts[i] : starts[i + 1]]`, one number per character."""

    codes: np.ndarray  # uint8 if every text is ASCII, else uint32
    starts: np.ndarray  # int64
    exact: np.ndarray  # the true code points, including characters outside the tables


@lru_cache(maxsize=1)
def character_tables() -> CharacterTables:
    letters = list(map(chr, range(TABLE_SIZE)))
    flags = np.zeros(TABLE_SIZE, np.uint8)
    for bit, test in ((SPACE, str.isspace), (LETTER, str.isalpha), (WORD, str.isalnum)):
        flags |= np.fromiter(map(test, letters), np.uint8, TABLE_SIZE) * np.uint8(bit)
    for bit, members in ((TERMINAL, TERMINALS), (SENTENCE, SENTENCE_ENDS), (CLOSER, CLOSERS), (MARK, MARKS)):
        flags[[ord(letter) for letter in members]] |= np.uint8(bit)
    lowered = list(map(str.lower, letters))
    for code in np.flatnonzero(np.fromiter(map(len, lowered), np.int64, TABLE_SIZE) != 1).tolist():
        lowered[code] = letters[code]
    lower = np.frombuffer("".join(lowered).encode("utf-32-le", "surrogatepass"), np.uint32)
    flags[np.isin(lower, [ord(letter) for letter in ANCHORS])] |= np.uint8(ANCHOR)
    return CharacterTables(flags, lower)


def pack(texts: list[str]) -> Packed:
    starts = np.zeros(len(texts) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)), out=starts[1:])
    joined = "".join(texts)
    if joined.isascii():
        letters = np.frombuffer(joined.encode("ascii"), np.uint8)
        return Packed(letters, starts, letters)
    exact = np.frombuffer(joined.encode("utf-32-le"), np.uint32)
    codes = np.minimum(exact, np.uint32(OTHER)) if int(exact.max()) >= TABLE_SIZE else exact
    return Packed(codes, starts, exact)


def unpack(codes: np.ndarray, starts: np.ndarray) -> list[str]:
    """Return the texts of packed exact codes."""
    spelling = "ascii" if codes.dtype == np.uint8 else "utf-32-le"
    bounds = starts.tolist()
    return [codes[bounds[i] : bounds[i + 1]].tobytes().decode(spelling) for i in range(len(bounds) - 1)]


def pack_groups(texts: list[str]) -> Iterator[tuple[list[int], Packed]]:
    """Yield groups of texts that fit the CPU cache, with their indices.

    ASCII texts are grouped separately, at one byte per character instead of four.
    """
    for ascii_ones in (True, False):
        group: list[int] = []
        size = 0
        for i, text in enumerate(texts):
            if text.isascii() is not ascii_ones:
                continue
            group.append(i)
            size += len(text)
            if size >= GROUP_CHARS:
                yield group, pack([texts[k] for k in group])
                group = []
                size = 0
        if group:
            yield group, pack([texts[k] for k in group])


def utf8_size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
