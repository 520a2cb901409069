"""The lines of texts that C4 keeps, put together again, and what FineWeb counts of them, compiled."""

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
    """Which lines stay."""

    min_words: int
    max_word_chars: int
    terminal: bool  # only those that end in a mark
    unwanted: int  # none with one of these phrases


class Joined(NamedTuple):
    texts: list[str]
    sentences: np.ndarray
    counts: Counts  # of words and lines, for FineWeb


def join_lines(group: Group, wanted: np.ndarray, rule: LineRule, short_line_chars: int) -> Joined:
    """The lines of each wanted text that stay, and an empty text for every other."""
    size = int((np.diff(group.packed.starts) * wanted).sum())
    codes = np.empty(size, group.packed.exact.dtype)
    starts = np.zeros(len(wanted) + 1, np.int64)
    counts, sentences = no_counts(len(wanted)), np.zeros(len(wanted), np.int64)
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
    )
    counts.chars[:] = np.diff(starts)
    return Joined(unpack(codes, starts), sentences, counts)


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
):
    min_words, max_word_chars, only_terminal, unwanted = rule
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
            if row[LONGEST_WORD] > max_word_chars or row[LINE_WORDS] < min_words or row[FOUND] & unwanted:
                continue
            if only_terminal and not row[IS_TERMINAL]:
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
            lines[d, TERMINAL_LINES] += row[IS_TERMINAL]
            lines[d, SHORT_LINES] += row[END] - row[BEGIN] <= short_line_chars
        lines[d, LINES], lines[d, NEWLINES] = kept, max(0, kept - 1)
        lines[d, SAME_LINES], lines[d, SAME_LINE_CHARS] = repeats(kept_hashes, kept_chars, kept, keys)
    starts[len(wanted)] = at
