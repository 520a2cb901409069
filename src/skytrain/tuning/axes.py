"""Tuning of several settings within one budget: one after another, in further rounds while money is left.

Each turn is a separate sweep, `<name>-<turn>-<axis>`, at the best values so far of the other settings. In the second
round, a setting is searched at the new values of the others, so settings that depend on each other converge.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..config import Config
from ..runs import Reporter, boot_clock
from ..storage import Store, open_store
from .costs import StepEstimate, priced_problem
from .ledger import FINAL, BudgetError, HourlyPrice
from .machine import SweepTools, TunedSweep, find_estimates, tune_here
from .problem import Answer
from .setting_up import check_axes, sweep_name, sweep_price
from .sweep_plan import find_instance
from .sweeps import SweepStore
from .trials import axes_overrides, trial_shapes, with_value

SETTLED = math.log(1.1)  # a turn that moves a value by less ends the search
MOST_ROUNDS = 3


@dataclass(frozen=True)
class AxisTurn:
    """The answer of one turn."""

    axis: str
    answer: Answer
    moved: float  # ln of the new value over the one before


def tune_axes(config: Config, reporter: Reporter, tools: SweepTools, since: float | None = None) -> TunedSweep:
    """Tune each of `tune.axes` in turn. A second call continues where the first stopped."""
    axes = check_axes(config)
    name = sweep_name(config)
    price = sweep_price(config, find_instance())
    store = open_store(config.store)
    turns: list[AxisTurn] = []
    spent = 0.0
    tuned = None
    known: dict[str, StepEstimate] = {}
    for number in range(MOST_ROUNDS * len(axes)):
        turn = turn_config(config, name, axes, number)
        answer = _settled_answer(store, turn, turn_config(config, name, axes, number + 1))
        if answer is None:
            try:
                known = find_estimates(turn, reporter, tools, known)
                # Keep money for the remaining axes of this round.
                budget_usd = _budget(turn, known, price, spent, len(axes) - number % len(axes))
                reporter.note(f"{turn.tune.axis}: up to ${budget_usd:.4f}, final run included")
                paid = replace(turn, budget=replace(turn.budget, usd=budget_usd))
                tuned = tune_here(paid, reporter, tools, since)
            except BudgetError:
                if number < len(axes) or tuned is None:
                    raise
                break  # the remaining money does not buy another turn
            answer = tuned.conclusion.answer
            since = boot_clock()
        spent += _spent(store, turn)
        config, moved = with_value(config, turn.tune.axis, answer.rate)
        turns.append(AxisTurn(turn.tune.axis, answer, moved))
        if number >= len(axes) and all(abs(one.moved) < SETTLED for one in turns[-len(axes) :]):
            break
    assert tuned is not None
    return replace(tuned, name=name, final_overrides=axes_overrides(config, axes), turns=tuple(_lines(turns)))


def turn_config(config: Config, name: str, axes: Sequence[str], number: int) -> Config:
    """Return the configuration of one turn, from the values that the turns before it have found."""
    axis: Any = axes[number % len(axes)]
    # The first round starts from a published law, later rounds from the values of the rounds before.
    expected = config.optimizer.lr if axis == "lr" and number >= len(axes) else None
    tune = replace(config.tune, axis=axis, axes=None, name=f"{name}-{number + 1}-{axis}", expected=expected)
    return replace(config, tune=tune)


def _settled_answer(store: Store, turn: Config, following: Config) -> Answer | None:
    """Return the answer that the following turn was begun with: it stays, also where there is money for another trial now."""
    if not SweepStore(store, sweep_name(following)).decisions():
        return None
    return SweepStore(store, sweep_name(turn)).answer()


def _budget(config: Config, estimates: dict[str, StepEstimate], price: HourlyPrice, spent: float, shares: int) -> float:
    """Return this turn's dollars: the final run, and its share of what is left for searching."""
    final = priced_problem(config, trial_shapes(config), estimates, price)[1]
    assert config.budget.usd is not None
    return final + max(0.0, config.budget.usd - final - spent) / shares


def _spent(store: Store, config: Config) -> float:
    sweep = SweepStore(store, sweep_name(config))
    return sum(entry.usd for entry in sweep.entries() if entry.what != FINAL)


def _lines(turns: list[AxisTurn]) -> list[str]:
    """Return a line for each turn, in order."""
    lines = []
    for number, one in enumerate(turns, 1):
        low = one.answer.low
        high = one.answer.high
        span = f", 80% interval {low:.3g} to {high:.3g}" if low is not None and high is not None else ""
        lines.append(f"turn {number}: {one.axis} {one.answer.rate:.3g}{span} (x{math.exp(one.moved):.2f})")
    return lines
