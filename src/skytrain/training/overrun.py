"""Whether the budget can pay for the rest of the run, judged once, by the first steps of an attempt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..config import BatchSizes, BudgetConfig, format_seconds
from ..planning import Budget
from ..runs import Meter

# First and last step of the attempt that are timed: those before them wait for compilers and caches.
FIRST = 10
LAST = 19
SLOWER = 1.1  # ratio to the plan from which slowness is reported even if the budget suffices


@dataclass(frozen=True)
class OverrunVerdict:
    """The cost that is projected for the run, and whether the run must stop for it."""

    text: str
    stops: bool


class OverrunWatch:
    """A watch that times steps 10 to 19 of an attempt and projects the rest of the run from the slowest of them.

    `settle` waits for the device, so that a step's time is its own. Steps are timed without evaluations and saves.
    """

    def __init__(
        self,
        meter: Meter,
        budget: BudgetConfig,
        stop_step: int,
        batches: BatchSizes | None = None,
        settle: Callable[[], None] = lambda: None,
    ) -> None:
        self._meter = meter
        self._budget = budget
        self._stop_step = stop_step
        self._batches = batches or BatchSizes(1)
        self._settle = settle
        self._first_step: int | None = None
        self._last_seconds = 0.0
        self._slowest = 0.0
        self.verdict: OverrunVerdict | None = None

    def after_step(self, step: int, training_seconds: Callable[[], float]) -> OverrunVerdict | None:
        """Return the verdict once, after the 20th step of the attempt that has the usual size. This is called after each step."""
        if self._first_step is None:
            if self._batches.at(step - 1) != self._batches.last:
                return None  # smaller steps tell little about the usual ones
            self._first_step = step
        done = step - self._first_step + 1
        if not FIRST - 1 <= done <= LAST + 1 or self.verdict is not None:
            return None
        if done == LAST + 1:
            self.verdict = self._judge(self._full_steps(self._stop_step) - self._full_steps(step))
            return self.verdict
        self._settle()
        seconds = training_seconds()
        if done >= FIRST:
            self._slowest = max(self._slowest, seconds - self._last_seconds)
        self._last_seconds = seconds
        return None

    def _full_steps(self, step: int) -> float:
        """Return the tokens before step `step`, in steps of the usual size."""
        return self._batches.before(step) / self._batches.last

    def _judge(self, steps_left: float) -> OverrunVerdict | None:
        budget = self._budget
        slowest = self._slowest
        spending = self._meter.spending()
        seconds_left = steps_left * slowest
        projected = spending.usd_in(seconds_left)
        planned = budget.planned_step_seconds
        compared = f" (planned {format_step(planned)})" if planned is not None else ""
        expected = f" (planned ${budget.planned_usd:.2f})" if budget.planned_usd is not None else ""
        sum_ = f"a step takes up to {format_step(slowest)}{compared}: the run will cost ${projected:.2f}{expected}"
        if steps_left <= 0 or not Budget.of(budget).will_overrun(spending, seconds_left):
            slower = planned is not None and slowest > SLOWER * planned
            within = f", within the budget of ${budget.usd:g}" if budget.usd is not None else ""
            return OverrunVerdict(f"warning: {sum_}{within}", stops=False) if slower and steps_left > 0 else None
        over = f"{sum_}, and the budget is ${budget.usd:g}"
        if budget.overrun == "continue":
            return OverrunVerdict(f"warning: {over}: it will stop when that is spent (budget.overrun=continue)", False)
        return OverrunVerdict(over, stops=True)


def format_step(seconds: float) -> str:
    """Format the time of a step: `350 ms`, `1.92 s`."""
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.2f} s" if seconds < 60 else format_seconds(seconds)
