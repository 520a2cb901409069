"""Plays every strategy against tables of finished runs, with simulated dollars, at the same budgets.

    python benchmarks/tuning/replay.py > benchmarks/tuning/replay.log          # all groups, two minutes
    python benchmarks/tuning/replay.py dense --only ladder,grid --every 3      # a part of one
    python benchmarks/tuning/replay.py --table other.csv                       # a table that is not part of the project
    python benchmarks/tuning/replay.py --worlds --every 5 > benchmarks/tuning/worlds.log # made-up tables, see worlds.py
    python benchmarks/tuning/replay.py --mechanisms --every 3 > benchmarks/tuning/mechanisms.log # and mechanisms.py

- **Groups**: dense and mixture-of-experts models of Step Law's authors, eleven optimizers of the Marin project, and the
  grids of h200.py. Sources are in the first line of each table.
- **A target** is a cell (family, model, tokens, batch) with smaller or shorter cells of its family to learn from.
  Trials at the target's own model and horizon are not for sale. A trial costs parameters x tokens, in the grids of
  h200.py the seconds that it took. Search budgets are 0.5 to 8 target runs, counted where they buy three of the
  cheapest trials.
- **Regret** is the target's loss at the table's rate nearest to the answer, minus its lowest, for every strategy.
- **Coverage** is how often the 80% interval holds the minimum of a cubic through the target's rates, over the targets
  whose best rate lies between two others; `of` says how many these are.
- **Laws**: nothing that a strategy starts from has seen the target's family. In the dense group the batch-aware law is
  refitted without the target's architecture; the other groups were used for no law's constants. Optimizers that no
  law covers start from a value that is off by up to a factor of four, as a user's would be.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from mechanisms import MECHANISMS, mechanism_cells
from table import KNOWN_GRIDS, NEW_GRIDS, Cell, fit_law, read_cells
from worlds import WORLDS, world_cells

from skytrain.tuning import Observation, Problem, combined_law
from skytrain.tuning.laws import priors_around, priors_for, width_free_priors
from skytrain.tuning.problem import Answer, Priors, Search
from skytrain.tuning.strategies.base import Strategy
from skytrain.tuning.strategies.registry import find_strategy

HERE = Path(__file__).parent
BUDGETS = (0.5, 1.0, 2.0, 4.0, 8.0)
SIMPLE = ("grid", "halving", "tpe", "literature")
OURS = "ladder"
CHEAPEST = 3  # trials of the cheapest cell that a budget must buy
SLACK = 0.2  # thousandths of a nat that ours may be worse than the best simple strategy, besides the standard error
OFF = math.log(4)  # how far a user's value for an optimizer without a law may be off

WIDTH_FREE = ("width-free", "one-horizon")  # kinds of worlds.py

Beliefs = Callable[[Cell], Priors]


@dataclass(frozen=True)
class Group:
    name: str
    cells: Sequence[Cell]
    beliefs: Beliefs
    stride: int  # only every so many targets are played


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
    regret: float  # thousandths of a nat
    trials: int
    covered: bool | None
    seconds: float


def published(cell: Cell) -> Priors:
    return priors_for(cell.rung, combined_law(cell.rung))


def dense_beliefs(cells: Sequence[Cell]) -> Beliefs:
    """Return what is believed about each architecture when the law has seen only the others."""
    optima = {cell.rung.name: cell.optimum() for cell in cells}
    enough = [cell for cell in cells if len(cell.rates) >= 6]
    laws = {
        family: fit_law([one for one in enough if one.family != family], optima)
        for family in sorted({cell.family for cell in cells})
    }
    return lambda cell: priors_for(cell.rung, combined_law(cell.rung, curves=laws[cell.family]))


def optimizer_beliefs(cell: Cell) -> Priors:
    """Return the published laws for AdamW; for any other optimizer a user's value, with wide beliefs."""
    if cell.family == "adamw":
        return published(cell)
    off = float(np.random.default_rng([int(cell.rung.parameters), int(cell.rung.tokens)]).uniform(-OFF, OFF))
    return priors_around(cell.rung, math.exp(cell.optimum() + off))


