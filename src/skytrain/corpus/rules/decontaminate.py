"""Removes documents that share a word n-gram with an evaluation set."""

from __future__ import annotations

from .registry import CleaningRule, Reasons, RuleBatch


def apply(batch: RuleBatch) -> tuple[list[str], Reasons]:
    return batch.texts, ["" if hit else None for hit in batch.decontaminator.hits(batch.texts)]


RULE = CleaningRule(apply)
