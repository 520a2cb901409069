"""Removes documents from blocked domains, or with blocked words in their URL."""

from __future__ import annotations

from typing import Any

from .reference import host_of
from .registry import CleaningRule, Reasons, RuleBatch


def url_reasons(urls: Reasons, settings: Any) -> Reasons:
    domains = {domain.lower() for domain in settings.blocked_domains}
    words = [word.lower() for word in settings.blocked_words]
    return [_url_reason(url, domains, words) if url else None for url in urls]


def _url_reason(url: str, domains: set[str], words: list[str]) -> str | None:
    labels = host_of(url).split(".") if domains else []
    if any(".".join(labels[i:]) in domains for i in range(len(labels))):
        return "domain"
    lowered = url.lower()
    return "word" if any(word in lowered for word in words) else None


def apply(batch: RuleBatch) -> tuple[list[str], Reasons]:
    return batch.texts, url_reasons(batch.urls, batch.data.cleaning.urls)


RULE = CleaningRule(apply)
