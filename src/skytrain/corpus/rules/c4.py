"""C4's rules: remove lines from documents, then documents that have too little left.

A line that an earlier check dropped cannot remove its document, so `{` in a menu of two words does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .counts import Counts, Scan, no_counts
from .registry import CleaningRule, Reasons, RuleBatch

if TYPE_CHECKING:
    from .lines import Joined, LineRule

CITATIONS = re.compile(r"\[(?:\d*|edit|citation needed)\]")
NO_LIMIT = 2**31 - 1


class C4Result(NamedTuple):
    """Texts without the removed lines, why each document is removed (or None), and the counts that FineWeb needs."""

    texts: list[str]
    reasons: Reasons
    counts: Counts


def c4(texts: list[str], settings: Any, short_line_chars: int = 30, scanned: Scan | None = None) -> C4Result:
    """Drop lines and documents. `scanned` is the scan of these texts, if another rule has made one."""
    from .scan import CITATION, scan  # loads numba

    scanned = scanned or scan(texts, False, short_line_chars)
    results = C4Result(list(texts), [None] * len(texts), no_counts(len(texts)))
    rule = _line_rule(settings)
    cited = np.flatnonzero((scanned.bits & CITATION) != 0).tolist() if settings.citations else []
    cited = [place for place in cited if CITATIONS.search(texts[place])]
    whole = np.ones(len(texts), bool)
    whole[cited] = False
    _keep_lines(results, (scanned, whole, range(len(texts))), rule, settings.min_sentences, short_line_chars)
    # Words are counted with the citations, everything else without them.
    long_enough = _lines_by_words(scanned, ~whole, rule, short_line_chars)
    cut = scan([CITATIONS.sub("", long_enough[place]) for place in cited], False, short_line_chars)
    rule = rule._replace(min_words=0, max_word_chars=NO_LIMIT)
    _keep_lines(results, (cut, np.ones(len(cited), bool), cited), rule, settings.min_sentences, short_line_chars)
    return results


def _line_rule(settings: Any) -> LineRule:
    from .lines import LineRule
    from .scan import CURLY_BRACKET, JAVASCRIPT, LOREM_IPSUM, POLICY

    return LineRule(
        min_words=settings.min_words_per_line,
        max_word_chars=settings.max_word_chars,
        terminal=settings.terminal_punctuation,
        lorem_ipsum=LOREM_IPSUM if settings.lorem_ipsum else 0,
        javascript=JAVASCRIPT if settings.javascript_lines else 0,
        curly_bracket=CURLY_BRACKET if settings.curly_bracket else 0,
        policy=POLICY if settings.policy_lines else 0,
    )


def _joined(
    scanned: Scan, wanted: np.ndarray, rule: LineRule, short_line_chars: int
) -> Iterator[tuple[Joined, list[int], list[int]]]:
    """Yield each group's remaining lines, the indices of its wanted texts, and their places among the scanned texts."""
    from .lines import join_lines

    for group in scanned.groups:
        places = np.array(group.places, np.int64)
        use = places >= 0
        use[use] = wanted[places[use]]
        yield join_lines(group, use, rule, short_line_chars), np.flatnonzero(use).tolist(), places[use].tolist()


def _lines_by_words(scanned: Scan, wanted: np.ndarray, rule: LineRule, short_line_chars: int) -> dict[int, str]:
    """Return for each wanted text its lines that have enough words and no overlong one."""
    rule = rule._replace(terminal=False, lorem_ipsum=0, javascript=0, curly_bracket=0, policy=0)
    texts: dict[int, str] = {}
    for joined, members, places in _joined(scanned, wanted, rule, short_line_chars):
        texts.update(zip(places, [joined.texts[k] for k in members], strict=True))
    return texts


def _keep_lines(
    results: C4Result, some: tuple[Scan, np.ndarray, Any], rule: LineRule, min_sentences: int, short_line_chars: int
) -> None:
    """Put the remaining lines of `some` texts into `results`.

    `some` is their scan, a mask of those to take, and their places in `results`.
    """
    scanned, wanted, places_of = some
    reasons = {rule.lorem_ipsum: "lorem_ipsum", rule.curly_bracket: "curly_bracket"}
    for joined, members, places in _joined(scanned, wanted, rule, short_line_chars):
        targets = [places_of[place] for place in places]
        for k, target in zip(members, targets, strict=True):
            if joined.removed_by[k]:
                results.reasons[target] = reasons[joined.removed_by[k]]
                continue
            results.texts[target] = joined.texts[k]
            if joined.sentences[k] < min_sentences:
                results.reasons[target] = "sentences"
        for whole, part in zip(results.counts, joined.counts, strict=True):
            whole[targets] = part[members]


def apply(batch: RuleBatch) -> tuple[list[str], Reasons]:
    scanned, rows = batch.scanned()
    cleaning = batch.data.cleaning
    result = c4(batch.texts, cleaning.c4, cleaning.fineweb.short_line_chars, scanned.of(rows))
    batch.remember_scan(Scan(result.counts, scanned.bits[rows], []))
    return result.texts, result.reasons


RULE = CleaningRule(apply, changes_texts=True, revision=2)
