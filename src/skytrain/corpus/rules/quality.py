"""Gopher, C4 and FineWeb rules over a batch of texts. Each returns, text by text, the check that failed or None."""

from __future__ import annotations

import re
from typing import Any, NamedTuple, Optional

import numpy as np

from .lines import LineRule, join_lines
from .ngrams import DUPLICATE_NGRAMS, TOP_NGRAMS
from .scan import CITATION, CURLY_BRACKET, JAVASCRIPT, LOREM_IPSUM, POLICY, Counts, Scan, no_counts, scan

Reasons = list[Optional[str]]  # noqa: UP045
CITATIONS = re.compile(r"\[(?:\d*|edit|citation needed)\]")


def count(texts: list[str], ngrams: bool, short_line_chars: int = 30) -> Counts:
    return scan(texts, ngrams, short_line_chars).counts


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


class C4(NamedTuple):
    """The texts without the lines that go, why a document goes, if it does, and what FineWeb counts of the ones that stay."""

    texts: list[str]
    reasons: Reasons
    counts: Counts


def c4(texts: list[str], settings: Any, short_line_chars: int = 30, scanned: Scan | None = None) -> C4:
    """`scanned` is what `scan` found in these very texts, where another rule has asked before."""
    scanned = scanned or scan(texts, False, short_line_chars)
    results = C4(list(texts), [None] * len(texts), no_counts(len(texts)))
    wanted = np.ones(len(texts), bool)
    for name, bit, on in (
        ("curly_bracket", CURLY_BRACKET, settings.curly_bracket),
        ("lorem_ipsum", LOREM_IPSUM, settings.lorem_ipsum),
    ):
        for place in np.flatnonzero((scanned.found & bit) != 0) if on else ():
            results.reasons[place] = name
            wanted[place] = False
    cited = np.flatnonzero(wanted & ((scanned.found & CITATION) != 0)).tolist() if settings.citations else []
    shorter = {place: cut for place in cited if len(cut := CITATIONS.sub("", texts[place])) < len(texts[place])}
    wanted[list(shorter)] = False
    _keep_lines(results, scanned, wanted, range(len(texts)), settings, short_line_chars)
    again = scan(list(shorter.values()), False, short_line_chars)
    _keep_lines(results, again, np.ones(len(shorter), bool), list(shorter), settings, short_line_chars)
    return results


def _keep_lines(
    results: C4, scanned: Scan, wanted: np.ndarray, places: Any, settings: Any, short_line_chars: int
) -> None:
    """`places` of the scanned texts in the results."""
    unwanted = (JAVASCRIPT if settings.javascript_lines else 0) | (POLICY if settings.policy_lines else 0)
    rule = LineRule(settings.min_words_per_line, settings.max_word_chars, settings.terminal_punctuation, unwanted)
    for group in scanned.groups:
        use = np.array(group.places, np.int64) >= 0
        use[use] = wanted[np.array(group.places, np.int64)[use]]
        joined = join_lines(group, use, rule, short_line_chars)
        for k in np.flatnonzero(use).tolist():
            place = places[group.places[k]]
            results.texts[place] = joined.texts[k]
            if joined.sentences[k] < settings.min_sentences:
                results.reasons[place] = "sentences"
        homes = [places[group.places[k]] for k in np.flatnonzero(use).tolist()]
        for whole, part in zip(results.counts, joined.counts):  # noqa: B905
            whole[homes] = part[use]


def _share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return part / np.maximum(1, whole)


def _first(checks: dict[str, np.ndarray], size: int) -> Reasons:
    """For each text, the first check that failed."""
    names = list(checks)
    failed = np.stack(list(checks.values())) if size else np.zeros((len(names), 0), bool)
    first = np.where(failed.any(axis=0), failed.argmax(axis=0), len(names))
    return [[*names, None][i] for i in first.tolist()]
