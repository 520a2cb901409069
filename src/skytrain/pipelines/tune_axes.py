"""Several settings tuned within one budget: one after another, then again around each other while money is left.

Each turn is a sweep of its own, `<name>-<turn>-<axis>`, at the best values so far of the other settings. The second
time around, a setting is searched where the others have moved to, so settings that depend on each other meet.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from ..config import Config, ConfigError
from ..runs import Reporter, boot_clock
from ..storage import open_store
from ..tuning import (
    AXES,
    FINAL,
    Answer,
    BudgetError,
    HourlyPrice,
    SweepStore,
    axes_words,
    sweep_name,
    sweep_price,
    trial_shapes,
    with_value,
)
from .tune import TunedSweep, save_estimates, tune
from .tune_costs import priced_problem
from .tune_plan import find_instance

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
    axes = config.tune.axes or []
    if config.tune.machines > 1:
        raise ConfigError("tune.axes", "several axes are tuned by one machine", hint="leave out tune.machines")
    if len(set(axes)) != len(axes):
        raise ConfigError("tune.axes", f"{axes} names one twice")
    if unknown := [axis for axis in axes if axis not in AXES]:
        raise ConfigError("tune.axes", f"{unknown[0]!r} cannot be tuned", hint=f"one of {', '.join(AXES)}")
    name, price = sweep_name(config), sweep_price(config, find_instance())
    turns: list[AxisTurn] = []
    spent, tuned, since = 0.0, None, None
    for number in range(MOST_ROUNDS * len(axes)):
        axis: Any = axes[number % len(axes)]
        turn = replace(config, tune=replace(config.tune, axis=axis, axes=None))
        turn = replace(turn, tune=replace(turn.tune, name=f"{name}-{number + 1}-{turn.tune.axis}"))
        shares = max(1, len(axes) - number)  # money is kept for axes that have had no turn yet
        try:
            found = _turn(turn, _budget(turn, price, spent, shares, reporter), since, reporter)
        except BudgetError:
            if number < len(axes):
                raise
            break  # what is left buys no further turn
        tuned, since = found, boot_clock()
        spent += _spent(turn)
        config, moved = with_value(config, turn.tune.axis, found.conclusion.answer.rate)
        turns.append(AxisTurn(turn.tune.axis, found.conclusion.answer, moved))
        if number >= len(axes) and all(abs(one.moved) < SETTLED for one in turns[-len(axes) :]):
            break
    assert tuned is not None
    return replace(tuned, name=name, final_words=axes_words(config, axes), turns=tuple(_lines(turns)))


def _turn(config: Config, budget_usd: float, since: float | None, reporter: Reporter) -> TunedSweep:
    reporter.note(f"{config.tune.axis}: up to ${budget_usd:.4f}, final run included")
    return tune(replace(config, budget=replace(config.budget, usd=budget_usd)), reporter, since)


def _budget(config: Config, price: HourlyPrice, spent: float, shares: int, reporter: Reporter) -> float:
    """This turn's sum: the final run, and its share of what is left for searching."""
    estimates = save_estimates(config, reporter)
    final = priced_problem(config, trial_shapes(config), estimates, price)[1]
    assert config.budget.usd is not None
    return final + max(0.0, config.budget.usd - final - spent) / shares


def _spent(config: Config) -> float:
    sweep = SweepStore(open_store(config.store), sweep_name(config))
    return sum(entry.usd for entry in sweep.entries() if entry.what != FINAL)


def _lines(turns: list[AxisTurn]) -> list[str]:
    """A line for each turn, in order."""
    found = []
    for number, one in enumerate(turns, 1):
        low, high = one.answer.low, one.answer.high
        span = f", 80% interval {low:.3g} to {high:.3g}" if low is not None and high is not None else ""
        found.append(f"turn {number}: {one.axis} {one.answer.rate:.3g}{span} (x{math.exp(one.moved):.2f})")
    return found
