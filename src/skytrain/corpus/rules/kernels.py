"""What the quality rules count, compiled: one pass over words and one over lines for a whole batch of texts.

`reference.py` says the same in plain Python, and is what these numbers mean.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numba import njit

from ..characters import CLOSER, LETTER, SENTENCE, SPACE, TERMINAL, WORD, Packed, character_tables
from ..minhash import FNV_OFFSET, FNV_PRIME, mix

STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
TOP_NGRAMS = (2, 3, 4)
DUPLICATE_NGRAMS = (5, 6, 7, 8, 9, 10)
WORD_COUNTS = ("words", "real_words", "real_word_chars", "hashes", "ellipses", "letter_words", "stop_words")
NGRAM_COUNTS = tuple(f"top_{n}gram_chars" for n in TOP_NGRAMS) + tuple(
    f"duplicate_{n}gram_chars" for n in DUPLICATE_NGRAMS
)
LINE_COUNTS = (
    "lines",
    "bullet_lines",
    "ellipsis_lines",
    "terminal_lines",
    "short_lines",
    "duplicate_lines",
    "duplicate_line_chars",
    "paragraphs",
    "duplicate_paragraphs",
    "duplicate_paragraph_chars",
    "newlines",
)
NGRAM_BASE = np.uint64(0x9E3779B97F4A7C15)
DOT, NEWLINE, HASH, ELLIPSIS, BULLET, DASH = ord("."), ord("\n"), ord("#"), ord("…"), ord("•"), ord("-")


def count_words(packed: Packed, ngrams: bool) -> np.ndarray:
    """One row of WORD_COUNTS, then NGRAM_COUNTS (zeros unless asked for), a text."""
    counts = np.zeros((len(packed.starts) - 1, len(WORD_COUNTS) + len(NGRAM_COUNTS)), np.int64)
    _count_words(packed.codes, packed.starts, character_tables().flags, _stop_hashes(), ngrams, counts)
    return counts


def count_lines(packed: Packed, short_line_chars: int) -> np.ndarray:
    """One row of LINE_COUNTS a text."""
    counts = np.zeros((len(packed.starts) - 1, len(LINE_COUNTS)), np.int64)
    _count_lines(packed.codes, packed.starts, character_tables().flags, short_line_chars, counts)
    return counts


def find_lines(packed: Packed) -> tuple[np.ndarray, np.ndarray]:
    """Every line of every text, blank ones left out: rows of (start, end, words, longest word, ends in a terminal mark, sentences),
    positions within the text and without the white space around it; and where each text's rows begin."""
    rows = np.empty((int((packed.codes == NEWLINE).sum()) + len(packed.starts), 6), np.int64)
    first = np.zeros(len(packed.starts), np.int64)
    count = _find_lines(packed.codes, packed.starts, character_tables().flags, rows, first)
    return rows[:count], first


@lru_cache(maxsize=1)
def _stop_hashes() -> np.ndarray:
    hashes = []
    for word in STOP_WORDS:
        value = int(FNV_OFFSET)
        for letter in word:
            value = (value ^ ord(letter)) * int(FNV_PRIME) % 2**64
        hashes.append(value)
    return np.array(hashes, np.uint64)


@njit(cache=True, nogil=True)
def _table_size(entries):  # type: ignore[no-untyped-def]
    size = 16
    while size < 2 * entries:
        size *= 2
    return size


@njit(cache=True, nogil=True, inline="always")
def _slot(keys, stamps, stamp, mask, key):  # type: ignore[no-untyped-def]
    """Where `key` is, or the free place where it belongs. A stamp says which use of the table an entry is of, so nothing is ever cleared."""
    slot = np.int64(key & mask)
    while stamps[slot] == stamp and keys[slot] != key:
        slot = (slot + 1) & np.int64(mask)
    return slot


