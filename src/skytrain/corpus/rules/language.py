"""Removes documents in languages other than the ones to keep."""

from __future__ import annotations

from typing import Any

from .registry import CleaningRule, Reasons, RuleBatch

LANGUAGE_CHARS = 2000  # enough to detect a language


def language_reason(text: str, is_english: bool, settings: Any) -> str | None:
    """Return the text's language if that is not one to keep.

    The detector takes longer than all other rules together, so it is skipped for a text known to be English.
    """
    from resiliparse.parse.lang import detect_fast

    language = "en" if is_english else detect_fast(text[:LANGUAGE_CHARS], cutoff=settings.max_rank)[0]
    return None if language in settings.keep else language


def apply(batch: RuleBatch) -> tuple[list[str], Reasons]:
    from .tidy import english  # loads numba

    settings = batch.data.cleaning.language
    known = english(batch.texts, settings.english_words).tolist()
    return batch.texts, [
        language_reason(text, is_english, settings) for text, is_english in zip(batch.texts, known, strict=True)
    ]


RULE = CleaningRule(apply, library="resiliparse")
