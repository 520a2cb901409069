"""The compiled scan of a batch: one pass over its characters finds the words, one over the words finds the lines.

`tests/corpus/reference.py` defines the same counts in plain Python.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numba import njit

from ..characters import (
    ANCHOR,
    ANCHORS,
    CLOSER,
    LETTER,
    MARK,
    SENTENCE,
    SPACE,
    TERMINAL,
    WORD,
    character_tables,
    pack_groups,
)
from ..minhash import COMBINE, FNV_OFFSET, FNV_PRIME, longest_text
from .counts import (
    BEGIN,
    BULLETS,
    ELLIPSIS_LINES,
    END,
    FOUND,
    IS_TERMINAL,
    LINE_WORDS,
    LINES,
    LONGEST_WORD,
    NEWLINES,
    PARAGRAPHS,
    SAME_LINE_CHARS,
    SAME_LINES,
    SAME_PARAGRAPH_CHARS,
    SAME_PARAGRAPHS,
    SENTENCES,
    SHORT_LINES,
    TERMINAL_LINES,
    WORD_COUNTS,
    Group,
    Scan,
    no_counts,
)
from .ngrams import count_ngrams, repeats, table_size

STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
POLICY_PHRASES = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")
PHRASES = ("lorem ipsum", "javascript", *POLICY_PHRASES)
# The bits of phrases and marks that a text or a line can have.
LOREM_IPSUM = 1
JAVASCRIPT = 2
POLICY = sum(4 << i for i in range(len(POLICY_PHRASES)))
CURLY_BRACKET = 1 << 16
CITATION = 1 << 17  # a possible one: the regular expression decides
DOT, NEWLINE, HASH, ELLIPSIS, CURLY = ord("."), ord("\n"), ord("#"), ord("…"), ord("{")
BULLET, DASH, CLOSING, EDIT, CITE = ord("•"), ord("-"), ord("]"), ord("e"), ord("c")


def scan(texts: list[str], ngrams: bool, short_line_chars: int) -> Scan:
    """Return the counts of each text, those of n-grams only if asked for, and its lines."""
    counts = no_counts(len(texts))
    counts.chars[:] = np.fromiter(map(len, texts), np.int64, len(texts))
    text_bits = np.zeros(len(texts), np.int64)
    groups = []
    tables = character_tables()
    for places, packed in pack_groups(texts):
        _, words, lines = no_counts(len(places))
        bits = np.zeros(len(places), np.int64)
        room = int(np.count_nonzero(packed.codes == NEWLINE)) + len(places)
        rows = np.empty((room, 7), np.int32)
        hashes = np.empty(room, np.uint64)
        firsts = np.zeros(len(places) + 1, np.int64)
        phrases = _phrases()
        total = _scan(
            packed.codes,
            packed.starts,
            tables.flags,
            tables.lower,
            _stop_hashes(),
            phrases,
            ngrams,
            short_line_chars,
            words,
            lines,
            bits,
            rows,
            hashes,
            firsts,
        )
        counts.words[places] = words
        counts.lines[places] = lines
        text_bits[places] = bits
        groups.append(
            Group(places=places, packed=packed, rows=rows[:total].copy(), hashes=hashes[:total].copy(), firsts=firsts)
        )
    return Scan(counts, text_bits, groups)


@lru_cache(maxsize=1)
def _stop_hashes() -> np.ndarray:
    hashes = []
    for word in STOP_WORDS:
        value = int(FNV_OFFSET)
        for letter in word:
            value = (value ^ ord(letter)) * int(FNV_PRIME) % 2**64
        hashes.append(value)
    return np.array(hashes, np.uint64)


@lru_cache(maxsize=1)
def _phrases() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return each phrase's letters, length and anchor index."""
    letters = np.zeros((len(PHRASES), max(map(len, PHRASES))), np.uint32)
    for i, phrase in enumerate(PHRASES):
        letters[i, : len(phrase)] = [ord(letter) for letter in phrase]
    anchors = [min(phrase.index(anchor) for anchor in ANCHORS if anchor in phrase) for phrase in PHRASES]
    return letters, np.array(list(map(len, PHRASES)), np.int64), np.array(anchors, np.int64)


@njit(cache=True, nogil=True)
def _phrases_at(codes, start, end, i, lower, phrases):  # type: ignore[no-untyped-def]
    """Return the bits of the phrases whose anchor is at `i`."""
    letters, lengths, anchors = phrases
    bits = 0
    this = lower[codes[i]]
    for p in range(len(lengths)):
        anchor = anchors[p]
        if letters[p, anchor] != this:
            continue
        begin = i - anchor
        if begin < start or begin + lengths[p] > end:
            continue
        k = 0
        while k < lengths[p] and lower[codes[begin + lengths[p] - 1 - k]] == letters[p, lengths[p] - 1 - k]:
            k += 1
        if k == lengths[p]:
            bits |= 1 << p
    return bits


