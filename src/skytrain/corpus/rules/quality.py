"""Gopher, C4 and FineWeb rules over a batch of texts. Each returns, text by text, the check that failed or None."""

from __future__ import annotations

import re
from typing import Any, NamedTuple, Optional

import numpy as np

from ..characters import pack_groups
from .kernels import (
    DUPLICATE_NGRAMS,
    LINE_COUNTS,
    NGRAM_COUNTS,
    TOP_NGRAMS,
    WORD_COUNTS,
    count_lines,
    count_words,
    find_lines,
)
from .reference import POLICY_PHRASES

Reasons = list[Optional[str]]  # noqa: UP045
CITATION = re.compile(r"\[(?:\d*|edit|citation needed)\]")


class Counts(NamedTuple):
    """What is known about a batch; `chars` is the length of each text."""

    chars: np.ndarray
    words: np.ndarray
    lines: np.ndarray

    def rows(self, places: list[int]) -> Counts:
        return Counts(self.chars[places], self.words[places], self.lines[places])

    def __getitem__(self, name: str) -> np.ndarray:  # type: ignore[override]
        if name in WORD_COUNTS:
            return self.words[:, WORD_COUNTS.index(name)]
        if name in NGRAM_COUNTS:
            return self.words[:, len(WORD_COUNTS) + NGRAM_COUNTS.index(name)]
        return self.lines[:, LINE_COUNTS.index(name)]


def count(texts: list[str], ngrams: bool, short_line_chars: int = 30) -> Counts:
    counts = Counts(
        np.fromiter(map(len, texts), np.int64, len(texts)),
        np.zeros((len(texts), len(WORD_COUNTS) + len(NGRAM_COUNTS)), np.int64),
        np.zeros((len(texts), len(LINE_COUNTS)), np.int64),
    )
    for places, packed in pack_groups(texts):
        counts.words[places] = count_words(packed, ngrams)
        counts.lines[places] = count_lines(packed, short_line_chars)
    return counts


def gopher_repetition(counts: Counts, settings: Any) -> Reasons:
    size = np.maximum(1, counts.chars)
    checks = {
        "duplicate_lines": _share(counts["duplicate_lines"], counts["lines"]) > settings.max_duplicate_lines,
        "duplicate_paragraphs": _share(counts["duplicate_paragraphs"], counts["paragraphs"])
        > settings.max_duplicate_paragraphs,
        "duplicate_line_chars": counts["duplicate_line_chars"] / size > settings.max_duplicate_line_chars,
        "duplicate_paragraph_chars": counts["duplicate_paragraph_chars"] / size
        > settings.max_duplicate_paragraph_chars,
    }
    for n, limit in zip(TOP_NGRAMS, settings.max_top_ngram_chars):  # noqa: B905
        checks[f"top_{n}gram"] = counts[f"top_{n}gram_chars"] / size > limit
    for n, limit in zip(DUPLICATE_NGRAMS, settings.max_duplicate_ngram_chars):  # noqa: B905
        checks[f"duplicate_{n}gram"] = counts[f"duplicate_{n}gram_chars"] / size > limit
    return _first(checks, len(counts.chars))


def gopher_quality(counts: Counts, settings: Any) -> Reasons:
    real, words = counts["real_words"], counts["words"]
    mean = _share(counts["real_word_chars"], real)
    checks = {
        "words": (real < settings.min_words) | (real > settings.max_words),
        "mean_word_chars": (mean < settings.min_mean_word_chars) | (mean > settings.max_mean_word_chars),
        "hashes": _share(counts["hashes"], words) > settings.max_hashes_per_word,
        "ellipses": _share(counts["ellipses"], words) > settings.max_ellipses_per_word,
        "bullet_lines": _share(counts["bullet_lines"], counts["lines"]) > settings.max_bullet_lines,
        "ellipsis_lines": _share(counts["ellipsis_lines"], counts["lines"]) > settings.max_ellipsis_lines,
        "letter_words": _share(counts["letter_words"], words) < settings.min_letter_words,
        "stop_words": counts["stop_words"] < settings.min_stop_words,
    }
    return _first(checks, len(counts.chars))


def fineweb(counts: Counts, settings: Any) -> Reasons:
    """`counts` must have been made with this rule's short_line_chars."""
    lines = counts["lines"]
    checks = {
        "empty": lines == 0,
        "terminal_lines": _share(counts["terminal_lines"], lines) < settings.min_terminal_lines,
        "short_lines": _share(counts["short_lines"], lines) > settings.max_short_lines,
        "duplicate_line_chars": _share(counts["duplicate_line_chars"], counts.chars - counts["newlines"])
        > settings.max_duplicate_line_chars,
        "newlines": _share(counts["newlines"], counts["words"]) > settings.max_newlines_per_word,
    }
    return _first(checks, len(lines))


def c4(texts: list[str], settings: Any) -> tuple[list[str], Reasons]:
    """The texts without the lines that go, and why a document goes, if it does."""
    results, reasons = list(texts), [_c4_document(text, settings) for text in texts]
    alive = [i for i, reason in enumerate(reasons) if reason is None]
    cut = [CITATION.sub("", texts[i]) if settings.citations and "[" in texts[i] else texts[i] for i in alive]
    for places, packed in pack_groups(cut):
        rows, firsts = find_lines(packed)
        keep = (rows[:, 3] <= settings.max_word_chars) & (rows[:, 2] >= settings.min_words_per_line)
        if settings.terminal_punctuation:
            keep &= rows[:, 4] == 1
        sentences, spans, kept = rows[:, 5].tolist(), rows[:, :2].tolist(), keep.tolist()
        for k, place in enumerate(places):
            lines = range(int(firsts[k]), int(firsts[k + 1]))
            results[alive[place]], count = _c4_lines(cut[place], lines, spans, kept, sentences, settings)
            if count < settings.min_sentences:
                reasons[alive[place]] = "sentences"
    return results, reasons


def _c4_document(text: str, settings: Any) -> str | None:
    # A letter whose lower case is two letters cannot be part of these words, so str.lower finds what simple_lower would.
    if settings.lorem_ipsum and "lorem ipsum" in text.lower():
        return "lorem_ipsum"
    return "curly_bracket" if settings.curly_bracket and "{" in text else None


def _c4_lines(
    text: str, lines: range, spans: list[list[int]], kept: list[bool], sentences: list[int], settings: Any
) -> tuple[str, int]:
    phrases = [
        *(["javascript"] if settings.javascript_lines else []),
        *(POLICY_PHRASES if settings.policy_lines else []),
    ]
    lowered = text.lower() if phrases else ""
    suspicious = any(phrase in lowered for phrase in phrases)
    good = []
    count = 0
    for line in lines:
        if not kept[line]:
            continue
        start, end = spans[line]
        if suspicious and any(phrase in text[start:end].lower() for phrase in phrases):
            continue
        good.append(text[start:end])
        count += sentences[line]
    return "\n".join(good), count


def _share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return part / np.maximum(1, whole)


def _first(checks: dict[str, np.ndarray], size: int) -> Reasons:
    """For each text, the first check that failed."""
    names = list(checks)
    failed = np.stack(list(checks.values())) if size else np.zeros((len(names), 0), bool)
    first = np.where(failed.any(axis=0), failed.argmax(axis=0), len(names))
    return [[*names, None][i] for i in first.tolist()]
