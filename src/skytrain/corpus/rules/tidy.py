"""Compiled checks of a batch that spare most texts the slow rules: would normalizing change it, is it English?"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numba import njit

from ..characters import TABLE_SIZE, character_tables, pack_groups
from ..minhash import hash_words, longest_text
from .language import LANGUAGE_CHARS
from .normalize import EXOTIC_SPACES, is_control

CHANGES = 1  # a character that normalizing may change
BLANK = 2  # space or tab
LINE_FEED = 3
# None of them is common in another language, as "of" is in Dutch, and "in" and "is" are in many.
ENGLISH_WORDS = ("the", "and", "to", "that", "with", "this", "are", "from", "which", "have", "be", "you", "it", "for")
# Characters in these ranges are composed, and none combines with the one before it.
NEVER_COMBINE = ((0, 0x300), (0x2010, 0x2028), (0x2030, 0x205F))


def untidy(texts: list[str]) -> np.ndarray:
    """Return for each text whether normalizing could change it. True may be wrong, False never is."""
    results = np.zeros(len(texts), np.bool_)
    for places, packed in pack_groups(texts):
        part = np.zeros(len(places), np.bool_)
        _untidy(packed.codes, packed.starts, _kinds(), part)
        results[places] = part
    return results


def english(texts: list[str], share: float) -> np.ndarray:
    """Return for each text whether at least `share` of the words at its beginning are very common English ones."""
    results = np.zeros(len(texts), np.bool_)
    flags, lower = character_tables()
    for places, packed in pack_groups([text[:LANGUAGE_CHARS] for text in texts]):
        part = np.zeros(len(places), np.bool_)
        _english(packed.codes, packed.starts, flags, lower, _english_hashes(), share, part)
        results[places] = part
    return results


@lru_cache(maxsize=1)
def _kinds() -> np.ndarray:
    kinds = np.full(TABLE_SIZE, CHANGES, np.uint8)
    for start, end in NEVER_COMBINE:
        kinds[start:end] = [is_control(chr(code)) for code in range(start, end)]
    kinds[[ord(space) for space in EXOTIC_SPACES]] = CHANGES
    kinds[[ord(" "), ord("\t")]] = BLANK
    kinds[ord("\n")] = LINE_FEED
    return kinds


@lru_cache(maxsize=1)
def _english_hashes() -> np.ndarray:
    flags, lower = character_tables()
    hashes = np.empty(len(ENGLISH_WORDS), np.uint64)
    codes = np.array([ord(letter) for letter in " ".join(ENGLISH_WORDS)], np.uint8)
    assert hash_words(codes, 0, len(codes), flags, lower, hashes) == len(ENGLISH_WORDS)
    return np.sort(hashes)


@njit(cache=True, nogil=True)
def _untidy(codes, starts, kinds, found):  # type: ignore[no-untyped-def]
    for d in range(len(starts) - 1):
        start, end = starts[d], starts[d + 1]
        if start == end:
            continue
        feeds = 0
        found[d] = kinds[codes[start]] == LINE_FEED or kinds[codes[end - 1]] in (BLANK, LINE_FEED)
        for i in range(start, end):
            kind = kinds[codes[i]]
            if kind == 0:
                feeds = 0
            elif kind == LINE_FEED:
                feeds += 1
                if feeds == 4 or (i > start and kinds[codes[i - 1]] == BLANK):
                    found[d] = True
                    break
            elif kind == CHANGES:
                found[d] = True
                break
            else:
                feeds = 0


@njit(cache=True, nogil=True)
def _english(codes, starts, flags, lower, common, share, found):  # type: ignore[no-untyped-def]
    words = np.empty(longest_text(starts) // 2 + 1, np.uint64)
    for d in range(len(starts) - 1):
        count = hash_words(codes, starts[d], starts[d + 1], flags, lower, words)
        hits = 0
        for i in range(count):
            at = np.searchsorted(common, words[i])
            hits += at < len(common) and common[at] == words[i]
        found[d] = count > 0 and hits >= share * count
