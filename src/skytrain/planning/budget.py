"""The budget of a run, and every question about it: is it spent, what can it still afford, when must machines end?

Plans, kill times, waiting hosts, the training loop and its evaluations ask here, so that they agree. The arithmetic
needs only a limit and a `Spending`, which the meter of a run gives (`skytrain.runs`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ..config import BudgetConfig

SPARE_TIME = 1.5  # factor on the longest time measured so far: a busy store or device may be slower next time
KILL_FACTOR = 2.0  # factor on the p90 duration: late enough for a slow run
KILL_EXTRA_SECONDS = 3600.0


def seconds_ahead(step_seconds: float, save_seconds: float, seconds: float = 0.0, steps: float = 0.0) -> float:
    """Return the time that a budget keeps free for one more step and its save, and an evaluation before them.

    The evaluation takes `seconds`, or as long as `steps` of training where that is not known.
    """
    return SPARE_TIME * ((1 + steps) * step_seconds + save_seconds + seconds)


@dataclass(frozen=True)
class Spending:
    """The cost of a run at one moment, and how it grows."""

    usd: float
    usd_per_hour: float | None  # price of all machines together; None if it is unknown
    save_seconds: float = 0.0  # duration of the run's slowest save

    def usd_in(self, seconds: float) -> float:
        """Return the cost after `seconds` more."""
        return self.usd + (self.usd_per_hour or 0.0) * seconds / 3600


@dataclass(frozen=True)
class Budget:
    """The dollars that a run may cost altogether. Without a limit, or without a price, everything is affordable."""

    usd: float | None
    margin_seconds: float = 0.0  # kept back for the end of an attempt

    @classmethod
    def of(cls, settings: BudgetConfig) -> Budget:
        """Return the budget that the settings give."""
        return cls(settings.usd, settings.margin)

    def covers(self, usd: float) -> bool:
        """Return whether a total cost of `usd` is within the limit."""
        return self.usd is None or usd <= self.usd

    def hours_at(self, usd_per_hour: float) -> float:
        """Return how long the limit pays for machines of this price."""
        return math.inf if self.usd is None else self.usd / usd_per_hour

    def kill_after_seconds(self, hours_p90: float, usd_per_hour: float) -> float:
        """Return how long after their start AWS itself ends the machines of a plan.

        It is late enough for a slow run, but machines that nobody watches cannot exceed the budget, even at the
        highest bid. A smoke run, an endpoint, a capacity block and a sweep set times of their own.
        """
        slow = hours_p90 * 3600 * KILL_FACTOR + KILL_EXTRA_SECONDS
        return min(slow, self.hours_at(usd_per_hour) * 3600)

    def after(self, spent_usd: float) -> Budget:
        """Return what is left of it for a run that has cost `spent_usd` before."""
        return self if self.usd is None else replace(self, usd=max(0.0, self.usd - spent_usd))

    def is_spent(self, spending: Spending) -> bool:
        """Return whether too little is left to start anything: not even the end of an attempt can be paid."""
        return self._exceeds(spending, self.margin_seconds)

    def can_afford_save(self, spending: Spending) -> bool:
        """Return whether a checkpoint that is being saved may be completed; the margin may be spent on it."""
        return not self._exceeds(spending, 0.0)

    def can_afford_step(self, spending: Spending, step_seconds: float) -> bool:
        """Return whether one more step of at most `step_seconds`, and the checkpoint after it, can be paid."""
        return self.can_afford_evaluation(spending, step_seconds)

    def can_afford_evaluation(
        self, spending: Spending, step_seconds: float, seconds: float = 0.0, steps: float = 0.0
    ) -> bool:
        """Return whether an evaluation can be paid, with one more step and its checkpoint after it.

        The evaluation takes `seconds`, or as long as `steps` of training where that is not known.
        """
        ahead = seconds_ahead(step_seconds, spending.save_seconds, seconds, steps)
        return not self._exceeds(spending, ahead + self.margin_seconds)

    def will_overrun(self, spending: Spending, seconds_left: float) -> bool:
        """Return whether the rest of the run, at this speed, costs more than the limit."""
        return not self.covers(spending.usd_in(seconds_left))

    def spent_text(self, spending: Spending) -> str:
        """Return what is spent of the limit: `$3.20 of $10`."""
        return f"${spending.usd:.2f} of ${self.usd:g}"

    def _exceeds(self, spending: Spending, seconds: float) -> bool:
        """Return whether the limit is reached in `seconds`."""
        if self.usd is None or spending.usd_per_hour is None:
            return False
        return spending.usd_in(seconds) >= self.usd
