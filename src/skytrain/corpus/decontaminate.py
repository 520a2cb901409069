"""Decontamination: finds documents that share a word n-gram with an evaluation set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numba import njit

from ..storage import parse_json
from .characters import character_tables, pack, pack_groups
from .minhash import COMBINE, hash_words, mix

FILTER_BITS = 24  # a 2 MB bitmap rejects nearly every n-gram before the exact search


class Decontaminator:
    """The n-grams of `ngram_words` words that occur in the examples.

    A word is a sequence of letters and digits in lower case, as for near-duplicates.
    """

    def __init__(self, examples: Iterable[str], ngram_words: int) -> None:
        self.ngram_words = ngram_words
        self.known = np.unique(_ngrams(list(examples), ngram_words))
        self.filter = np.zeros(1 << FILTER_BITS, np.bool_)
        self.filter[self.known & np.uint64((1 << FILTER_BITS) - 1)] = True

    def hits(self, texts: list[str]) -> np.ndarray:
        """Return for each text whether it shares an n-gram with the examples."""
        hits = np.zeros(len(texts), np.bool_)
        flags, lower = character_tables()
        for places, packed in pack_groups(texts):
            part = np.zeros(len(places), np.bool_)
            _find(packed.codes, packed.starts, flags, lower, self.ngram_words, self.known, self.filter, part)
            hits[places] = part
        return hits


def examples_in(lines: Iterable[str]) -> Iterator[str]:
    """Yield each line of a text, or every string inside each line's JSON."""
    for line in lines:
        if line.lstrip()[:1] in ("{", "["):
            yield from _strings(parse_json(line))
        elif line.strip():
            yield line


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)


def _ngrams(texts: list[str], n: int) -> np.ndarray:
    packed = pack(texts)
    tables = character_tables()
    hashes = np.empty(len(packed.codes) // 2 + 1, np.uint64)
    count = _collect(packed.codes, packed.starts, tables.flags, tables.lower, n, hashes)
    return hashes[:count]


@njit(cache=True, nogil=True)
def _ngram(words, i, n):  # type: ignore[no-untyped-def]
    value = np.uint64(0)
    for k in range(n):
        value = value * COMBINE + words[i + k]
    return mix(value)


@njit(cache=True, nogil=True)
def _collect(codes, starts, flags, lower, n, hashes):  # type: ignore[no-untyped-def]
    words = np.empty(len(codes) // 2 + 1, np.uint64)
    total = 0
    for d in range(len(starts) - 1):
        count = hash_words(codes, starts[d], starts[d + 1], flags, lower, words)
        for i in range(count - n + 1):
            hashes[total] = _ngram(words, i, n)
            total += 1
    return total


@njit(cache=True, nogil=True)
def _find(codes, starts, flags, lower, n, known, bitmap, found):  # type: ignore[no-untyped-def]
    longest = 0
    for d in range(len(starts) - 1):
        longest = max(longest, starts[d + 1] - starts[d])
    words = np.empty(longest // 2 + 1, np.uint64)
    mask = np.uint64(len(bitmap) - 1)
    for d in range(len(starts) - 1):
        count = hash_words(codes, starts[d], starts[d + 1], flags, lower, words)
        for i in range(count - n + 1):
            key = _ngram(words, i, n)
            if bitmap[np.int64(key & mask)]:
                at = np.searchsorted(known, key)
                if at < len(known) and known[at] == key:
                    found[d] = True
                    break