@njit(cache=True, nogil=True)
def _scan(  # type: ignore[no-untyped-def]
    codes,
    starts,
    flags,
    lower,
    stop_hashes,
    phrases,
    ngrams,
    short_line_chars,
    word_counts,
    line_counts,
    found,
    rows,
    line_hashes,
    firsts,
):
    most = longest_text(starts) // 2 + 2
    # For each word: its hash, the characters of all words up to it, where it begins, and the bits found in it.
    words = (np.empty(most, np.uint64), np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.int32))
    room = table_size(most)
    prefix, places, slots = np.empty(most, np.uint64), np.empty(most, np.int64), np.empty(most, np.int32)
    keys, seen, place_of = np.empty(room, np.uint64), np.empty(room, np.int32), np.empty(room, np.int32)
    chars = np.empty(most, np.int64)
    paragraphs = (np.empty(most, np.uint64), np.empty(most, np.int64))  # hashes, characters
    total = 0
    for d in range(len(starts) - 1):
        firsts[d] = total
        start, end = starts[d], starts[d + 1]
        count, found[d] = _scan_words(codes, start, end, flags, lower, stop_hashes, phrases, words, word_counts[d])
        _scan_lines(
            codes,
            start,
            end,
            flags,
            short_line_chars,
            words,
            count,
            paragraphs,
            line_counts[d],
            rows[total:],
            line_hashes[total:],
        )
        lines = line_counts[d, LINES]
        for i in range(lines):
            chars[i] = rows[total + i, END] - rows[total + i, BEGIN]
        same = repeats(line_hashes[total:], chars, lines, keys)
        line_counts[d, SAME_LINES], line_counts[d, SAME_LINE_CHARS] = same
        same = repeats(paragraphs[0], paragraphs[1], line_counts[d, PARAGRAPHS], keys)
        line_counts[d, SAME_PARAGRAPHS], line_counts[d, SAME_PARAGRAPH_CHARS] = same
        total += lines
        if ngrams and count > 1:
            row = word_counts[d, len(WORD_COUNTS) :]
            count_ngrams(words[0], words[1], count, prefix, places, slots, keys, seen, place_of, row)
    firsts[len(starts) - 1] = total
    return total


@njit(cache=True, nogil=True)
def _end_line(codes, start, flags, short_line_chars, row, line_row):  # type: ignore[no-untyped-def]
    """Count what only a complete line shows, and turn `row`'s positions in `codes` into positions in the text."""
    first, last, size = np.int64(codes[row[BEGIN]]), np.int64(codes[row[END] - 1]), row[END] - row[BEGIN]
    dots = size >= 3 and last == DOT and codes[row[END] - 2] == DOT and codes[row[END] - 3] == DOT
    row[IS_TERMINAL] = 0 if not flags[last] & TERMINAL else 1 if dots else 2
    line_row[BULLETS] += first in (BULLET, DASH)
    line_row[ELLIPSIS_LINES] += dots or last == ELLIPSIS
    line_row[TERMINAL_LINES] += row[IS_TERMINAL] > 0
    line_row[SHORT_LINES] += size <= short_line_chars
    row[BEGIN] -= start
    row[END] -= start


