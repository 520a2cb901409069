"""The budget of a run whose hosts wait for each other: nobody trains, and every host costs money."""

from __future__ import annotations

from ..config import BudgetConfig
from ..planning import Budget, Spending
from ..runs import Meter, attempt_numbers, recorded_usd
from ..storage import Store


class WaitingBudget:
    """The run's estimated cost while its hosts wait: what the newest attempt recorded, and each host's time since.

    All hosts are taken to cost what this one does: to read every host's own record would take too many requests.
    """

    def __init__(self, store: Store, run: str, settings: BudgetConfig, meter: Meter) -> None:
        self._store = store
        self._run = run
        self._budget = Budget.of(settings)
        self._meter = meter
        self._attempt = -1  # whose record was read last
        self._before_usd = 0.0  # the run's cost at that time
        self._own_before_usd = 0.0  # this host's share of it

    def spent(self, hosts: int) -> str | None:
        """Return why the run must end if its budget is spent, or None; `hosts` are rented now."""
        own = self._meter.spending()
        if self._budget.usd is None or own.usd_per_hour is None:
            return None  # nothing is watched, so nothing is read from the store
        newest = max(attempt_numbers(self._store, self._run), default=-1)
        if newest > self._attempt:
            self._attempt = newest
            self._own_before_usd = own.usd
            self._before_usd = recorded_usd(self._store, self._run, newest) or self._before_usd
        hosts = max(1, hosts)
        waiting = Spending(self._before_usd + (own.usd - self._own_before_usd) * hosts, own.usd_per_hour * hosts)
        if not self._budget.is_spent(waiting):
            return None
        return f"the budget is spent: ${waiting.usd_in(self._budget.margin_seconds):.2f} of ${self._budget.usd:g}"
