"""Plays every strategy against a published table of runs, with simulated dollars.

    python benchmarks/tuning/replay.py steplaw_dense.csv > benchmarks/tuning/replay.log

The table (github.com/step-law/steplaw, data/dense_lr_bs_loss.csv with the columns n, tokens, batch_tokens, lr, loss)
is not part of the project; any table with these columns works.

- A target is a (model, tokens, batch) with at least 6 rates and smaller settings to learn from: no larger model, no
  more tokens, any batch. A trial costs parameters x tokens. Search budgets are 0.25, 0.5 and 1 target runs, counted
  where they buy at least 5 of the cheapest trials. Trials at the target itself are not for sale.
- Regret is the target's loss at the answered rate, linear between the table's rates over the logarithm, minus the
  lowest loss of the target in the table. Answers are kept inside the range of the target's rates.
- The truth for the 80% interval is the minimum of the U fitted to all rates of the target.
- All strategies get the same expected rate to start from: our batch-aware law, refitted without the target's setting
  (all of its batches). The widths of the ladder's beliefs come from the same settings, each left out in turn. A
  strategy that cannot afford what it needs answers with that law; `own` counts the cases in which it had trials of
  its own.
- Around a law of other runs the ladder has the wide beliefs that it has for a target far from all published runs.
- The ladder's other constants were chosen in the worlds of worlds.py, not here.
- Laws whose constants were fitted on this table are shown apart.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from table import Cell, Setting, fit_law, priors_without, read_table

from skytrain.tuning import (
    LAWS,
    Answer,
    Law,
    Observation,
    Priors,
    Problem,
    Rung,
    Search,
    Strategy,
    all_strategies,
    combined_law,
    find_strategy,
    law_named,
    priors_for,
)

BUDGETS = (0.25, 0.5, 1.0)
FITTED_HERE = ("step-law", "batch-aware")
HYBRIDS = ("early-stopping+ladder", "model-scaling+greedy")
VARIANT_STRIDE = 3  # every so many cases are played with other beliefs
UNKNOWN = Rung(name="", parameters=5e6, tokens=2e7, batch_tokens=16384.0, usd=1.0)  # far from all published runs


@dataclass(frozen=True)
class Case:
    target: Cell
    menu: tuple[Cell, ...]
    budget: float  # in target runs

    @property
    def usd(self) -> float:
        return self.budget * self.target.rung.usd


@dataclass(frozen=True)
class Played:
    answer: Answer
    regret: float
    trials: int
    usd: float


def cases(cells: Sequence[Cell]) -> Iterator[Case]:
    for target in cells:
        size, tokens = target.setting
        menu = tuple(
            cell
            for cell in cells
            if cell.setting != target.setting and cell.setting[0] <= size and cell.setting[1] <= tokens
        )
        if len(target.rates) < 6 or not menu:
            continue
        cheapest = min(cell.rung.usd for cell in menu)
        for budget in BUDGETS:
            if budget * target.rung.usd >= 5 * cheapest * (1 - 1e-9):
                yield Case(target, menu, budget)


def play(strategy: Strategy, case: Case, priors: Priors) -> Played:
    rates = case.target.rates
    problem = Problem(
        target=case.target.rung,
        rungs=tuple(cell.rung for cell in case.menu),
        lowest=rates[0],
        highest=rates[-1],
        priors=priors,
    )
    by_name = {cell.rung.name: cell for cell in case.menu}
    history: list[Observation] = []
    left = case.usd
    while (trial := strategy.propose(Search(problem, tuple(history), left, case.usd))) is not None:
        cell = by_name[trial.rung]
        assert cell.rung.usd <= left * (1 + 1e-9), f"{strategy.name} overspends"
        left -= cell.rung.usd
        history.append(Observation(trial, cell.observe(trial.rate), cell.rung.usd))
    answer = strategy.answer(Search(problem, tuple(history), left, case.usd))
    return Played(answer, case.target.regret(answer.rate), len(history), case.usd - left)


def row(name: str, played: Sequence[Played], truths: Sequence[float], words: str = "") -> str:
    regrets = np.array([one.regret for one in played]) * 1e3
    spans = [
        one.answer.low <= math.exp(truth) <= one.answer.high
        for one, truth in zip(played, truths, strict=True)
        if one.answer.low is not None and one.answer.high is not None and one.trials
    ]
    coverage = f"{100 * np.mean(spans):4.0f}%" if len(spans) > len(played) / 2 else "    -"
    own = sum(one.trials > 0 for one in played)
    return (
        f"{name:24} {np.median(regrets):7.2f} {np.percentile(regrets, 90):7.2f} {regrets.mean():7.2f} {coverage:>9} "
        f"{np.mean([one.trials for one in played]):7.1f} {own:5d}   {words}"
    )


HEADER = f"{'':24} {'median':>7} {'p90':>7} {'mean':>7} {'coverage':>9} {'trials':>7} {'own':>5}"


def paired(ours: Sequence[Played], other: Sequence[Played], groups: Sequence[Setting]) -> str:
    """Difference of the medians with its 95% interval; whole settings are redrawn, since their batches are alike."""
    rng = np.random.default_rng(0)
    a, b = (np.array([one.regret for one in played]) * 1e3 for played in (ours, other))
    names = sorted(set(groups))
    members = [np.array([number for number, one in enumerate(groups) if one == name]) for name in names]
    draws = []
    for _ in range(2000):
        chosen = np.concatenate([members[number] for number in rng.integers(len(names), size=len(names))])
        draws.append(np.median(a[chosen]) - np.median(b[chosen]))
    low, high = np.percentile(draws, [2.5, 97.5])
    return f"ours - it: {np.median(a) - np.median(b):+.2f} [{low:+.2f}, {high:+.2f}]"


def law_rows(name: str, every: Sequence[Case], law: Callable[[Rung], float]) -> list[Played]:
    found = []
    for case in every:
        rate = min(max(law(case.target.rung), case.target.rates[0]), case.target.rates[-1])
        found.append(Played(Answer(rate), case.target.regret(rate), 0, 0.0))
    return found


def _row_of(name: str, numbers: Sequence[int], played: Sequence[Any], about: Sequence[Any]) -> str:
    """A row over some of the cases: of a strategy and ours, with truths and groups."""
    (them, ours), (truths, groups) = (
        [[each[number] for number in numbers] for each in both] for both in (played, about)
    )
    return row(name, them, truths, paired(ours, them, groups))


def _law_of(name: str) -> Law:
    published = law_named(name).rate
    return lambda rung: math.log(published(rung))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("table", type=Path)
    parser.add_argument("--every", type=int, default=1, help="play only every so many cases")
    arguments = parser.parse_args()
    began = time.monotonic()
    cells = read_table(arguments.table)
    optima = {cell.rung.name: cell.optimum() for cell in cells}
    enough = [cell for cell in cells if len(cell.rates) >= 6]
    every = list(cases(cells))[:: arguments.every]
    truths = [optima[case.target.rung.name] for case in every]
    settings = sorted({cell.setting for cell in enough})
    priors = {one: priors_without(enough, optima, {one}) for one in settings}
    laws = {one: found.law for one, found in priors.items()}
    without_size = {one: fit_law(enough, optima, {each for each in settings if each[0] == one[0]}) for one in settings}
    print(
        f"{sum(len(cell.rates) for cell in cells)} runs, {len(cells)} cells, {len(settings)} settings; {len(every)} cases:"
    )
    print(", ".join(f"{sum(case.budget == one for case in every)} with {one:g} target runs" for one in BUDGETS))
    everything = priors_without(enough, optima, ())
    print(f"all settings: {everything.law}")
    print(
        f"widths: { ({name: round(getattr(everything, name), 3) for name in ('offset', 'size', 'horizon', 'nugget')}) }"
    )
    vertex = [case.target.regret(math.exp(truth)) for case, truth in zip(every, truths, strict=True)]
    print(
        f"regret of the fitted optimum itself: median {1e3 * np.median(vertex):.2f}, p90 {1e3 * np.percentile(vertex, 90):.2f}\n"
    )

    def played(name: str, law: Callable[[Case], Priors], stride: int = 1) -> list[Played]:
        return [play(find_strategy(name), case, law(case)) for case in every[::stride]]

    def refitted(case: Case) -> Priors:
        return priors[case.target.setting]

    print(f"Regret at the target in thousandths of a nat\n{HEADER}")
    ours = played("ladder", refitted)
    print(row("ladder", ours, truths, "ours"))
    groups = [case.target.setting for case in every]
    others = {}
    for name in [*sorted(set(all_strategies()) - {"ladder", "literature"}), *HYBRIDS]:
        others[name] = played(name, refitted)
        print(row(name, others[name], truths, paired(ours, others[name], groups)), flush=True)
    for name in (one.name for one in LAWS if one.name not in FITTED_HERE):
        others[name] = law_rows(name, every, law_named(name).rate)
        print(row(f"law {name}", others[name], truths, paired(ours, others[name], groups)))

    print(f"\nLaws that were fitted on this table, not ranked\n{HEADER}")
    for name in FITTED_HERE:
        print(row(f"law {name}", law_rows(name, every, law_named(name).rate), truths))
    refit = law_rows("", every, lambda rung: math.exp(laws[int(rung.parameters), int(rung.tokens)](rung)))
    print(row("refitted without target", refit, truths, paired(ours, refit, groups)))

    print(f"\nOnly the cases in which a strategy bought trials of its own\n{HEADER}")
    for name, them in others.items():
        own = [number for number, one in enumerate(them) if one.trials]
        if own and len(own) < len(them):
            print(_row_of(name, own, (them, ours), (truths, groups)))

    print(f"\nThe ladder by budget, and with other beliefs\n{HEADER}")
    for budget in BUDGETS:
        those = [number for number, case in enumerate(every) if case.budget == budget]
        print(row(f"budget {budget:g}", [ours[one] for one in those], [truths[one] for one in those]))
    some = truths[::VARIANT_STRIDE]
    print(row("every third case", ours[::VARIANT_STRIDE], some, "of ours, for comparison with these:"))
    beliefs: dict[str, tuple[Callable[[Case], Priors], str]] = {
        "no run of its size": (
            lambda case: replace(priors[case.target.setting], law=without_size[case.target.setting]),
            "the law refitted without any setting of the target's model",
        )
    }
    for name in ("deepseek", "gpt3-table", "horizon"):
        published = priors_for(UNKNOWN, _law_of(name))
        beliefs[f"around {name}"] = (lambda case, published=published: published, "a law of other runs, wide beliefs")
    beliefs["as shipped"] = (
        lambda case: priors_for(case.target.rung, combined_law(case.target.rung)),
        "constants fitted on this table too",
    )
    for name, (belief, words) in beliefs.items():
        found = played("ladder", belief, VARIANT_STRIDE)
        print(row(name, found, some, words), flush=True)
    print(f"\n{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