def groups(every: int) -> list[Group]:
    dense = read_cells(HERE / "tables/steplaw_dense.csv")
    mixtures = read_cells(HERE / "tables/steplaw_moe.csv")
    optimizers = read_cells(HERE / "tables/marin_optimizers.csv")
    ours, new = (
        [cell for name in names for cell in read_cells(HERE / f"h200_{name}.json")]
        for names in (KNOWN_GRIDS, NEW_GRIDS)
    )
    return [
        Group("dense", dense, dense_beliefs(dense), every),
        Group("mixtures", mixtures, published, every),
        Group("optimizers", optimizers, optimizer_beliefs, every),
        Group("h200", ours, published, every),
        Group("h200-new", new, published, every),
    ]


def made_up(draws: Sequence[int], every: int) -> list[Group]:
    """Return the kinds of worlds.py around the published laws; those without widths also with a recipe that says so."""
    found = [
        Group(world.name, [cell for draw in draws for cell in world_cells(world, draw)], published, every)
        for world in WORLDS
    ]
    known = [
        Group(f"{one.name}, known", one.cells, lambda cell: width_free_priors(cell.rung), every)
        for one in found
        if one.name in WIDTH_FREE
    ]
    return [*found, *known]


def cases(group: Group) -> list[Case]:
    found = []
    for target in group.cells:
        menu = tuple(one for one in group.cells if is_cheaper(one, target))
        if len(target.rates) < 3 or not menu:
            continue
        found.append((target, menu))
    picked = found[:: group.stride]
    return [
        Case(target, menu, budget)
        for budget in BUDGETS
        for target, menu in picked
        if budget * target.rung.usd >= CHEAPEST * min(one.rung.usd for one in menu) * (1 - 1e-9)
    ]


def is_cheaper(cell: Cell, target: Cell) -> bool:
    """Return whether a cell is a smaller model or a shorter horizon of the target's family."""
    if cell.family != target.family or cell.setting == target.setting:
        return False
    return cell.rung.parameters <= target.rung.parameters and cell.rung.tokens <= target.rung.tokens


