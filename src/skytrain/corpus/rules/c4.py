"""C4's rules: lines are removed from documents, then documents that have too little left."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np

from .counts import Counts, Scan, no_counts
from .registry import CleaningRule, Reasons, RuleBatch

CITATIONS = re.compile(r"\[(?:\d*|edit|citation needed)\]")


class C4Result(NamedTuple):
    """The texts without the removed lines, why each document is removed (or None), and the counts that FineWeb needs."""

    texts: list[str]
    reasons: Reasons
    counts: Counts


def c4(texts: list[str], settings: Any, short_line_chars: int = 30, scanned: Scan | None = None) -> C4Result:
    """Drop lines and documents. `scanned` is the scan of these texts, where another rule has made it."""
    from .scan import CITATION, CURLY_BRACKET, LOREM_IPSUM, scan  # loads numba

    scanned = scanned or scan(texts, False, short_line_chars)
    results = C4Result(list(texts), [None] * len(texts), no_counts(len(texts)))
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
    results: C4Result, scanned: Scan, wanted: np.ndarray, places: Any, settings: Any, short_line_chars: int
) -> None:
    """Put the lines that stay into `results`; `places` are the positions of the scanned texts there."""
    from .lines import LineRule, join_lines
    from .scan import JAVASCRIPT, POLICY

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
        targets = [places[group.places[k]] for k in np.flatnonzero(use).tolist()]
        for whole, part in zip(results.counts, joined.counts):  # noqa: B905
            whole[targets] = part[use]


def apply(batch: RuleBatch) -> tuple[list[str], Reasons]:
    found, rows = batch.scanned()
    cleaning = batch.data.cleaning
    result = c4(batch.texts, cleaning.c4, cleaning.fineweb.short_line_chars, found.of(rows))
    batch.remember_scan(Scan(result.counts, found.found[rows], []))
    return result.texts, result.reasons


RULE = CleaningRule(apply, changes_texts=True)
