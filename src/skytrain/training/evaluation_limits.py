"""How long an evaluation may take: not beyond the budget, and not on when training must stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ..config import format_seconds
from ..evaluation import Evaluator, Scorer, TaskEvaluator
from ..jobs import Ranks

if TYPE_CHECKING:
    from .interruptions import Interruptions

CHECK_SECONDS = 2.0  # approximate time between two checks


class EvaluationStopped(Exception):
    """The end of an evaluation on all ranks before it was complete, because training must stop."""


class EvaluationLimits:
    """A runner of evaluators that keeps to the budget, and interrupts a task where there is a reason to stop training.

    All ranks call this together.
    """

    def __init__(self, ranks: Ranks, interruptions: Interruptions, note: Callable[[str], None]) -> None:
        self._ranks = ranks
        self._interruptions = interruptions
        self._note = note
        self._seconds: dict[str, float] = {}  # the longest time that each evaluator took

    def receive_signals(self) -> None:
        """Handle signals where no training begins. Call this first."""
        self._interruptions.receive_signals()

    def run(self, evaluator: Evaluator, model: Scorer, steps: float = 0.0) -> Mapping[str, float]:
        """Run an evaluator and return what it measured: nothing if the budget does not allow it.

        That many `steps` of training surely take longer than the evaluation. If it is stopped, `EvaluationStopped` is
        raised on all ranks.
        """
        if not self._allowed(evaluator, steps):
            return {}
        if isinstance(evaluator, TaskEvaluator):
            evaluator.progress = StopCheck(self._ranks, self._interruptions.must_stop)
        began = time.monotonic()
        try:
            return evaluator.run(model)
        except EvaluationStopped:
            if self._ranks.any(self._interruptions.must_stop(0.0)):
                self._note(f"the evaluation of {evaluator.name} was stopped; the attempt that resumes runs it")
                raise
            self._note(f"budget: the evaluation of {evaluator.name} was stopped, for which too little is left")
            return {}
        finally:
            seconds = time.monotonic() - began
            self._seconds[evaluator.name] = max(seconds, self._seconds.get(evaluator.name, 0.0))
            if self._interruptions.budget is not None:
                self._interruptions.budget.leave_out(seconds)

    def _allowed(self, evaluator: Evaluator, steps: float) -> bool:
        """Return whether the budget allows an evaluator, by the longest time that it took before.

        At the first run a task stops itself; for other evaluators `steps` of training are the estimate.
        """
        budget = self._interruptions.budget
        known = self._seconds.get(evaluator.name)
        fits = budget is None or budget.can_afford_evaluation(known or 0.0, 0.0 if known else steps)
        if not self._ranks.any(not fits):
            return True
        took = f"it takes {format_seconds(known)}" if known else "it may take longer"
        self._note(f"budget: {evaluator.name} is not evaluated: {took}, and less is left")
        return False


class StopCheck:
    """A check between the passes of a task, made equally often on each rank.

    It raises `EvaluationStopped` on all ranks or none.

    The ranks agree every few seconds. From that the watchdog also sees that they work: where each rank has the whole
    model, nothing else passes between them until the end.
    """

    def __init__(self, ranks: Ranks, must_stop: Callable[[float], bool]) -> None:
        self._ranks = ranks
        self._must_stop = must_stop
        self._passes = 0
        self._checked = 0
        self._next = 1
        self._checked_at = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        self._passes += 1
        if self._passes < self._next:
            return
        now = time.monotonic()
        passes = self._passes - self._checked
        per_pass = max((now - self._checked_at) / passes, 1e-6)
        # At most twice as many as before: a GPU's first passes are queued before any is computed.
        mine = max(1, min(int(CHECK_SECONDS / per_pass), 2 * passes))
        if self._ranks.any(self._must_stop(mine * per_pass)):
            raise EvaluationStopped
        self._next = self._passes - self._ranks.largest(-mine)  # the slowest rank decides
        self._checked = self._passes
        self._checked_at = now
