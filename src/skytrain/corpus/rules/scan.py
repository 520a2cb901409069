"""What the quality rules look at, compiled: one pass over the characters of a batch counts its words and finds its lines.

`reference.py` says the same in plain Python, and is what these numbers mean.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

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
    Packed,
    character_tables,
    pack_groups,
)
from ..minhash import COMBINE, FNV_OFFSET, FNV_PRIME
from .ngrams import DUPLICATE_NGRAMS, TOP_NGRAMS, count_ngrams, repeats, table_size
from .reference import POLICY_PHRASES

STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
PHRASES = ("lorem ipsum", "javascript", *POLICY_PHRASES)
LOREM_IPSUM, JAVASCRIPT, POLICY = 1, 2, sum(4 << i for i in range(len(POLICY_PHRASES)))  # bits of the phrases
CURLY_BRACKET, CITATION = 1 << 16, 1 << 17  # a citation perhaps: the expression decides
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
LINES, BULLETS, ELLIPSIS_LINES, TERMINAL_LINES, SHORT_LINES, SAME_LINES, SAME_LINE_CHARS = range(7)
PARAGRAPHS, SAME_PARAGRAPHS, SAME_PARAGRAPH_CHARS, NEWLINES = range(7, 11)
# Columns of a line: where it begins and ends in its text without the white space around it, its words, and so on.
BEGIN, END, LINE_WORDS, LONGEST_WORD, IS_TERMINAL, SENTENCES, FOUND = range(7)
DOT, NEWLINE, HASH, ELLIPSIS, CURLY, SQUARE = ord("."), ord("\n"), ord("#"), ord("…"), ord("{"), ord("[")
BULLET, DASH, CLOSING, EDIT, CITE = ord("•"), ord("-"), ord("]"), ord("e"), ord("c")


class Group(NamedTuple):
    """Texts that were scanned together, and every line of theirs that is not blank: rows and hashes, from `firsts[i]` on for text i."""

    places: list[int]  # -1 for one that nobody asks about any more
    packed: Packed
    rows: np.ndarray  # int32, the columns above
    hashes: np.ndarray
    firsts: np.ndarray


class Counts(NamedTuple):
    """What is known about a batch; `chars` is the length of each text."""

    chars: np.ndarray
    words: np.ndarray  # WORD_COUNTS, then NGRAM_COUNTS
    lines: np.ndarray  # LINE_COUNTS

    def rows(self, places: list[int]) -> Counts:
        return Counts(self.chars[places], self.words[places], self.lines[places])

    def __getitem__(self, name: str) -> np.ndarray:  # type: ignore[override]
        if name in WORD_COUNTS:
            return self.words[:, WORD_COUNTS.index(name)]
        if name in NGRAM_COUNTS:
            return self.words[:, len(WORD_COUNTS) + NGRAM_COUNTS.index(name)]
        return self.lines[:, LINE_COUNTS.index(name)]


class Scan(NamedTuple):
    counts: Counts
    found: np.ndarray  # phrases and marks in each text, as bits
    groups: list[Group]

    def of(self, rows: list[int]) -> Scan:
        """The same of some of the texts, which then are numbered by their place in `rows`; all others are left out."""
        place_of = np.full(len(self.found), -1)
        place_of[rows] = np.arange(len(rows))
        groups = [group._replace(places=place_of[group.places].tolist()) for group in self.groups]
        return Scan(self.counts.rows(rows), self.found[rows], groups)


def no_counts(texts: int) -> Counts:
    words = np.zeros((texts, len(WORD_COUNTS) + len(NGRAM_COUNTS)), np.int64)
    return Counts(np.zeros(texts, np.int64), words, np.zeros((texts, len(LINE_COUNTS)), np.int64))


def scan(texts: list[str], ngrams: bool, short_line_chars: int) -> Scan:
    """Counts of each text (those of n-grams are zeros unless asked for), and its lines."""
    counts = no_counts(len(texts))
    counts.chars[:] = np.fromiter(map(len, texts), np.int64, len(texts))
    found = np.zeros(len(texts), np.int64)
    groups = []
    tables = character_tables()
    for places, packed in pack_groups(texts):
        _, words, lines = no_counts(len(places))
        bits = np.zeros(len(places), np.int64)
        room = int(np.count_nonzero(packed.codes == NEWLINE)) + len(places)
        rows, hashes = np.empty((room, 7), np.int32), np.empty(room, np.uint64)
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
        counts.words[places], counts.lines[places], found[places] = words, lines, bits
        groups.append(Group(places, packed, rows[:total].copy(), hashes[:total].copy(), firsts))
    return Scan(counts, found, groups)


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
    """Their letters, their lengths, and where the letter is that each is looked for at."""
    letters = np.zeros((len(PHRASES), max(map(len, PHRASES))), np.uint32)
    for i, phrase in enumerate(PHRASES):
        letters[i, : len(phrase)] = [ord(letter) for letter in phrase]
    anchors = [min(phrase.index(anchor) for anchor in ANCHORS if anchor in phrase) for phrase in PHRASES]
    return letters, np.array(list(map(len, PHRASES)), np.int64), np.array(anchors, np.int64)


@njit(cache=True, nogil=True)
def _phrases_at(codes, start, end, i, lower, phrases):  # type: ignore[no-untyped-def]
    """The bits of the phrases that have their anchor at `i`."""
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
    longest = 0
    for d in range(len(starts) - 1):
        longest = max(longest, starts[d + 1] - starts[d])
    most = longest // 2 + 2
    words = (np.empty(most, np.uint64), np.empty(most, np.int64))  # hashes; characters in the words so far
    room = table_size(most)
    prefix, places, slots = np.empty(most, np.uint64), np.empty(most, np.int64), np.empty(most, np.int32)
    keys, seen, place_of = np.empty(room, np.uint64), np.empty(room, np.int32), np.empty(room, np.int32)
    chars = np.empty(most, np.int64)
    paragraphs = (np.empty(most, np.uint64), np.empty(most, np.int64))  # hashes, characters
    total = 0
    for d in range(len(starts) - 1):
        firsts[d] = total
        count, found[d] = _scan_text(
            codes,
            starts[d],
            starts[d + 1],
            flags,
            lower,
            stop_hashes,
            phrases,
            short_line_chars,
            words,
            paragraphs,
            word_counts[d],
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
    """What only the whole line tells; `row` has positions among the codes, and leaves with positions in the text."""
    first, last, size = np.int64(codes[row[BEGIN]]), np.int64(codes[row[END] - 1]), row[END] - row[BEGIN]
    dots = size >= 3 and last == DOT and codes[row[END] - 2] == DOT and codes[row[END] - 3] == DOT
    row[IS_TERMINAL] = 1 if flags[last] & TERMINAL else 0
    line_row[BULLETS] += first in (BULLET, DASH)
    line_row[ELLIPSIS_LINES] += dots or last == ELLIPSIS
    line_row[TERMINAL_LINES] += row[IS_TERMINAL]
    line_row[SHORT_LINES] += size <= short_line_chars
    row[BEGIN] -= start
    row[END] -= start


@njit(cache=True, nogil=True)
def _scan_text(  # type: ignore[no-untyped-def]
    codes,
    start,
    end,
    flags,
    lower,
    stop_hashes,
    phrases,
    short_line_chars,
    word_room,
    paragraph_room,
    word_row,
    line_row,
    rows,
    line_hashes,
):
    """Fills all that follows `short_line_chars`; returns the number of words and the bits of what was found."""
    hashes, ends = word_room
    words = real_words = real_chars = number_signs = ellipses = letter_words = stops = dots = 0
    found = line_found = 0
    last_dot = start - 2
    ends[0] = 0
    begin = start  # of the word
    value = FNV_OFFSET
    kinds = 0
    lines = line_words = line_begin = line_end = longest = sentences = tail = 0
    line_hash = kept_line_hash = np.uint64(0)
    paragraphs = paragraph_begin = newlines = 0
    paragraph_hash = kept_paragraph_hash = np.uint64(0)
    in_paragraph = False
    for i in range(start, end + 1):
        code = np.int64(codes[i]) if i < end else NEWLINE
        kind = flags[code]
        if not kind & (SPACE | MARK | ANCHOR):
            value = (value ^ np.uint64(code)) * FNV_PRIME
            kinds |= kind
            continue
        if not kind & SPACE:
            if kind & ANCHOR:
                line_found |= _phrases_at(codes, start, end, i, lower, phrases)
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
            elif code == CURLY:
                found |= CURLY_BRACKET
            elif i + 1 < end:  # what follows "[" in a citation: a digit, "edit", "citation needed" or nothing
                following = np.int64(codes[i + 1])
                digit = (flags[following] & (WORD | LETTER)) == WORD
                if digit or following in (CLOSING, EDIT, CITE):
                    found |= CITATION
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
            if not line_words:
                line_begin, line_hash = begin, np.uint64(0)
            if not in_paragraph:
                paragraph_begin, paragraph_hash, in_paragraph = begin, np.uint64(0), True
            line_words += 1
            line_end = i
            longest = max(longest, i - begin)
            back = i - 1
            while back > begin and flags[codes[back]] & CLOSER:
                back -= 1
            tail = 1
            if flags[codes[back]] & SENTENCE:
                sentences += 1
                tail = 0
            kept_line_hash = line_hash = line_hash * COMBINE + value
            kept_paragraph_hash = paragraph_hash = paragraph_hash * COMBINE + value
            value = FNV_OFFSET
            kinds = 0
        begin = i + 1
        paragraph_hash = paragraph_hash * COMBINE + np.uint64(code)
        if code != NEWLINE:
            line_hash = line_hash * COMBINE + np.uint64(code)
            continue
        newlines += i < end
        if line_words:
            row = rows[lines]
            row[BEGIN], row[END], row[LINE_WORDS], row[LONGEST_WORD] = line_begin, line_end, line_words, longest
            row[SENTENCES], row[FOUND] = sentences + tail, line_found
            _end_line(codes, start, flags, short_line_chars, row, line_row)
            line_hashes[lines] = kept_line_hash
            lines += 1
            found |= line_found
            line_words = longest = sentences = line_found = 0
        if in_paragraph and (i == end or (i + 1 < end and codes[i + 1] == NEWLINE)):
            paragraph_room[0][paragraphs] = kept_paragraph_hash
            paragraph_room[1][paragraphs] = line_end - paragraph_begin
            paragraphs += 1
            in_paragraph = False
    different = 0
    while stops:
        different += stops & 1
        stops >>= 1
    word_row[0], word_row[1], word_row[2], word_row[3] = words, real_words, real_chars, number_signs
    word_row[4], word_row[5], word_row[6] = ellipses, letter_words, different
    line_row[LINES], line_row[PARAGRAPHS], line_row[NEWLINES] = lines, paragraphs, newlines
    return words, found