@njit(cache=True, nogil=True)
def _scan_words(codes, start, end, flags, lower, stop_hashes, phrases, words, row):  # type: ignore[no-untyped-def]
    """Fill `words` and the counts of `row`; return the number of words and the bits found in them."""
    hashes, ends, begins, found_in = words
    count = real_words = real_chars = number_signs = ellipses = letter_words = stops = dots = 0
    found = word_found = 0
    last_dot = start - 2
    ends[0] = 0
    begin = start
    value = FNV_OFFSET
    kinds = 0
    for i in range(start, end + 1):
        code = np.int64(codes[i]) if i < end else NEWLINE
        kind = flags[code]
        if not kind & SPACE:
            value = (value ^ np.uint64(code)) * FNV_PRIME
            kinds |= kind
            if not kind & (MARK | ANCHOR):
                continue
            if kind & ANCHOR:
                word_found |= _phrases_at(codes, start, end, i, lower, phrases)
            elif code == DOT:
                dots = dots + 1 if last_dot == i - 1 else 1
                last_dot = i
                if dots == 3:
                    ellipses += 1
                    dots = 0
            elif code == HASH:
                number_signs += 1
            elif code == ELLIPSIS:
                ellipses += 1
            else:
                word_found |= _bracket(codes, end, i, flags)
            continue
        if i > begin:
            hashes[count], begins[count], found_in[count] = value, begin, word_found
            ends[count + 1] = ends[count] + i - begin
            count += 1
            if kinds & WORD:
                real_words += 1
                real_chars += i - begin
            if kinds & LETTER:
                letter_words += 1
            if i - begin <= 4:
                for s in range(len(stop_hashes)):
                    if value == stop_hashes[s]:
                        stops |= 1 << s
            found |= word_found
            value, kinds, word_found = FNV_OFFSET, 0, 0
        begin = i + 1
    row[0], row[1], row[2], row[3] = count, real_words, real_chars, number_signs
    row[4], row[5] = ellipses, letter_words
    for s in range(len(stop_hashes)):
        row[6] += (stops >> s) & 1
    return count, found


@njit(cache=True, nogil=True)
def _bracket(codes, end, i, flags):  # type: ignore[no-untyped-def]
    """Return the bit of the bracket at `i`.

    It is "{", or a "[" that may begin a citation: before a digit, "edit", "citation needed" or "]".
    """
    if codes[i] == CURLY:
        return CURLY_BRACKET
    if i + 1 == end:
        return 0
    following = np.int64(codes[i + 1])
    digit = (flags[following] & (WORD | LETTER)) == WORD
    return CITATION if digit or following in (CLOSING, EDIT, CITE) else 0


@njit(cache=True, nogil=True)
def _ends_sentence(codes, begin, end, flags):  # type: ignore[no-untyped-def]
    """Return whether the word ends a sentence, ignoring quotes and brackets that it closes."""
    last = end - 1
    while last > begin and flags[codes[last]] & CLOSER:
        last -= 1
    return bool(flags[codes[last]] & SENTENCE)


@njit(cache=True, nogil=True)
def _scan_lines(  # type: ignore[no-untyped-def]
    codes, start, end, flags, short_line_chars, words, count, paragraph_room, line_row, rows, line_hashes
):
    """Join words, with the white space between them, to lines and paragraphs. Fills the last four arguments."""
    hashes, ends, begins, found_in = words
    lines = line_words = line_begin = longest = sentences = tail = line_found = 0
    line_hash = kept_line_hash = np.uint64(0)
    paragraphs = paragraph_begin = newlines = 0
    paragraph_hash = kept_paragraph_hash = np.uint64(0)
    in_paragraph = False
    word_end = start
    for w in range(count + 1):
        for i in range(word_end, begins[w] if w < count else end + 1):
            code = np.uint64(codes[i]) if i < end else np.uint64(NEWLINE)
            paragraph_hash = paragraph_hash * COMBINE + code
            if code != NEWLINE:
                line_hash = line_hash * COMBINE + code
                continue
            newlines += i < end
            if line_words:
                row = rows[lines]
                row[BEGIN], row[END], row[LINE_WORDS], row[LONGEST_WORD] = line_begin, word_end, line_words, longest
                row[SENTENCES], row[FOUND] = sentences + tail, line_found
                _end_line(codes, start, flags, short_line_chars, row, line_row)
                line_hashes[lines] = kept_line_hash
                lines += 1
                line_words = longest = sentences = line_found = 0
            if in_paragraph and (i == end or (i + 1 < end and codes[i + 1] == NEWLINE)):
                paragraph_room[0][paragraphs] = kept_paragraph_hash
                paragraph_room[1][paragraphs] = word_end - paragraph_begin
                paragraphs += 1
                in_paragraph = False
        if w == count:
            break
        begin = begins[w]
        word_end = begin + ends[w + 1] - ends[w]
        if not line_words:
            line_begin, line_hash = begin, np.uint64(0)
        if not in_paragraph:
            paragraph_begin, paragraph_hash, in_paragraph = begin, np.uint64(0), True
        line_words += 1
        longest = max(longest, word_end - begin)
        tail = 0 if _ends_sentence(codes, begin, word_end, flags) else 1
        sentences += 1 - tail
        line_found |= found_in[w]
        kept_line_hash = line_hash = line_hash * COMBINE + hashes[w]
        kept_paragraph_hash = paragraph_hash = paragraph_hash * COMBINE + hashes[w]
    line_row[LINES], line_row[PARAGRAPHS], line_row[NEWLINES] = lines, paragraphs, newlines
