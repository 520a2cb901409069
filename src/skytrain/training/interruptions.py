"""Reasons to stop, or to save at once: signals, EC2's notices, the budget, `skytrain stop`, a newer attempt.

Each is acted upon between two steps, by all ranks together: a notice on one machine stops the whole job. Lightning's
own SIGTERM handler is not used: it broadcasts inside the handler, and deadlocks unless every rank got the signal.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import lightning.pytorch as pl

from ..aws import Metadata, Notice
from ..jobs import Ranks, ToldByFirstRank, handled_signals
from ..runs import Cause, Reporter, StopRequest, Superseded
from ..storage import Patience, Retry
from .callbacks import AtStep
from .spending import BudgetWatch, OverrunVerdict, OverrunWatch
from .step import CausalLM

POLL_SECONDS = 5.0  # interval that AWS advises
SILENCE = Retry(seconds=60.0)  # how long the metadata service may be silent before a warning


class StepAction(IntEnum):
    """The action after a step; where ranks differ, the largest value wins."""

    NOTHING = 0
    SAVE = 1
    BUDGET = 2
    INTERRUPT = 3
    STOP = 4  # above INTERRUPT, which a scheduler would answer with a restart
    GIVE_UP = 5


class Signals:
    """The signals received from the start of an attempt to its end, so that one before the first step counts too.

    A second SIGINT interrupts at once. Where the process is `supervised`, the supervisor counts them: a worker may
    get the same one twice, from the terminal or the scheduler and from the supervisor.
    """

    def __init__(self, supervised: bool = False) -> None:
        self._supervised = supervised
        self.received: int | None = None
        self._former: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        self._former = {number: signal.getsignal(number) for number in handled_signals()}
        self.install()
        return self

    def install(self) -> None:
        # Python allows it in the main thread only; a program that trains in another one has its own way to stop.
        if threading.current_thread() is threading.main_thread():
            for number in handled_signals():
                signal.signal(number, self._handle)

    def _handle(self, number: int, frame: Any) -> None:
        if self.received is not None and number == signal.SIGINT and not self._supervised:
            raise KeyboardInterrupt
        self.received = number

    def __exit__(self, *_: object) -> None:
        if threading.current_thread() is threading.main_thread():
            for number, handler in self._former.items():
                signal.signal(number, handler)


class NoticeWatch:
    """A thread that polls EC2 for a notice that this instance is about to be reclaimed or rebalanced."""

    def __init__(self, metadata: Metadata, tell: Callable[[str], None], poll_seconds: float = POLL_SECONDS) -> None:
        self._metadata = metadata
        self._tell = tell
        self._poll_seconds = poll_seconds
        self._patience = Patience(SILENCE)
        self._told = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="skytrain-notices", daemon=True)
        self.notice: Notice | None = None

    def __enter__(self) -> NoticeWatch:
        self._thread.start()
        return self

    def _watch(self) -> None:
        while self.notice is None or not self.notice.at_once:
            try:
                self.notice = self._metadata.notice() or self.notice
                self._answered()
            except Exception as error:  # whatever it is, the next answer may bring a notice
                self._did_not_answer(error)
            if self._ended.wait(self._poll_seconds):
                return

    def _answered(self) -> None:
        self._patience.recovered()
        if self._told:
            self._told = False
            self._tell("EC2's metadata service answers again: spot notices are received")

    def _did_not_answer(self, error: Exception) -> None:
        """Warn once if the silence lasts. Notices help, but the regular checkpoints are the guarantee."""
        if self._patience.failed() is None and not self._told:
            self._told = True
            self._tell(
                f"warning: EC2's metadata service has not answered for {self._patience.seconds:.0f} s, "
                f"so a spot notice would be missed: {error}\n"
                "  it is queried every few seconds; checkpoints are saved as usual"
            )

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


@dataclass(frozen=True)
class StopSources:
    """The sources of this rank's reasons to stop."""

    signals: Signals
    notices: NoticeWatch | None = None  # on local rank 0 of an EC2 instance
    budget: BudgetWatch | None = None  # on rank 0
    taken_over: Callable[[], Superseded | None] = lambda: None
    stop_asked: Callable[[], StopRequest | None] = lambda: None  # on rank 0
    overrun: OverrunWatch | None = None  # on rank 0


