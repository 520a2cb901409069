"""Compiled MinHash signatures of shingles: words, shingles and all minima in one pass over a batch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numba import njit

from ..config import NearDedupConfig
from .characters import WORD, character_tables, pack_groups

SEED = 1
FNV_OFFSET, FNV_PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
MIX_1, MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
SHIFT_30, SHIFT_27, SHIFT_31, SHIFT_32 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(32)
COMBINE = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class MinHash:
    """How texts are compared: the words of a shingle, the minima of a signature, and how bands are cut from it."""

    bands: int
    rows: int
    shingle_words: int
    hashes: int  # minima of a signature, of which bands use the first

    @classmethod
    def of(cls, settings: NearDedupConfig) -> MinHash:
        return cls(
            bands=settings.bands,
            rows=settings.rows,
            shingle_words=settings.shingle_words,
            hashes=settings.permutations or settings.bands * settings.rows,
        )

    @property
    def signature_bytes(self) -> int:
        return 4 * self.hashes

    def signatures(self, texts: list[str]) -> np.ndarray:
        """Return one row of `hashes` uint32 per text.

        The fraction of equal columns of two rows estimates the Jaccard similarity of their shingles. A word is a
        sequence of letters and digits in lower case. A text of fewer words than a shingle has is one shingle; a text
        without words has a row of the largest number, which `has_words` detects.
        """
        flags, lower = character_tables()
        factors, offsets = permutations(self.hashes)
        rows = np.empty((len(texts), self.hashes), np.uint32)
        for places, (codes, starts, _) in pack_groups(texts):
            part = np.empty((len(places), self.hashes), np.uint32)
            _signatures(codes, starts, flags, lower, factors, offsets, self.shingle_words, part)
            rows[places] = part
        return rows

    def shingle_sets(self, texts: list[str]) -> list[np.ndarray]:
        """Return each text's set of shingles as sorted 64-bit hashes; a text without words has an empty set."""
        flags, lower = character_tables()
        sets: list[np.ndarray] = [np.empty(0, np.uint64)] * len(texts)
        for places, (codes, starts, _) in pack_groups(texts):
            hashes = np.empty(len(codes), np.uint64)
            ends = np.empty(len(places), np.int64)
            _shingle_sets(codes, starts, flags, lower, self.shingle_words, hashes, ends)
            for place, own in zip(places, np.split(hashes[: ends[-1]], ends[:-1]), strict=True):
                sets[place] = own
        return sets

    def similarity(self, one: str, other: str) -> float:
        """Return the exact Jaccard similarity of the two sets of shingles."""
        a, b = self.shingle_sets([one, other])
        return float(jaccard_of(a, b))

    def band_hashes(self, rows: np.ndarray) -> np.ndarray:
        """Return one uint64 per band of each row; two texts that share a band hash are candidates."""
        hashes = np.empty((len(rows), self.bands), np.uint64)
        _band_hashes(np.ascontiguousarray(rows), self.rows, hashes)
        return hashes


def has_words(rows: np.ndarray) -> np.ndarray:
    return (rows != np.uint32(0xFFFFFFFF)).any(axis=1)


