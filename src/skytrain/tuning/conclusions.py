"""The answer in words: three lines, what an error would cost, and what each strategy concludes from the trials."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .driver import TRIAL, edge_warnings
from .joint import JointFit, fit_jointly
from .ledger import Ledger
from .problem import Answer, Observation, Problem, Search, nats_per_log_token
from .strategies.base import Strategy
from .strategies.registry import all_strategies


@dataclass(frozen=True)
class SweepMoney:
    """A sweep's dollars."""

    budget_usd: float
    trials_usd: float
    overhead_usd: float  # start-ups, measuring, and machines that waited
    final_usd: float  # the most that the final run may cost

    @classmethod
    def of(cls, ledger: Ledger, final_usd: float) -> SweepMoney:
        trials = sum(entry.usd for entry in ledger.entries if entry.what.startswith(TRIAL))
        return cls(ledger.budget_usd, trials, ledger.spent_usd - trials, final_usd)

    @property
    def spent_usd(self) -> float:
        return self.trials_usd + self.overhead_usd

    @property
    def payable_usd(self) -> float:
        """Return what the budget leaves for the final run, at most what it may cost."""
        return min(self.final_usd, max(0.0, self.budget_usd - self.spent_usd))


@dataclass(frozen=True)
class Conclusion:
    """An answer, and the trials and money behind it."""

    answer: Answer
    axis: str
    trials: int
    money: SweepMoney
    tokens_usd: float | None  # cost of the additional tokens that would make up for the expected regret
    warnings: tuple[str, ...]

    @property
    def final_usd(self) -> float:
        """Return what the final run may cost."""
        return self.money.payable_usd

    def lines(self) -> list[str]:
        """Return the rate, the interval and the reason, one line each."""
        answer = self.answer
        width = ""
        if answer.low is not None and answer.high is not None:
            width = f"80% interval {answer.low:.3g} to {answer.high:.3g}"
        regret = ""
        if answer.regret_nats is not None:
            worth = f", {_usd(self.tokens_usd)} of tokens" if self.tokens_usd is not None else ""
            regret = f"; expected {answer.regret_nats:.4f} nats above the optimum{worth}"
        danger = f"; {answer.divergence:.1%} chance of diverging" if answer.divergence is not None else ""
        money = self.money
        first = f"{self.axis} {answer.rate:.3g}"
        if not self.trials:
            first = f"no trial was bought, so nothing was searched; without trials one would take {first}"
        return [
            first,
            (width or "no interval: this strategy has none") + regret + danger,
            f"{answer.why}; {self.trials} trials for {_usd(money.trials_usd)}, {_usd(money.overhead_usd)} around them, "
            f"final run at most {_usd(money.payable_usd)}, budget {_usd(money.budget_usd)}",
        ]


def conclusion_of(
    problem: Problem, history: Sequence[Observation], answer: Answer, axis: str, money: SweepMoney
) -> Conclusion:
    """Return a strategy's conclusion."""
    worth = None
    if answer.regret_nats is not None:
        worth = money.final_usd * (math.exp(answer.regret_nats / nats_per_log_token(problem, history)) - 1)
    warnings = [*answer.warnings, *edge_warnings(problem, history)]
    if money.payable_usd < money.final_usd - 1e-9:
        warnings.append(
            f"trials took longer than measured: the final run may cost {_usd(money.final_usd)}, and "
            f"{_usd(money.payable_usd)} are left; add budget.usd or shorten it"
        )
    return Conclusion(
        answer=answer, axis=axis, trials=len(history), money=money, tokens_usd=worth, warnings=tuple(warnings)
    )


@dataclass(frozen=True)
class OtherAnswer:
    strategy: str
    answer: Answer


def other_answers(search: Search) -> list[OtherAnswer]:
    """Return what each strategy would have answered from the same trials, where these are enough for an answer of its
    own.
    """
    answers = [OtherAnswer(name, strategy.answer(search)) for name, strategy in sorted(_usable().items())]
    return [one for one in answers if one.answer.own]


def _usable() -> dict[str, Strategy]:
    return {name: one for name, one in all_strategies().items() if name != "literature"}


def fitted_curves(problem: Problem, history: Sequence[Observation]) -> JointFit | None:
    """Return the joint fit of all trials, for plots; None if no trial has a loss."""
    return fit_jointly(problem, history) if any(one.finite for one in history) else None


def _usd(usd: float | None) -> str:
    return f"${usd:.2f}" if usd is not None and usd >= 0.1 else f"${usd:.4f}"
