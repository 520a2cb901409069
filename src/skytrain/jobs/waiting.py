"""The budget of a run whose hosts wait for each other: nobody trains, and every host costs money."""

from __future__ import annotations

from ..config import BudgetConfig
from ..runs import Meter, attempt_numbers, recorded_usd
from ..storage import Store


class WaitingBudget:
    """Estimates the run's cost while its hosts wait: what the newest attempt recorded, and each host's time since.

    All hosts are taken to cost what this one does: to read every host's own record would take too many requests.
    """

    def __init__(self, store: Store, run: str, budget: BudgetConfig, meter: Meter) -> None:
        self._store, self._run, self._budget, self._meter = store, run, budget, meter
        self._attempt = -1  # whose record was read last
        self._before, self._own_before = 0.0, 0.0  # the run's cost then, and this host's own

    def spent(self, hosts: int) -> str | None:
        """Why the run must end, if the budget is spent; `hosts` are rented now."""
        price = self._meter.usd_per_hour
        if self._budget.usd is None or price is None:
            return None
        newest = max(attempt_numbers(self._store, self._run), default=-1)
        if newest > self._attempt:
            self._attempt, self._own_before = newest, self._meter.usd()
            self._before = recorded_usd(self._store, self._run, newest) or self._before
        ahead = self._budget.margin * price / 3600
        usd = self._before + (self._meter.usd() - self._own_before + ahead) * max(1, hosts)
        return f"the budget is spent: ${usd:.2f} of ${self._budget.usd:g}" if usd >= self._budget.usd else None
