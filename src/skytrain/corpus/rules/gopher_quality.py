"""Gopher's rules on quality: number and length of words, symbols, bullets, common words."""

from __future__ import annotations

from typing import Any

from .counts import Counts, first_failed, share
from .registry import CleaningRule, Reasons, RuleBatch


def gopher_quality(counts: Counts, settings: Any) -> Reasons:
    real = counts["real_words"]
    words = counts["words"]
    mean = share(counts["real_word_chars"], real)
    checks = {
        "words": (real < settings.min_words) | (real > settings.max_words),
        "mean_word_chars": (mean < settings.min_mean_word_chars) | (mean > settings.max_mean_word_chars),
        "hashes": share(counts["hashes"], words) > settings.max_hashes_per_word,
        "ellipses": share(counts["ellipses"], words) > settings.max_ellipses_per_word,
        "bullet_lines": share(counts["bullet_lines"], counts["lines"]) > settings.max_bullet_lines,
        "ellipsis_lines": share(counts["ellipsis_lines"], counts["lines"]) > settings.max_ellipsis_lines,
        "letter_words": share(counts["letter_words"], words) < settings.min_letter_words,
        "stop_words": counts["stop_words"] < settings.min_stop_words,
    }
    return first_failed(checks, len(counts.chars))


def apply(batch: RuleBatch) -> tuple[list[str], Reasons]:
    return batch.texts, gopher_quality(batch.counts(), batch.data.cleaning.gopher_quality)


RULE = CleaningRule(apply)