def play(strategy: Strategy, case: Case, priors: Priors) -> Played:
    began = time.monotonic()
    rates = [rate for cell in (case.target, *case.menu) for rate in cell.rates]
    problem = Problem(
        target=case.target.rung,
        rungs=tuple(cell.rung for cell in case.menu),
        lowest=min(rates),
        highest=max(rates),
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
    truth = math.exp(case.target.optimum())
    covered = None
    if answer.low is not None and answer.high is not None and case.target.bracketed:
        covered = answer.low <= truth <= answer.high
    regret = 1e3 * case.target.regret(answer.rate)
    return Played(answer=answer, regret=regret, trials=len(history), covered=covered, seconds=time.monotonic() - began)


def spread(regrets: np.ndarray, statistic: Callable[[np.ndarray], float], owners: Sequence[str]) -> float:
    """Return the standard error of a statistic; whole targets are redrawn, since their budgets are alike."""
    rng = np.random.default_rng(0)
    members: dict[str, list[int]] = {}
    for number, owner in enumerate(owners):
        members.setdefault(owner, []).append(number)
    names = list(members)
    draws = []
    for _ in range(300):
        chosen = [number for one in rng.integers(len(names), size=len(names)) for number in members[names[one]]]
        draws.append(statistic(regrets[chosen]))
    return float(np.std(draws))


def row(name: str, played: Sequence[Played]) -> str:
    regrets = np.array([one.regret for one in played])
    held = [one.covered for one in played if one.covered is not None]
    coverage = f"{100 * np.mean(held):.0f}% of {len(held)}" if held else "-"
    return (
        f"  {name:22} {np.median(regrets):7.2f} {p90(regrets):8.2f} {regrets.mean():7.2f} {coverage:>12} "
        f"{np.mean([one.trials for one in played]):7.1f} {np.mean([one.seconds for one in played]):8.2f}"
    )


def median(regrets: np.ndarray) -> float:
    return float(np.median(regrets))


def p90(regrets: np.ndarray) -> float:
    return float(np.percentile(regrets, 90))


def verdict(found: dict[str, list[Played]], every: Sequence[Case], budgets: Sequence[float]) -> list[str]:
    """Return whether ours is as good as the best single simple strategy over these budgets, within the slack."""
    numbers = [number for number, case in enumerate(every) if case.budget in budgets]
    owners = [every[number].target.rung.name for number in numbers]
    lines = []
    for word, statistic in (("median", median), ("p90", p90)):
        of = {name: np.array([found[name][one].regret for one in numbers]) for name in found}
        best = min((name for name in SIMPLE if name in of), key=lambda name: statistic(of[name]), default=None)
        if best is None or OURS not in of:
            continue
        error = spread(of[best], statistic, owners)
        limit = statistic(of[best]) + SLACK + error
        mine = statistic(of[OURS])
        word_of = "holds" if mine <= limit else "MISSES"
        lines.append(
            f"  {word}: {mine:.2f}, best simple {best} {statistic(of[best]):.2f} +- {error:.2f}, limit {limit:.2f}: {word_of}"
        )
    return lines


def report(group: Group, names: Sequence[str]) -> None:
    every = cases(group)
    targets = {case.target.rung.name for case in every}
    print(f"\n{group.name}: {len(group.cells)} cells, {len(targets)} targets, {len(every)} cases")
    beliefs = {case.target.rung.name: group.beliefs(case.target) for case in every}
    found = {
        name: [play(find_strategy(name), case, beliefs[case.target.rung.name]) for case in every] for name in names
    }
    header = f"  {'':22} {'median':>7} {'p90':>8} {'mean':>7} {'coverage':>12} {'trials':>7} {'seconds':>8}"
    for budget in BUDGETS:
        numbers = [number for number, case in enumerate(every) if case.budget == budget]
        if not numbers:
            continue
        print(f" {budget:g} target runs, {len(numbers)} cases\n{header}")
        for name in names:
            print(row(name, [found[name][one] for one in numbers]))
        print("\n".join(verdict(found, every, [budget])), flush=True)
    print(f" all budgets\n{header}")
    for name in names:
        print(row(name, found[name]))
    print("\n".join(verdict(found, every, BUDGETS)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("groups", nargs="*", help="dense, mixtures, optimizers, h200, h200-new; all if none is named")
    parser.add_argument("--only", default=f"{OURS},{','.join(SIMPLE)}", help="strategies, with commas")
    parser.add_argument("--every", type=int, default=1, help="play only every so many targets")
    parser.add_argument("--table", type=Path, help="a CSV of the same columns, around the published laws")
    parser.add_argument("--worlds", action="store_true", help="the made-up tables of worlds.py")
    parser.add_argument("--mechanisms", action="store_true", help="the made-up tables of mechanisms.py")
    parser.add_argument("--draws", default="1,2", help="of these, with commas; 0 is for changes of the ladder")
    arguments = parser.parse_args()
    began = time.monotonic()
    print("Regret at the target in thousandths of a nat, answers at the nearest rate of the table")
    if arguments.table is not None:
        chosen = [Group(arguments.table.stem, read_cells(arguments.table), published, arguments.every)]
    else:
        draws = [int(one) for one in arguments.draws.split(",")]
        if arguments.mechanisms:
            every = [Group(name, mechanism_cells(name), published, arguments.every) for name in MECHANISMS]
        else:
            every = made_up(draws, arguments.every) if arguments.worlds else groups(arguments.every)
        chosen = [one for one in every if not arguments.groups or one.name in arguments.groups]
    for group in chosen:
        report(group, arguments.only.split(","))
    print(f"\n{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
