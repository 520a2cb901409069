"""Removes documents from blocked domains, or with blocked words in their URL."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

from .registry import CleaningRule, Reasons, RuleBatch

SCHEME = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*:)?//")


def url_reasons(urls: Reasons, settings: Any) -> Reasons:
    domains = {domain.lower() for domain in settings.blocked_domains}
    words = [word.lower() for word in settings.blocked_words]
    return [_url_reason(url, domains, words) if url else None for url in urls]


def host_of(address: str) -> str:
    """Return the host of a URL, which may lack its scheme; empty if it has none."""
    try:
        return (urlsplit(address if SCHEME.match(address) else "//" + address).hostname or "").lower()
    except ValueError:  # brackets without an IPv6 address
        return ""


def _url_reason(url: str, domains: set[str], words: list[str]) -> str | None:
    labels = host_of(url).split(".") if domains else []
    if any(".".join(labels[i:]) in domains for i in range(len(labels))):
        return "domain"
    lowered = url.lower()
    return "word" if any(word in lowered for word in words) else None


def apply(batch: RuleBatch) -> tuple[list[str], Reasons]:
    return batch.texts, url_reasons(batch.urls, batch.data.cleaning.urls)


RULE = CleaningRule(apply)
