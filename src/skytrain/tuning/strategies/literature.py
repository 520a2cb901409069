"""The published laws' combined rate, without trials; their disagreement is the interval."""

from __future__ import annotations

from ..problem import Answer, Search, Trial
from .base import fallback


class Literature:
    name = "literature"
    about = "no trials: the rate that published laws give for the target"

    def propose(self, search: Search) -> Trial | None:
        return None

    def answer(self, search: Search) -> Answer:
        return fallback(search, "published laws, without trials")


STRATEGY = Literature()