@njit(cache=True, nogil=True)
def _count_words(codes, starts, flags, stop_hashes, ngrams, counts):  # type: ignore[no-untyped-def]
    longest = 0
    for d in range(len(starts) - 1):
        longest = max(longest, starts[d + 1] - starts[d])
    most = longest // 2 + 2
    hashes = np.empty(most, np.uint64)
    ends = np.empty(most, np.int64)  # characters in the words so far
    prefix = np.empty(most, np.uint64)  # polynomial hash of the words so far
    places = np.empty(most, np.int64)
    slots = np.empty(most, np.int32)
    table = (
        np.empty(_table_size(most) if ngrams else 1, np.uint64),
        np.zeros(_table_size(most) if ngrams else 1, np.int32),
    )
    seen = np.empty(len(table[0]), np.int32)
    firsts = np.empty(len(table[0]), np.int32)
    stamp = 0
    for d in range(len(starts) - 1):
        count = _scan_words(codes, starts[d], starts[d + 1], flags, stop_hashes, hashes, ends, counts[d])
        if not ngrams or count < 2:
            continue
        prefix[0] = 0
        for i in range(count):
            prefix[i + 1] = prefix[i] * NGRAM_BASE + mix(hashes[i])
        # An n-gram can occur twice only where the shorter ones that it starts and ends with do, so each length looks at fewer places.
        candidates = count - 1
        for i in range(candidates):
            places[i] = i
        for n in range(2, 11):
            stamp += 2
            candidates = _repeated(prefix, count, n, places, candidates, slots, table, seen, firsts, stamp)
            if candidates == 0:
                break
            if n <= 4:
                chars = _top_ngram(ends, n, places, candidates, slots, seen, firsts)
            else:
                chars = _duplicate_ngrams(ends, n, places, candidates, slots, table, stamp)
            counts[d, len(WORD_COUNTS) + n - 2] = chars
            kept = 0
            for i in range(candidates - 1):
                if places[i + 1] == places[i] + 1:
                    places[kept] = places[i]
                    kept += 1
            candidates = kept


@njit(cache=True, nogil=True)
def _scan_words(codes, start, end, flags, stop_hashes, hashes, ends, row):  # type: ignore[no-untyped-def]
    words = real_words = real_chars = number_signs = ellipses = letter_words = 0
    stops = 0
    dots = 0
    kinds = 0
    begin = start
    value = FNV_OFFSET
    ends[0] = 0
    for i in range(start, end + 1):
        code = np.int64(codes[i]) if i < end else NEWLINE
        kind = flags[code]
        if code == DOT:
            dots += 1
            if dots == 3:
                ellipses += 1
                dots = 0
        else:
            dots = 0
            if code == HASH:
                number_signs += 1
            elif code == ELLIPSIS:
                ellipses += 1
        if not kind & SPACE:
            value = (value ^ np.uint64(code)) * FNV_PRIME
            kinds |= kind
            continue
        if i > begin:
            hashes[words] = value
            ends[words + 1] = ends[words] + i - begin
            words += 1
            if kinds & WORD:
                real_words += 1
                real_chars += i - begin
            if kinds & LETTER:
                letter_words += 1
            if i - begin <= 4:
                for s in range(len(stop_hashes)):
                    if value == stop_hashes[s]:
                        stops |= 1 << s
        begin = i + 1
        value = FNV_OFFSET
        kinds = 0
    different = 0
    while stops:
        different += stops & 1
        stops >>= 1
    row[0], row[1], row[2], row[3], row[4], row[5], row[6] = (
        words,
        real_words,
        real_chars,
        number_signs,
        ellipses,
        letter_words,
        different,
    )
    return words


@njit(cache=True, nogil=True)
def _power(n):  # type: ignore[no-untyped-def]
    value = np.uint64(1)
    for _ in range(n):
        value = value * NGRAM_BASE
    return value


@njit(cache=True, nogil=True)
def _repeated(prefix, count, n, places, candidates, slots, table, seen, firsts, stamp):  # type: ignore[no-untyped-def]
    """Leaves in `places` the starts of n-grams that occur twice or more, with their slots in the table; returns how many."""
    keys, stamps = table
    power = _power(n)
    mask = np.uint64(_table_size(candidates) - 1)
    for c in range(candidates):
        i = places[c]
        if i + n > count:
            candidates = c
            break
        key = mix(prefix[i + n] - prefix[i] * power)
        slot = _slot(keys, stamps, stamp, mask, key)
        slots[c] = slot
        if stamps[slot] != stamp:
            stamps[slot], keys[slot], seen[slot], firsts[slot] = stamp, key, 1, i
        else:
            seen[slot] += 1
    kept = 0
    for c in range(candidates):
        if seen[slots[c]] > 1:
            places[kept], slots[kept] = places[c], slots[c]
            kept += 1
    return kept


@njit(cache=True, nogil=True)
def _top_ngram(ends, n, places, candidates, slots, seen, firsts):  # type: ignore[no-untyped-def]
    best_count, best_first = 0, 0
    for c in range(candidates):  # in order of place, so the earliest of equals wins
        if seen[slots[c]] > best_count:
            best_count, best_first = seen[slots[c]], firsts[slots[c]]
    return best_count * (ends[best_first + n] - ends[best_first] + n - 1)


