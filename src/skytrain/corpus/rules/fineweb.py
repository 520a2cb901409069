"""FineWeb's additional rules: line ends, short lines, repeated lines, lists."""

from __future__ import annotations

from typing import Any

from .counts import Counts, first_failed, share
from .registry import CleaningRule, Reasons, RuleBatch


def fineweb(counts: Counts, settings: Any) -> Reasons:
    """Return the failed check of each text. `counts` must have been made with this rule's `short_line_chars`."""
    lines = counts["lines"]
    checks = {
        "empty": lines == 0,
        "terminal_lines": share(counts["terminal_lines"], lines) < settings.min_terminal_lines,
        "short_lines": share(counts["short_lines"], lines) > settings.max_short_lines,
        "duplicate_line_chars": share(counts["duplicate_line_chars"], counts.chars - counts["newlines"])
        > settings.max_duplicate_line_chars,
        "newlines": share(counts["newlines"], counts["words"]) > settings.max_newlines_per_word,
    }
    return first_failed(checks, len(lines))


def apply(batch: RuleBatch) -> tuple[list[str], Reasons]:
    return batch.texts, fineweb(batch.counts(), batch.data.cleaning.fineweb)


RULE = CleaningRule(apply, revision=2)