class Interruptions(AtStep):
    """A callback that looks for a reason to stop after each step; `outcome` and `cause` tell which ended the run."""

    def __init__(
        self, reporter: Reporter, ranks: Ranks, sources: StopSources, save_soon: Callable[[], None] = lambda: None
    ) -> None:
        self._reporter = reporter
        self._ranks = ranks
        self._sources = sources
        self._save_soon = save_soon
        self._warned = False
        self._overrun: OverrunVerdict | None = None
        self.outcome: str | None = None
        self.cause: Cause | None = None

    def on_train_start(self, trainer: pl.Trainer, module: Any) -> None:
        super().on_train_start(trainer, module)
        self.receive_signals()

    def receive_signals(self) -> None:
        self._sources.signals.install()  # Lightning has just replaced our handlers with its own

    def must_stop(self, seconds: float) -> bool:
        """Return whether this rank has a reason to stop now, rather than after another `seconds` between two steps."""
        budget = self._sources.budget
        return self._demand() is not None or (budget is not None and not budget.can_afford_evaluation(seconds))

    @property
    def budget(self) -> BudgetWatch | None:
        return self._sources.budget

    def _demand(self) -> StepAction | None:
        """Return how this rank must stop for a reason other than the budget; None without one."""
        if self._sources.taken_over() is not None:
            return StepAction.GIVE_UP
        if self._sources.stop_asked() is not None:
            return StepAction.STOP
        notice = self._sources.notices.notice if self._sources.notices else None
        if self._sources.signals.received is not None or (notice and notice.at_once):
            return StepAction.INTERRUPT
        return None

    def _own_action(self) -> StepAction:
        """Return the action that this rank has a reason for."""
        budget_reached = self._sources.budget is not None and self._sources.budget.must_stop_after_step()
        if (demand := self._demand()) is not None:
            return demand
        if budget_reached:
            return StepAction.BUDGET
        if self._overrun is not None and self._overrun.stops:
            return StepAction.BUDGET
        noticed = self._sources.notices is not None and self._sources.notices.notice is not None
        return StepAction.SAVE if noticed and not self._warned else StepAction.NOTHING

    def at_step(self, trainer: pl.Trainer, module: CausalLM, step: int) -> None:
        self._check_overrun(module, step)
        action = StepAction(self._ranks.largest(self._own_action()))
        if action is StepAction.NOTHING or trainer.should_stop:
            return
        if action is StepAction.GIVE_UP:
            # Unsaved steps are dropped: the newer attempt trains them itself.
            raise self._sources.taken_over() or ToldByFirstRank("a newer attempt has taken over", Superseded.exit_code)
        if action is StepAction.SAVE:
            self._warned = True
            self._reporter.note(f"{self._find_cause().text}: saving at step {step}, and training on")
            self._save_soon()
            return
        if action is StepAction.BUDGET:
            self._stop_for_budget(step)
        else:
            self.outcome = "stopped" if action is StepAction.STOP else "interrupted"
            self.cause = self._find_cause()
            self._reporter.note(f"{self.cause.text}: saving at step {step}, then stopping")
        trainer.should_stop = True

    def _check_overrun(self, module: CausalLM, step: int) -> None:
        if self._sources.overrun is None:
            return
        found = self._sources.overrun.after_step(step, lambda: module.clock.seconds())
        if found is not None:
            self._overrun = found
            if not found.stops:
                self._reporter.note(found.text)

    def _stop_for_budget(self, step: int) -> None:
        self.outcome, self.cause = "budget", Cause("budget.usd is nearly spent")
        if self._overrun is not None and self._overrun.stops:
            self.cause = Cause(self._overrun.text)
            self._reporter.note(
                f"budget: {self._overrun.text}: saving at step {step}, then stopping\n"
                "  raise budget.usd and run the same command again, or add budget.overrun=continue"
            )
        elif self._sources.budget is not None:
            self._reporter.note(self._sources.budget.message(step))

    def _find_cause(self) -> Cause:
        """Return the cause of the lowest rank that has one.

        All ranks call this together, since only one host may know the reason.
        """
        found = next((cause for cause in self._ranks.everyone(self._own_cause()) if cause is not None), None)
        assert found is not None, "all ranks agreed to act, but none has a reason"
        return found

    def _own_cause(self) -> Cause | None:
        if (request := self._sources.stop_asked()) is not None:
            return Cause(request.text)
        if self._sources.signals.received is not None:
            return Cause(f"{signal.Signals(self._sources.signals.received).name} received")
        if self._sources.notices is not None and self._sources.notices.notice is not None:
            return Cause(self._sources.notices.notice.text)
        return None
