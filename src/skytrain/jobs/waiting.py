"""The budget of a run whose hosts wait for each other: nobody trains, and every host costs money."""

from __future__ import annotations

from ..config import BudgetConfig
from ..runs import Meter, read_spend
from ..storage import Store


class WaitingBudget:
    """Estimates the run's cost while its hosts wait: what was recorded before, and the same price for each host since.

    Reading every host's own record would take more requests than a host may send; the estimate takes none.
    """

    def __init__(self, store: Store, run: str, budget: BudgetConfig, meter: Meter) -> None:
        self._store, self._run, self._budget, self._meter = store, run, budget, meter
        self._recorded: tuple[float, float] | None = None  # the run's cost at a moment, and this host's own then

    def spent(self, hosts: int) -> str | None:
        """Why the run must end, if the budget is spent; `hosts` are rented now."""
        price = self._meter.usd_per_hour
        if self._budget.usd is None or price is None:
            return None
        own = self._meter.usd()
        if self._recorded is None:
            counts = read_spend(self._store, self._run).counts
            self._recorded = sum(count.usd for count in counts.values()), own
        before, own_then = self._recorded
        usd = before + (own - own_then + self._budget.margin * price / 3600) * max(1, hosts)
        return f"the budget is spent: ${usd:.2f} of ${self._budget.usd:g}" if usd >= self._budget.usd else None
