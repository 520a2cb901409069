"""Cleans a batch of texts: applies the rules in order and counts what each removed.

It is a pure function of the batch, so local processes and Spark run the same code.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .characters import utf8_size
from .rules.registry import CleaningRule, Reasons, RuleBatch, enabled_rules, find_rule

MIN_CHARS = "min_chars"
MIN_CHARS_AGAIN = "min_chars_again"


class Tally(NamedTuple):
    """Documents and UTF-8 bytes into and out of a stage."""

    documents_in: int
    bytes_in: int
    documents_out: int
    bytes_out: int


class Cleaned(NamedTuple):
    """The cleaned texts, the bytes of each, and the rule that removed it (`stage.check`) or None."""

    texts: list[str]
    sizes: list[int]
    reasons: Reasons
    tallies: dict[str, Tally]


def stages_of(data: Any) -> list[str]:
    """Return the enabled stages in order: the rules and the minimum length check.

    The length is checked after normalization, and again if a later rule may have shortened the text.
    """
    early, late = enabled_rules(data.cleaning, until="normalize")
    again = [MIN_CHARS_AGAIN] if any(find_rule(name).changes_texts for name in late) else []
    return [*early, MIN_CHARS, *late, *again]


def clean(texts: list[str], urls: Reasons, data: Any, decontaminator: Any = None) -> Cleaned:
    """Apply all enabled rules to a batch of texts.

    `data` is the configuration's data group; `decontaminator` is a Decontaminator if that rule is enabled.
    """
    texts, sizes = list(texts), [utf8_size(text) for text in texts]
    reasons: Reasons = [None] * len(texts)
    alive = list(range(len(texts)))
    tallies: dict[str, Tally] = {}
    memory: dict[str, Any] = {}
    for stage in stages_of(data):
        before = [texts[i] for i in alive]
        documents_in = len(alive)
        bytes_in = sum(sizes[i] for i in alive)
        rule = _LENGTH if stage in (MIN_CHARS, MIN_CHARS_AGAIN) else find_rule(stage)
        scan = memory.get("scan")
        after, failed = rule.apply(
            RuleBatch(
                texts=before,
                places=alive,
                urls=[urls[i] for i in alive],
                data=data,
                decontaminator=decontaminator,
                memory=memory,
            )
        )
        if rule.changes_texts and memory.get("scan") is scan:
            memory.pop("scan", None)  # it was computed from the unchanged texts
        for i, old, new, reason in zip(alive, before, after, failed, strict=True):
            if new is not old:
                texts[i], sizes[i] = new, utf8_size(new)
            if reason is not None:
                reasons[i] = f"{stage}.{reason}" if reason else stage
        alive = [i for i in alive if reasons[i] is None]
        tallies[stage] = Tally(documents_in, bytes_in, len(alive), sum(sizes[i] for i in alive))
    return Cleaned(texts, sizes, reasons, tallies)


def _long_enough(batch: RuleBatch) -> tuple[list[str], Reasons]:
    return batch.texts, ["" if len(text) < batch.data.min_chars else None for text in batch.texts]


_LENGTH = CleaningRule(_long_enough)
