"""The dollars of an attempt: at which price its machines are counted, and whether its budget pays for another step.

`Meter` counts (`runs/meter.py`), `Budget` judges (`planning/budget.py`), and `Interruptions` stops the run, as it does
for any other reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..checkpoints import find_commit, read_manifest
from ..config import BatchSizes, BudgetConfig, SkytrainError, format_seconds
from ..jobs import job_began
from ..planning import Budget
from ..runs import Meter, Spend, machine_price, read_spend, this_machine
from ..storage import Store

if TYPE_CHECKING:
    from .context import RunContext
    from .services import Host

IDLE_SECONDS = 60.0  # time between two attempts above which its cost is reported
# First and last step of the attempt that are timed: those before them wait for compilers and caches.
FIRST = 10
LAST = 19
SLOWER = 1.1  # ratio to the plan from which slowness is reported even if the budget suffices


def start_meter(context: RunContext, host: Host, spent: Spend) -> Meter:
    """Start to count all machines of the job, at the price of rank 0's machine. All ranks call this together."""
    budget = context.config.budget
    ranks = context.ranks
    reporter = context.reporter
    instance = host.instance if budget.whole_machine else None
    machines = [
        found
        for found in ranks.everyone(this_machine(instance, job_began()) if ranks.local_rank == 0 else None)
        if found is not None
    ]
    price = ranks.first_does(lambda: _price(budget, host))
    if price is None and budget.usd is not None:
        reporter.note(
            f"warning: budget.usd={budget.usd:g} is not watched: the price of this machine is unknown\n"
            "  set it with budget.usd_per_hour=..."
        )
    meter = Meter(machines, price, spent)
    if price is not None and meter.idle_seconds > IDLE_SECONDS:
        reporter.note(
            f"the {format_seconds(meter.idle_seconds)} since the run was stopped are counted: "
            "this EC2 instance was rented all that time"
        )
    return meter


def _price(budget: BudgetConfig, host: Host) -> float | None:
    price = machine_price(budget, host.instance)
    if price is None and budget.usd is not None and host.on_ec2:
        raise SkytrainError(
            f"budget.usd: {budget.usd:g} cannot be kept: this EC2 instance's metadata service did not answer, "
            "so its price is unknown\n"
            "  set budget.usd_per_hour to the price of one machine, "
            "or let this process reach http://169.254.169.254 (IMDSv2)"
        )
    return price


def spent_before(store: Store, run: str, own_checkpoint: str | None) -> Spend:
    """Return what the run has cost before this attempt.

    Its newest checkpoint has a record of it too, in case a spend stream is lost.
    """
    saved: Mapping[str, Any] = {}
    if own_checkpoint is not None:
        _, manifest = read_manifest(store, find_commit(store, own_checkpoint))
        saved = manifest.state.get("rest", {}).get("spend") or {}
    return read_spend(store, run, saved)


class BudgetWatch:
    """The longest step of an attempt, by which its budget is asked what it can still afford."""

    def __init__(self, meter: Meter, budget: Budget) -> None:
        self._meter = meter
        self._budget = budget
        self._step_began = time.monotonic()
        self._steps = 0
        self._longest_step = 0.0

    def must_stop_after_step(self) -> bool:
        """Time the step that has just ended, and return whether the budget cannot pay for another."""
        now = time.monotonic()
        took, self._step_began = now - self._step_began, now
        self._steps += 1
        # The first step of an attempt waits for compilers and caches, and counts only until there is another.
        self._longest_step = took if self._steps <= 2 else max(self._longest_step, took)
        return not self._budget.can_afford_step(self._meter.spending(), self._longest_step)

    def can_afford_evaluation(self, seconds: float = 0.0, steps: float = 0.0) -> bool:
        """Return whether an evaluation of `seconds`, or of the time of `steps`, leaves enough for a step and its save."""
        return self._budget.can_afford_evaluation(self._meter.spending(), self._longest_step, seconds, steps)

    def leave_out(self, seconds: float) -> None:
        """Do not count the `seconds` of an evaluation since the last step as part of the next one."""
        self._step_began += seconds

    def message(self, step: int) -> str:
        spent = self._budget.spent_text(self._meter.spending())
        return f"budget: {spent} spent: saving at step {step}, then stopping within the budget"


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