@lru_cache(maxsize=4)
def permutations(hashes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return factors and offsets of x -> factor * x + offset mod 2^32.

    An odd factor makes it a permutation of the shingle hashes.
    """
    generator = np.random.default_rng(SEED)
    factors = generator.integers(0, 2**32, hashes, dtype=np.uint32) | np.uint32(1)
    return factors, generator.integers(0, 2**32, hashes, dtype=np.uint32)


@njit(cache=True, nogil=True, inline="always")
def mix(value):  # type: ignore[no-untyped-def]
    """Apply the finalizer of SplitMix64: every bit of the input affects every bit of the output."""
    value = (value ^ (value >> SHIFT_30)) * MIX_1
    value = (value ^ (value >> SHIFT_27)) * MIX_2
    return value ^ (value >> SHIFT_31)


@njit(cache=True, nogil=True)
def longest_text(starts):  # type: ignore[no-untyped-def]
    """Return the characters of the longest text, which bounds its number of words: at most half as many."""
    longest = 0
    for d in range(len(starts) - 1):
        longest = max(longest, starts[d + 1] - starts[d])
    return longest


@njit(cache=True, nogil=True)
def hash_words(codes, start, end, flags, lower, words):  # type: ignore[no-untyped-def]
    """Write the hash of each word between `start` and `end` into `words`, and return how many there are."""
    count = 0
    value = FNV_OFFSET
    inside = False
    for i in range(start, end):
        code = codes[i]
        if flags[code] & WORD:
            value = (value ^ np.uint64(lower[code])) * FNV_PRIME
            inside = True
        elif inside:
            words[count] = mix(value)
            count += 1
            value = FNV_OFFSET
            inside = False
    if inside:
        words[count] = mix(value)
        count += 1
    return count


@njit(cache=True, nogil=True)
def _hash_shingles(words, count, shingle_words):  # type: ignore[no-untyped-def]
    """Replace the hashes of words by those of the shingles that begin with them, and return how many there are."""
    width = min(shingle_words, count)
    number = count - width + 1
    for j in range(number):
        value = np.uint64(0)
        for k in range(width):
            value = value * COMBINE + words[j + k]
        words[j] = mix(value)
    return number


@njit(cache=True, nogil=True)
def _shingle_sets(codes, starts, flags, lower, shingle_words, hashes, ends):  # type: ignore[no-untyped-def]
    words = np.empty(longest_text(starts) // 2 + 1, np.uint64)
    filled = 0
    for d in range(len(starts) - 1):
        count = hash_words(codes, starts[d], starts[d + 1], flags, lower, words)
        if count:
            shingles = np.sort(words[: _hash_shingles(words, count, shingle_words)])
            for j in range(len(shingles)):
                if j == 0 or shingles[j] != shingles[j - 1]:
                    hashes[filled] = shingles[j]
                    filled += 1
        ends[d] = filled


@njit(cache=True, nogil=True)
def jaccard_of(one, other):  # type: ignore[no-untyped-def]
    """Return the Jaccard similarity of two sorted sets; 0 if one is empty."""
    i = j = common = 0
    while i < len(one) and j < len(other):
        if one[i] == other[j]:
            common += 1
            i += 1
            j += 1
        elif one[i] < other[j]:
            i += 1
        else:
            j += 1
    return common / max(1, len(one) + len(other) - common)


@njit(cache=True, nogil=True)
def _signatures(codes, starts, flags, lower, factors, offsets, shingle_words, rows):  # type: ignore[no-untyped-def]
    most = longest_text(starts) // 2 + 1
    words, shingles = np.empty(most, np.uint64), np.empty(most, np.uint32)
    for d in range(len(starts) - 1):
        count = hash_words(codes, starts[d], starts[d + 1], flags, lower, words)
        if count == 0:
            rows[d, :] = np.uint32(0xFFFFFFFF)
            continue
        number = _hash_shingles(words, count, shingle_words)
        for j in range(number):
            shingles[j] = np.uint32(words[j] >> SHIFT_32)
        # One permutation over all shingles keeps its minimum in a register, and the loop is vectorized (8 or 16 wide).
        for k in range(len(factors)):
            factor, offset = factors[k], offsets[k]
            least = np.uint32(0xFFFFFFFF)
            for j in range(number):
                least = min(least, np.uint32(np.uint32(factor * shingles[j]) + offset))
            rows[d, k] = least


@njit(cache=True, nogil=True)
def _band_hashes(rows, rows_per_band, hashes):  # type: ignore[no-untyped-def]
    for d in range(rows.shape[0]):
        for band in range(hashes.shape[1]):
            value = np.uint64(band)
            for r in range(rows_per_band):
                value = mix(value * COMBINE + np.uint64(rows[d, band * rows_per_band + r]))
            hashes[d, band] = value
