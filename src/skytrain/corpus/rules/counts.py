"""The result of one scan of a batch, shared by the quality rules: counts of each text, and its lines."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..characters import Packed
from .registry import Reasons

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
LINES, BULLETS, ELLIPSIS_LINES, TERMINAL_LINES, SHORT_LINES, SAME_LINES, SAME_LINE_CHARS = range(7)
PARAGRAPHS, SAME_PARAGRAPHS, SAME_PARAGRAPH_CHARS, NEWLINES = range(7, 11)
# Columns of a line. BEGIN and END are positions in its text, without the white space around it. IS_TERMINAL is 2, or 1
# if the mark is the last of three dots, which C4 does not count. FOUND has the bits of phrases and marks.
BEGIN, END, LINE_WORDS, LONGEST_WORD, IS_TERMINAL, SENTENCES, FOUND = range(7)


class Group(NamedTuple):
    """Texts that were scanned together, and their lines that are not blank; text i's begin at row `firsts[i]`."""

    places: list[int]  # in the batch; -1 for a text that was removed
    packed: Packed
    rows: np.ndarray  # int32, the columns above
    hashes: np.ndarray
    firsts: np.ndarray


class Counts(NamedTuple):
    """The counts of a batch; `chars` is the length of each text."""

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
    """The counts of a batch, the phrases found in it, and its lines."""

    counts: Counts
    bits: np.ndarray  # the phrases and marks found in each text
    groups: list[Group]

    def of(self, rows: list[int]) -> Scan:
        """Return the scan of only the texts `rows`, which are then numbered by their place in `rows`."""
        place_of = np.full(len(self.bits), -1)
        place_of[rows] = np.arange(len(rows))
        groups = [group._replace(places=place_of[group.places].tolist()) for group in self.groups]
        return Scan(self.counts.rows(rows), self.bits[rows], groups)


def no_counts(texts: int) -> Counts:
    words = np.zeros((texts, len(WORD_COUNTS) + len(NGRAM_COUNTS)), np.int64)
    return Counts(np.zeros(texts, np.int64), words, np.zeros((texts, len(LINE_COUNTS)), np.int64))


def share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return part / np.maximum(1, whole)


def first_failed(checks: dict[str, np.ndarray], size: int) -> Reasons:
    """Return for each text the first check that failed, or None."""
    names = list(checks)
    failed = np.stack(list(checks.values())) if size else np.zeros((len(names), 0), bool)
    first = np.where(failed.any(axis=0), failed.argmax(axis=0), len(names))
    return [[*names, None][i] for i in first.tolist()]
