"""muP and CompleteP transfer: under these parametrizations the best rate of a narrow model is that of the wide one.

The rate is tuned on the nearest smaller model and taken unchanged. With the standard parametrization this is wrong
by design; the answer then says so.
"""

from __future__ import annotations

from ..problem import Answer, Search, Trial
from .base import fallback, is_compared, next_rate, proxy, size_rungs, vertex


class WidthTransfer:
    name = "transfer"
    about = "muP or CompleteP: the best rate of a smaller model, unchanged"

    def propose(self, search: Search) -> Trial | None:
        rung = proxy(search, size_rungs(search.problem))
        return next_rate(search, rung) if rung else None

    def answer(self, search: Search) -> Answer:
        rung = proxy(search, size_rungs(search.problem))
        rate = vertex(search.of_rung(rung.name)) if rung else None
        if rung is None or rate is None:
            return fallback(search, "the budget does not buy a sweep of a smaller model")
        return Answer(
            rate=search.problem.clip(rate),
            why=f"the minimum of {rung.name}, transferred unchanged",
            own=is_compared(search, rung),
        )


STRATEGY = WidthTransfer()
