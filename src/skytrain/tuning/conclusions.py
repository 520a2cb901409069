"""The answer in words: three lines, what an error would cost, and what each strategy concludes from the trials."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .driver import edge_warnings
from .joint import JointFit, fit_jointly
from .problem import Answer, Observation, Problem, Search
from .strategies.base import Strategy
from .strategies.registry import all_strategies

# Epoch AI's refit of Chinchilla's law (arXiv 2404.10102): loss = ... + B / D^beta.
DATA_FACTOR = 2085.43
DATA_EXPONENT = 0.3658


@dataclass(frozen=True)
class Conclusion:
    """An answer, and the trials and money behind it."""

    answer: Answer
    axis: str
    trials: int
    spent_usd: float
    final_usd: float
    tokens_usd: float | None  # cost of the additional tokens that would make up for the expected regret
    warnings: tuple[str, ...]

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
        return [
            f"{self.axis} {answer.rate:.3g}",
            (width or "no interval: this strategy has none") + regret + danger,
            f"{answer.why}; {self.trials} trials for {_usd(self.spent_usd)}, final run at most {_usd(self.final_usd)}",
        ]


def conclusion_of(
    problem: Problem, history: Sequence[Observation], answer: Answer, axis: str, money: tuple[float, float]
) -> Conclusion:
    """Return a strategy's conclusion, where `money` is what was spent and what the final run may cost."""
    spent, final = money
    worth = None
    if answer.regret_nats is not None:
        worth = final * (math.exp(answer.regret_nats / nats_per_log_token(problem, history)) - 1)
    warnings = (*answer.warnings, *edge_warnings(problem, history))
    return Conclusion(
        answer=answer,
        axis=axis,
        trials=len(history),
        spent_usd=spent,
        final_usd=final,
        tokens_usd=worth,
        warnings=warnings,
    )


def nats_per_log_token(problem: Problem, history: Sequence[Observation]) -> float:
    """Return how much the loss falls per factor of e in tokens at the target: from two horizons of one model, or else a
    law.
    """
    best: dict[tuple[float, float], float] = {}
    for one in history:
        rung = problem.rung(one.trial.rung)
        if one.finite:
            place = (rung.parameters, rung.tokens)
            best[place] = min(best.get(place, math.inf), one.loss)
    slopes = []
    for (size, tokens), loss in best.items():
        longer = [(other, less) for (same, other), less in best.items() if same == size and other > tokens]
        slopes += [(size, other, (loss - less) / math.log(other / tokens)) for other, less in longer if less < loss]
    law = DATA_EXPONENT * DATA_FACTOR / problem.target.tokens**DATA_EXPONENT
    if not slopes:
        return law
    _, tokens, slope = max(slopes)  # of the largest model over its longest horizon
    return float(slope * (problem.target.tokens / tokens) ** -DATA_EXPONENT)


@dataclass(frozen=True)
class OtherAnswer:
    strategy: str
    answer: Answer


def other_answers(search: Search) -> list[OtherAnswer]:
    """Return what each strategy would have answered from the same trials."""
    return [OtherAnswer(name, strategy.answer(search)) for name, strategy in sorted(_usable().items())]


def _usable() -> dict[str, Strategy]:
    return {name: one for name, one in all_strategies().items() if name != "literature"}


def fitted_curves(problem: Problem, history: Sequence[Observation]) -> JointFit | None:
    """Return the joint fit of all trials, for plots; None if no trial has a loss."""
    return fit_jointly(problem, history) if any(one.finite for one in history) else None


def _usd(usd: float | None) -> str:
    return f"${usd:.2f}" if usd is not None and usd >= 0.1 else f"${usd:.4f}"
