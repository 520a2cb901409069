"""Gopher's rules on repetition: lines, paragraphs and n-grams that occur again and again."""

from __future__ import annotations

from typing import Any

import numpy as np

from .counts import DUPLICATE_NGRAMS, TOP_NGRAMS, Counts, first_failed, share
from .registry import CleaningRule, Reasons, RuleBatch


def gopher_repetition(counts: Counts, settings: Any) -> Reasons:
    size = np.maximum(1, counts.chars)
    checks = {
        "duplicate_lines": share(counts["duplicate_lines"], counts["lines"]) > settings.max_duplicate_lines,
        "duplicate_paragraphs": share(counts["duplicate_paragraphs"], counts["paragraphs"])
        > settings.max_duplicate_paragraphs,
        "duplicate_line_chars": counts["duplicate_line_chars"] / size > settings.max_duplicate_line_chars,
        "duplicate_paragraph_chars": counts["duplicate_paragraph_chars"] / size
        > settings.max_duplicate_paragraph_chars,
    }
    for n, limit in zip(TOP_NGRAMS, settings.max_top_ngram_chars, strict=False):
        checks[f"top_{n}gram"] = counts[f"top_{n}gram_chars"] / size > limit
    for n, limit in zip(DUPLICATE_NGRAMS, settings.max_duplicate_ngram_chars, strict=False):
        checks[f"duplicate_{n}gram"] = counts[f"duplicate_{n}gram_chars"] / size > limit
    return first_failed(checks, len(counts.chars))


def apply(batch: RuleBatch) -> tuple[list[str], Reasons]:
    return batch.texts, gopher_repetition(batch.counts(), batch.data.cleaning.gopher_repetition)


RULE = CleaningRule(apply)
