"""Whether trunks pay: a longer trial that starts from the plateau of a shorter one, in the replay of tables.

    python benchmarks/tuning/trunks.py --every 12 > benchmarks/tuning/trunks.log    # some minutes

With `lr_schedule=wsd` and `tune.trunk=true`, a trial that has a shorter one of the same model and rate pays only for what
comes after that one's plateau (`decay_fraction` of a run is no plateau). Three ladders play against the tables of
replay.py, as if all their runs had this schedule:

- without: every trial costs all of its tokens;
- charged: trials cost what they take, but the choice expects the full price, which is what `tune` does;
- known: the choice also knows, for each rung, what it costs at a rate that a shorter rung of its model has.

A second table does the same for successive halving, which raises the horizon at the same rates by design.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from replay import BUDGETS, Case, Group, cases, groups, made_up, p90
from table import Cell

from skytrain.tuning import Observation, Problem
from skytrain.tuning.problem import Priors, Search
from skytrain.tuning.strategies.base import Strategy
from skytrain.tuning.strategies.registry import find_strategy

PLATEAU = 0.8  # of a run, before it decays: the default of lr_schedule=wsd
KINDS = ("without", "charged", "known")


def play(strategy: Strategy, case: Case, priors: Priors, kind: str) -> tuple[float, int]:
    """Return the regret in thousandths of a nat, and the number of trials."""
    rates = [rate for cell in (case.target, *case.menu) for rate in cell.rates]
    by_name = {cell.rung.name: cell for cell in case.menu}
    history: list[Observation] = []
    left = case.usd
    while True:
        rungs = [cell.rung for cell in case.menu]
        if kind == "known":
            rungs = [replace(cell.rung, usd=least_usd(cell, case.menu, history)) for cell in case.menu]
        problem = Problem(
            target=case.target.rung, rungs=tuple(rungs), lowest=min(rates), highest=max(rates), priors=priors
        )
        # An observation's cost corrects later prices; here they are exact, so it has that of its rung.
        search = Search(problem, tuple(history), left, case.usd)
        trial = strategy.propose(search)
        if trial is None:
            return 1e3 * case.target.regret(strategy.answer(search).rate), len(history)
        cell = by_name[trial.rung]
        usd = cell.rung.usd if kind == "without" else usd_from_trunk(cell, case.menu, history, trial.rate)
        if usd > left * (1 + 1e-9):  # the price that the choice knew was for another rate
            return 1e3 * case.target.regret(strategy.answer(search).rate), len(history)
        left -= usd
        history.append(Observation(trial, cell.observe(trial.rate), problem.rung(trial.rung).usd))


def shorter(cell: Cell, menu: Sequence[Cell]) -> list[Cell]:
    """Return the cells whose runs are the beginning of this one's."""
    return [
        one
        for one in menu
        if one.rung.parameters == cell.rung.parameters
        and one.rung.batch_tokens == cell.rung.batch_tokens
        and one.rung.tokens < cell.rung.tokens
    ]


def usd_from_trunk(cell: Cell, menu: Sequence[Cell], history: Sequence[Observation], rate: float) -> float:
    """Return what a trial costs if it starts from the longest plateau that exists at its rate."""
    same = {one.trial.rung for one in history if one.finite and abs(np.log(one.trial.rate / rate)) < 1e-3}
    saved = [PLATEAU * one.rung.usd for one in shorter(cell, menu) if one.rung.name in same]
    return cell.rung.usd - max(saved, default=0.0)


def least_usd(cell: Cell, menu: Sequence[Cell], history: Sequence[Observation]) -> float:
    """Return what a trial costs at a rate for which a shorter one exists; the full price if there is none."""
    tried = {one.trial.rung for one in history if one.finite}
    saved = [PLATEAU * one.rung.usd for one in shorter(cell, menu) if one.rung.name in tried]
    return cell.rung.usd - max(saved, default=0.0)


def report(group: Group, name: str) -> None:
    every = cases(group)
    beliefs = {case.target.rung.name: group.beliefs(case.target) for case in every}
    print(f"\n{group.name}, {name}: {len(every)} cases; median / p90 / mean of the regret, and trials")
    for kind in KINDS:
        if kind == "known" and name != "ladder":
            continue
        played = [play(find_strategy(name), case, beliefs[case.target.rung.name], kind) for case in every]
        words = []
        for budgets in (*((one,) for one in BUDGETS), BUDGETS):
            numbers = [number for number, case in enumerate(every) if case.budget in budgets]
            if numbers:
                regrets = np.array([played[number][0] for number in numbers])
                trials = np.mean([played[number][1] for number in numbers])
                words.append(f"{np.median(regrets):6.2f} /{p90(regrets):7.2f} /{regrets.mean():6.2f} {trials:5.1f}")
        print(f"  {kind:8} " + " | ".join(words), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=int, default=4, help="play only every so many targets")
    arguments = parser.parse_args()
    print("budgets of 0.5, 1, 2, 4 and 8 target runs where cases have them, then all")
    chosen = [one for one in groups(arguments.every) if one.name in ("dense", "mixtures", "h200")]
    for group in [*chosen, *made_up([1], arguments.every)]:
        report(group, "ladder")
    for group in chosen:
        report(group, "halving")


if __name__ == "__main__":
    main()
