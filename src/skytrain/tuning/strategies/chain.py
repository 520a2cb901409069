"""Hybrids: `a+b` runs `a`, then `b` around a's answer with the money that is left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..problem import Answer, Search, Trial
from .base import Strategy


class Chain:
    """A sequence of strategies, each of which starts from the answer of those before."""

    def __init__(self, parts: Sequence[Strategy], share: float = 0.5) -> None:
        self.name = "+".join(part.name for part in parts)
        self.about = ", then ".join(part.about for part in parts)
        self.weighs_prices = getattr(parts[-1], "weighs_prices", False)
        self._first = parts[0]
        self._rest = parts[1:]
        self._share = share  # share of the remaining money that the first part may spend

    def propose(self, search: Search) -> Trial | None:
        capped = self._capped(search)
        trial = self._first.propose(capped)
        return trial if trial is not None else self._second().propose(self._moved(search))

    def answer(self, search: Search) -> Answer:
        return self._second().answer(self._moved(search))

    def _second(self) -> Strategy:
        return self._rest[0] if len(self._rest) == 1 else Chain(self._rest, self._share)

    def _capped(self, search: Search) -> Search:
        most = self._share * search.total_usd
        spent = search.total_usd - search.left_usd
        return replace(search, left_usd=max(0.0, most - spent), total_usd=most)

    def _moved(self, search: Search) -> Search:
        return replace(search, problem=search.problem.around(self._first.answer(self._capped(search)).rate))
