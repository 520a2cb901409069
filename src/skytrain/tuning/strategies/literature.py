"""No trials at all: the published laws' combined rate, with the width of their disagreement as an interval."""

from __future__ import annotations

from ..problem import Answer, Search, Trial
from .base import fallback


class Literature:
    name = "literature"
    about = "no trials: the rate that published laws give for the target"

    def propose(self, search: Search) -> Trial | None:
        return None

    def answer(self, search: Search) -> Answer:
        return fallback(search, "published laws, without any trial")


STRATEGY = Literature()
