"""Compiled: finds repeated n-grams of words, with small hash tables."""

from __future__ import annotations

import numpy as np
from numba import njit

from ..minhash import COMBINE, mix

EMPTY = np.uint64(0)


@njit(cache=True, nogil=True)
def table_size(entries):  # type: ignore[no-untyped-def]
    size = 16
    while size < 2 * entries:
        size *= 2
    return size


@njit(cache=True, nogil=True, inline="always")
def slot_of(keys, mask, key):  # type: ignore[no-untyped-def]
    """Return the slot of `key`, or the empty slot where it belongs."""
    slot = np.int64(key & mask)
    while keys[slot] != EMPTY and keys[slot] != key:
        slot = (slot + 1) & np.int64(mask)
    return slot


@njit(cache=True, nogil=True)
def repeats(hashes, chars, count, keys):  # type: ignore[no-untyped-def]
    """Return how many of `count` pieces occurred before, and their characters. `keys` is scratch space for a table."""
    if count < 2:
        return 0, 0
    size = table_size(count)
    keys[:size] = EMPTY
    mask = np.uint64(size - 1)
    again = again_chars = 0
    for i in range(count):
        key = mix(hashes[i])
        slot = slot_of(keys, mask, key)
        if keys[slot] == key:
            again += 1
            again_chars += chars[i]
        else:
            keys[slot] = key
    return again, again_chars


@njit(cache=True, nogil=True)
def count_ngrams(hashes, ends, count, prefix, places, slots, keys, seen, firsts, row):  # type: ignore[no-untyped-def]
    """Write into `row` the characters in the most frequent 2-, 3- and 4-gram and in repeated 5- to 10-grams.

    `hashes` and `ends` (characters up to a word's end) have one entry per word; `prefix` to `firsts` are scratch space.
    """
    prefix[0] = 0
    for i in range(count):
        prefix[i + 1] = prefix[i] * COMBINE + mix(hashes[i])
    # An n-gram can repeat only if the shorter ones at its start and end do, so each length has fewer candidates.
    candidates = count - 1
    for i in range(candidates):
        places[i] = i
    for n in range(2, 11):
        candidates = _repeated(prefix, count, n, places, candidates, slots, keys, seen, firsts)
        if candidates == 0:
            return
        if n <= 4:
            row[n - 2] = _top_ngram(ends, n, candidates, slots, seen, firsts)
        else:
            row[n - 2] = _duplicate_ngrams(ends, n, places, candidates, slots, seen)
        kept = 0
        for i in range(candidates - 1):
            if places[i + 1] == places[i] + 1:
                places[kept] = places[i]
                kept += 1
        candidates = kept


@njit(cache=True, nogil=True)
def _repeated(prefix, count, n, places, candidates, slots, keys, seen, firsts):  # type: ignore[no-untyped-def]
    """Keep in `places` the starts of n-grams that occur more than once, with their `slots`, and return how many."""
    power = np.uint64(1)
    for _ in range(n):
        power = power * COMBINE
    size = table_size(candidates)
    keys[:size] = EMPTY
    mask = np.uint64(size - 1)
    while candidates and places[candidates - 1] + n > count:
        candidates -= 1
    for c in range(candidates):
        i = places[c]
        key = mix(prefix[i + n] - prefix[i] * power)
        slot = slot_of(keys, mask, key)
        slots[c] = slot
        if keys[slot] == key:
            seen[slot] += 1
        else:
            keys[slot], seen[slot], firsts[slot] = key, 1, i
    kept = 0
    for c in range(candidates):
        if seen[slots[c]] > 1:
            places[kept], slots[kept] = places[c], slots[c]
            kept += 1
    return kept


@njit(cache=True, nogil=True)
def _top_ngram(ends, n, candidates, slots, seen, firsts):  # type: ignore[no-untyped-def]
    best_count, best_first = 0, 0
    for c in range(candidates):  # in order of place, so the earliest of equals wins
        if seen[slots[c]] > best_count:
            best_count, best_first = seen[slots[c]], firsts[slots[c]]
    return best_count * (ends[best_first + n] - ends[best_first] + n - 1)


@njit(cache=True, nogil=True)
def _duplicate_ngrams(ends, n, places, candidates, slots, seen):  # type: ignore[no-untyped-def]
    chars = 0
    free = 0  # the first word that no counted n-gram covers
    for c in range(candidates):
        i, slot = places[c], slots[c]
        if i < free:
            continue
        if seen[slot] == 0:  # it occurred before
            chars += ends[i + n] - ends[i]
            free = i + n
        else:
            seen[slot] = 0
    return chars
