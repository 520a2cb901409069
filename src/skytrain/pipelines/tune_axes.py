"""Several settings tuned within one budget: one after another, then again around each other while money is left.

Each turn is a sweep of its own, `<name>-<turn>-<axis>`, at the best values so far of the other settings. The second
time around, a setting is searched where the others have moved to, so settings that depend on each other meet.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..config import Config
from ..runs import Reporter, boot_clock
from ..storage import Store, open_store
from ..tuning import (
    FINAL,
    Answer,
    BudgetError,
    HourlyPrice,
    StepEstimate,
    SweepStore,
    axes_words,
    check_axes,
    find_instance,
    priced_problem,
    sweep_name,
    sweep_price,
    trial_shapes,
    with_value,
)
from .tune import TunedSweep, find_estimates, tune

SETTLED = math.log(1.1)  # a turn that moves a value by less ends the search
MOST_ROUNDS = 3


@dataclass(frozen=True)
class AxisTurn:
    """What one turn answered."""

    axis: str
    answer: Answer
    moved: float  # ln of the new value over the one before


def tune_axes(config: Config, reporter: Reporter) -> TunedSweep:
    """Tunes each of `tune.axes` in turn. The same call again continues."""
    axes = check_axes(config)
    name = sweep_name(config)
    price = sweep_price(config, find_instance())
    store = open_store(config.store)
    turns: list[AxisTurn] = []
    spent = 0.0
    tuned = None
    since = None
    known: dict[str, StepEstimate] = {}
    for number in range(MOST_ROUNDS * len(axes)):
        turn = turn_config(config, name, axes, number)
        answer = _settled_answer(store, turn, turn_config(config, name, axes, number + 1))
        if answer is None:
            try:
                known = find_estimates(turn, reporter, known)
                # Money is kept for the axes that are still to come in this round.
                tuned = _turn(turn, _budget(turn, known, price, spent, len(axes) - number % len(axes)), since, reporter)
            except BudgetError:
                if number < len(axes) or tuned is None:
                    raise
                break  # what is left buys no further turn
            answer = tuned.conclusion.answer
            since = boot_clock()
        spent += _spent(store, turn)
        config, moved = with_value(config, turn.tune.axis, answer.rate)
        turns.append(AxisTurn(turn.tune.axis, answer, moved))
        if number >= len(axes) and all(abs(one.moved) < SETTLED for one in turns[-len(axes) :]):
            break
    assert tuned is not None
    return replace(tuned, name=name, final_words=axes_words(config, axes), turns=tuple(_lines(turns)))


def turn_config(config: Config, name: str, axes: Sequence[str], number: int) -> Config:
    """One turn's sweep, from the values that the turns before it have found."""
    axis: Any = axes[number % len(axes)]
    # A published law is where the first round starts. Later ones start from what was found.
    expected = config.optimizer.lr if axis == "lr" and number >= len(axes) else None
    tune = replace(config.tune, axis=axis, axes=None, name=f"{name}-{number + 1}-{axis}", expected=expected)
    return replace(config, tune=tune)


def _settled_answer(store: Store, turn: Config, following: Config) -> Answer | None:
    """The answer that the following turn was begun with: it stays, also where there is money for another trial now."""
    if not SweepStore(store, sweep_name(following)).decisions():
        return None
    return SweepStore(store, sweep_name(turn)).answer()


def _turn(config: Config, budget_usd: float, since: float | None, reporter: Reporter) -> TunedSweep:
    reporter.note(f"{config.tune.axis}: up to ${budget_usd:.4f}, final run included")
    return tune(replace(config, budget=replace(config.budget, usd=budget_usd)), reporter, since)


def _budget(config: Config, estimates: dict[str, StepEstimate], price: HourlyPrice, spent: float, shares: int) -> float:
    """This turn's sum: the final run, and its share of what is left for searching."""
    final = priced_problem(config, trial_shapes(config), estimates, price)[1]
    assert config.budget.usd is not None
    return final + max(0.0, config.budget.usd - final - spent) / shares


def _spent(store: Store, config: Config) -> float:
    sweep = SweepStore(store, sweep_name(config))
    return sum(entry.usd for entry in sweep.entries() if entry.what != FINAL)


def _lines(turns: list[AxisTurn]) -> list[str]:
    """A line for each turn, in order."""
    found = []
    for number, one in enumerate(turns, 1):
        low = one.answer.low
        high = one.answer.high
        span = f", 80% interval {low:.3g} to {high:.3g}" if low is not None and high is not None else ""
        found.append(f"turn {number}: {one.axis} {one.answer.rate:.3g}{span} (x{math.exp(one.moved):.2f})")
    return found
