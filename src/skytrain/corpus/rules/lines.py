"""Compiled: joins the lines of texts that C4 keeps, and counts in them what FineWeb needs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from ..characters import unpack
from .counts import (
    BEGIN,
    END,
    FOUND,
    IS_TERMINAL,
    LINE_WORDS,
    LINES,
    LONGEST_WORD,
    NEWLINES,
    SAME_LINE_CHARS,
    SAME_LINES,
    SENTENCES,
    SHORT_LINES,
    TERMINAL_LINES,
    Counts,
    Group,
    no_counts,
)
from .ngrams import repeats, table_size
from .scan import NEWLINE


class LineRule(NamedTuple):
    """Which lines stay, and which remove their document: those with one of the bits `lorem_ipsum` or `curly_bracket`.

    A line that one check drops is not seen by later ones. The order is that of datatrove's filter: words, mark at the
    end, lorem ipsum, JavaScript, curly bracket, policy.
    """

    min_words: int
    max_word_chars: int
    terminal: bool  # keep only lines that end in a mark; "..." is not one
    lorem_ipsum: int
    javascript: int
    curly_bracket: int
    policy: int


class Joined(NamedTuple):
    """Texts made of the lines that stay."""

    texts: list[str]
    sentences: np.ndarray
    removed_by: np.ndarray  # the bit of the line that removed the document, or 0
    counts: Counts  # of words and lines, for FineWeb


def join_lines(group: Group, wanted: np.ndarray, rule: LineRule, short_line_chars: int) -> Joined:
    """Join the lines of each wanted text that stay. Other texts, and those that a line removes, become empty."""
    size = int((np.diff(group.packed.starts) * wanted).sum())
    codes = np.empty(size, group.packed.exact.dtype)
    starts = np.zeros(len(wanted) + 1, np.int64)
    counts = no_counts(len(wanted))
    sentences = np.zeros(len(wanted), np.int64)
    removed_by = np.zeros(len(wanted), np.int64)
    _join_lines(
        group.packed.exact,
        group.packed.starts,
        group.rows,
        group.hashes,
        group.firsts,
        wanted,
        tuple(rule),
        short_line_chars,
        codes,
        starts,
        counts.words,
        counts.lines,
        sentences,
        removed_by,
    )
    counts.chars[:] = np.diff(starts)
    return Joined(unpack(codes, starts), sentences, removed_by, counts)


@njit(cache=True, nogil=True)
def _join_lines(  # type: ignore[no-untyped-def]
    exact,
    text_starts,
    rows,
    hashes,
    firsts,
    wanted,
    rule,
    short_line_chars,
    codes,
    starts,
    words,
    lines,
    sentences,
    removed_by,
):
    min_words, max_word_chars, only_terminal, lorem_ipsum, javascript, curly_bracket, policy = rule
    most = 1
    for d in range(len(wanted)):
        most = max(most, firsts[d + 1] - firsts[d])
    keys = np.empty(table_size(most), np.uint64)
    kept_hashes, kept_chars = np.empty(most, np.uint64), np.empty(most, np.int64)
    at = 0
    for d in range(len(wanted)):
        starts[d] = at
        if not wanted[d]:
            continue
        kept = 0
        for r in range(firsts[d], firsts[d + 1]):
            row = rows[r]
            if row[LONGEST_WORD] > max_word_chars or row[LINE_WORDS] < min_words:
                continue
            if only_terminal and row[IS_TERMINAL] != 2:
                continue
            if row[FOUND] & lorem_ipsum:
                removed_by[d] = lorem_ipsum
                break
            if row[FOUND] & javascript:
                continue
            if row[FOUND] & curly_bracket:
                removed_by[d] = curly_bracket
                break
            if row[FOUND] & policy:
                continue
            if kept:
                codes[at] = NEWLINE
                at += 1
            for i in range(text_starts[d] + row[BEGIN], text_starts[d] + row[END]):
                codes[at] = exact[i]
                at += 1
            kept_hashes[kept], kept_chars[kept] = hashes[r], row[END] - row[BEGIN]
            kept += 1
            sentences[d] += row[SENTENCES]
            words[d, 0] += row[LINE_WORDS]
            lines[d, TERMINAL_LINES] += row[IS_TERMINAL] > 0
            lines[d, SHORT_LINES] += row[END] - row[BEGIN] <= short_line_chars
        if removed_by[d]:
            at = starts[d]
            continue
        lines[d, LINES], lines[d, NEWLINES] = kept, max(0, kept - 1)
        lines[d, SAME_LINES], lines[d, SAME_LINE_CHARS] = repeats(kept_hashes, kept_chars, kept, keys)
    starts[len(wanted)] = at
