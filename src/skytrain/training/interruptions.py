"""Reasons to stop, or to save at once: signals, EC2's notices, the budget, another attempt that took over.

Each is noticed beside training and acted upon between two steps, by all ranks alike: one machine's notice is everybody's.
Lightning's own SIGTERM handler is not used: it broadcasts inside the handler, and deadlocks unless every rank got the signal.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import lightning.pytorch as pl

from ..jobs import Ranks, ToldByFirstRank
from ..runs import Cause, Metadata, Meter, Notice, Reporter, Superseded
from ..storage import Patience, Retry
from .callbacks import AtStep
from .module import CausalLM

POLL_SECONDS = 5.0  # as AWS advises
SILENCE = Retry(seconds=60.0)  # of the metadata service, before it is told
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)  # USR1 is what Slurm sends ahead of a job's end


class Wish(IntEnum):
    """What is to happen after this step, in order of weight: of two, the heavier wins."""

    NOTHING = 0
    SAVE = 1
    BUDGET = 2
    INTERRUPT = 3
    GIVE_WAY = 4


class Signals:
    """Takes signals from the beginning of an attempt to its end, so that one which comes before the first step counts too.

    A second SIGINT means at once. Where the process is `supervised`, the supervisor counts them: a worker may get the same
    one twice, from the terminal or the scheduler and passed on.
    """

    def __init__(self, supervised: bool = False) -> None:
        self._supervised = supervised
        self.received: int | None = None
        self._former: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        self._former = {number: signal.getsignal(number) for number in SIGNALS}
        self.take()
        return self

    def take(self) -> None:
        # Only the main thread may; where a program trains in another, it has its own way to stop.
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
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
    """Asks EC2, from a thread of its own, whether this instance is about to go. The thread ends with the watch alone."""

    def __init__(self, metadata: Metadata, tell: Callable[[str], None], poll_seconds: float = POLL_SECONDS) -> None:
        self._metadata, self._tell, self._poll_seconds = metadata, tell, poll_seconds
        self._patience, self._told = Patience(SILENCE), False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="skytrain-notices", daemon=True)
        self.notice: Notice | None = None

    def __enter__(self) -> NoticeWatch:
        self._thread.start()
        return self

    def _watch(self) -> None:
        while self.notice is None or self.notice.kind != "spot":
            try:
                self.notice = self._metadata.notice() or self.notice
                self._answered()
            except Exception as error:  # whatever it was: a notice may come with the next answer
                self._did_not_answer(error)
            if self._ended.wait(self._poll_seconds):
                return

    def _answered(self) -> None:
        self._patience.recovered()
        if self._told:
            self._told = False
            self._tell("EC2's metadata service answers again: spot notices are seen")

    def _did_not_answer(self, error: Exception) -> None:
        """Told once, when it lasts: notices are a help, and the checkpoints in between the guarantee."""
        if self._patience.failed() is None and not self._told:
            self._told = True
            self._tell(
                f"warning: EC2's metadata service has not answered for {self._patience.seconds:.0f} s, so a spot notice would not be seen: {error}\n"
                "  it is asked every few seconds; checkpoints are saved as usual"
            )

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


class BudgetWatch:
    """Whether one more step, and the checkpoint after it, can still be paid for."""

    def __init__(self, meter: Meter, usd: float, margin_seconds: float) -> None:
        self._meter, self._usd, self._margin = meter, usd, margin_seconds
        self._step_began = time.monotonic()
        self._longest_step = 0.0

    def reached(self) -> bool:
        """Asked once after each step."""
        now = time.monotonic()
        self._longest_step, self._step_began = max(self._longest_step, now - self._step_began), now
        # Half as long again as the longest seen: a store that is busy takes its time.
        ahead = 1.5 * (self._longest_step + self._meter.save_seconds) + self._margin
        return self._meter.usd(in_seconds=ahead) >= self._usd

    def message(self, step: int) -> str:
        return f"budget: ${self._meter.usd():.2f} of ${self._usd:g} spent: saving at step {step}, then stopping while it can be paid for"


class Interruptions(AtStep):
    """Looks for a reason after each step; `outcome` and `cause` say which one ended the run."""

    def __init__(
        self,
        reporter: Reporter,
        ranks: Ranks,
        signals: Signals,
        *,
        notices: NoticeWatch | None,
        budget: BudgetWatch | None,
        taken_over: Callable[[], Superseded | None],
        save_soon: Callable[[], None],
    ) -> None:
        self._reporter, self._ranks, self._signals, self._notices = reporter, ranks, signals, notices
        self._budget, self._taken_over, self._save_soon = budget, taken_over, save_soon
        self._warned = False
        self.outcome: str | None = None
        self.cause: Cause | None = None

    def on_train_start(self, trainer: pl.Trainer, module: Any) -> None:
        super().on_train_start(trainer, module)
        self._signals.take()  # Lightning has just put its own handler in the place of ours

    def _wish(self) -> Wish:
        """Of this rank."""
        if self._taken_over() is not None:
            return Wish.GIVE_WAY
        notice = self._notices.notice if self._notices else None
        if self._signals.received is not None or (notice and notice.kind == "spot"):
            return Wish.INTERRUPT
        if self._budget is not None and self._budget.reached():
            return Wish.BUDGET
        return Wish.SAVE if notice and not self._warned else Wish.NOTHING

    def at_step(self, trainer: pl.Trainer, module: CausalLM, step: int) -> None:
        wish = Wish(self._ranks.largest(self._wish()))
        if wish is Wish.NOTHING or trainer.should_stop:
            return
        if wish is Wish.GIVE_WAY:
            # What is unsaved belongs to nobody now: the newer attempt makes these steps itself.
            raise self._taken_over() or ToldByFirstRank("a newer attempt has taken over", Superseded.exit_code)
        if wish is Wish.SAVE:
            self._warned = True
            self._reporter.note(f"{self._find_cause().text}: saving at step {step}, and going on")
            self._save_soon()
            return
        if wish is Wish.BUDGET:
            self.outcome, self.cause = "budget", Cause("budget.usd is nearly spent")
            if self._budget is not None:
                self._reporter.note(self._budget.message(step))
        else:
            self.outcome, self.cause = "interrupted", self._find_cause()
            self._reporter.note(f"{self.cause.text}: saving at step {step}, then stopping")
        trainer.should_stop = True

    def _find_cause(self) -> Cause:
        """The first rank's that has one. All ranks call this together: the reason may be known on one host alone."""
        found = next((cause for cause in self._ranks.everyone(self._own_cause()) if cause is not None), None)
        assert found is not None, "all ranks agreed to act, and none has a reason"
        return found

    def _own_cause(self) -> Cause | None:
        if self._signals.received is not None:
            return Cause(f"{signal.Signals(self._signals.received).name} received")
        if self._notices is not None and self._notices.notice is not None:
            return Cause(self._notices.notice.text)
        return None