@njit(cache=True, nogil=True)
def _duplicate_ngrams(ends, n, places, candidates, slots, table, stamp):  # type: ignore[no-untyped-def]
    _, stamps = table
    chars = 0
    free = 0  # the first word that no counted n-gram covers
    for c in range(candidates):
        i, slot = places[c], slots[c]
        if i < free:
            continue
        if stamps[slot] == stamp + 1:
            chars += ends[i + n] - ends[i]
            free = i + n
        else:
            stamps[slot] = stamp + 1
    return chars


@njit(cache=True, nogil=True)
def _strip(codes, start, end, flags):  # type: ignore[no-untyped-def]
    while start < end and flags[codes[start]] & SPACE:
        start += 1
    while end > start and flags[codes[end - 1]] & SPACE:
        end -= 1
    return start, end


@njit(cache=True, nogil=True)
def _add(codes, start, end, keys, stamps, stamp, mask):  # type: ignore[no-untyped-def]
    """Adds a piece of text to the table; True when it was there already."""
    value = FNV_OFFSET
    for i in range(start, end):
        value = (value ^ np.uint64(codes[i])) * FNV_PRIME
    key = mix(value)
    slot = _slot(keys, stamps, stamp, mask, key)
    if stamps[slot] == stamp:
        return True
    stamps[slot], keys[slot] = stamp, key
    return False


@njit(cache=True, nogil=True)
def _count_lines(codes, starts, flags, short_line_chars, counts):  # type: ignore[no-untyped-def]
    most = 0
    for d in range(len(starts) - 1):
        newlines = 0
        for i in range(starts[d], starts[d + 1]):
            newlines += codes[i] == NEWLINE
        counts[d, 10] = newlines
        most = max(most, newlines + 1)
    keys = np.empty(_table_size(most), np.uint64)
    stamps = np.zeros(len(keys), np.int64)
    stamp = 0
    for d in range(len(starts) - 1):
        start, end = starts[d], starts[d + 1]
        mask = np.uint64(_table_size(counts[d, 10] + 1) - 1)
        stamp += 2
        begin = paragraph = start
        for i in range(start, end + 1):
            if i < end and codes[i] != NEWLINE:
                continue
            first, last = _strip(codes, begin, i, flags)
            if first < last:
                counts[d, 0] += 1
                if codes[first] == BULLET or codes[first] == DASH:
                    counts[d, 1] += 1
                dots = (
                    last - first >= 3 and codes[last - 1] == DOT and codes[last - 2] == DOT and codes[last - 3] == DOT
                )
                if dots or codes[last - 1] == ELLIPSIS:
                    counts[d, 2] += 1
                if flags[codes[last - 1]] & TERMINAL:
                    counts[d, 3] += 1
                if last - first <= short_line_chars:
                    counts[d, 4] += 1
                if _add(codes, first, last, keys, stamps, stamp, mask):
                    counts[d, 5] += 1
                    counts[d, 6] += last - first
            begin = i + 1
        stamp += 1
        for i in range(start, end + 1):
            if i < end and not (codes[i] == NEWLINE and i + 1 < end and codes[i + 1] == NEWLINE):
                continue
            first, last = _strip(codes, paragraph, i, flags)
            if first < last:
                counts[d, 7] += 1
                if _add(codes, first, last, keys, stamps, stamp, mask):
                    counts[d, 8] += 1
                    counts[d, 9] += last - first
            paragraph = i + 1


@njit(cache=True, nogil=True)
def _find_lines(codes, starts, flags, rows, firsts):  # type: ignore[no-untyped-def]
    count = 0
    for d in range(len(starts) - 1):
        firsts[d] = count
        begin = starts[d]
        for i in range(starts[d], starts[d + 1] + 1):
            if i < starts[d + 1] and codes[i] != NEWLINE:
                continue
            first, last = _strip(codes, begin, i, flags)
            begin = i + 1
            if first == last:
                continue
            words = longest = sentences = 0
            word = first
            tail = False  # text after the last sentence end
            for k in range(first, last + 1):
                if k == last or flags[codes[k]] & SPACE:
                    if k > word:
                        words += 1
                        longest = max(longest, k - word)
                        back = k - 1
                        while back > word and flags[codes[back]] & CLOSER:
                            back -= 1
                        if flags[codes[back]] & SENTENCE:
                            sentences += 1
                            tail = False
                        else:
                            tail = True
                    word = k + 1
            terminal = 1 if flags[codes[last - 1]] & TERMINAL else 0
            rows[count, 0], rows[count, 1] = first - starts[d], last - starts[d]
            rows[count, 2], rows[count, 3], rows[count, 4], rows[count, 5] = (
                words,
                longest,
                terminal,
                sentences + (1 if tail else 0),
            )
            count += 1
    firsts[len(starts) - 1] = count
    return count
