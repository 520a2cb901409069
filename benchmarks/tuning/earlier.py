"""Do earlier sweeps of the same store help a new one? Replay with and without them, on the tables of replay.py.

    (python benchmarks/tuning/earlier.py dense mixtures --every 3
     python benchmarks/tuning/earlier.py optimizers h200 --every 4
     python benchmarks/tuning/earlier.py nano) > benchmarks/tuning/earlier.log

A person's earlier sweeps are two other targets of the group, drawn at random: of the same optimizer, and of another
architecture or grid for the dense models and those of h200.py. Each was searched by the ladder with two runs' dollars and
without earlier sweeps. The new target is then searched with the same money, once with these answers and once without
them. Costs, regret and coverage are those of replay.py, whose laws have not seen the target's family either.

`nano` are the real sweeps of nano.py. Their trials are those that were bought without earlier sweeps; only the answers
differ. The earlier ones are two others of the same optimizer and parametrization, with other texts or models.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import nano
import numpy as np
from replay import OURS, Case, Group, Played, cases, groups, play, row

from skytrain.tuning import Rung
from skytrain.tuning.earlier import EarlierSweep, with_earlier
from skytrain.tuning.problem import Answer, Priors
from skytrain.tuning.strategies.registry import find_strategy

EARLIER = 2  # sweeps that the store has
THEIR_BUDGET = 2.0  # target runs
BUDGETS = (0.5, 1.0, 2.0, 4.0)
HERE = Path(__file__).parent
HEADER = f"  {'':22} {'median':>7} {'p90':>8} {'mean':>7} {'coverage':>12} {'trials':>7} {'seconds':>8}"
SAME_FAMILY = ("mixtures", "optimizers")  # groups whose earlier sweeps are of the target's own family


def earlier_of(target: Rung, low: float, high: float) -> EarlierSweep:
    return EarlierSweep(
        name=target.name,
        parameters=target.parameters,
        tokens=target.tokens,
        batch_tokens=target.batch_tokens,
        low=low,
        high=high,
    )


class Person:
    """Someone whose store has sweeps of the group's other targets."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.every = [case for case in cases(replace(group, stride=1)) if case.budget == THEIR_BUDGET]
        self.answered = cache(self._answered)

    def _answered(self, number: int) -> EarlierSweep | None:
        case = self.every[number]
        answer = play(find_strategy(OURS), case, self.group.beliefs(case.target)).answer
        if answer.low is None or answer.high is None or not answer.own:
            return None
        return earlier_of(case.target.rung, answer.low, answer.high)

    def beliefs(self, case: Case) -> Priors:
        target = case.target
        same = self.group.name in SAME_FAMILY
        others = [
            number
            for number, one in enumerate(self.every)
            if one.target.setting != target.setting and (one.target.family == target.family) == same
        ]
        # The same ones at every budget of a target.
        rng = np.random.default_rng([int(target.rung.parameters), int(target.rung.tokens)])
        chosen = rng.permutation(others)[:EARLIER]
        found = [one for one in map(self.answered, map(int, chosen)) if one is not None]
        return with_earlier(self.group.beliefs(target), target.rung, found)


def report(group: Group) -> None:
    person = Person(group)
    every = [case for case in cases(group) if case.budget in BUDGETS]
    print(f"\n{group.name}: {len({case.target.rung.name for case in every})} targets, {len(every)} cases")
    found: dict[str, list[Played]] = {"without": [], "with earlier sweeps": []}
    for case in every:
        found["without"].append(play(find_strategy(OURS), case, group.beliefs(case.target)))
        found["with earlier sweeps"].append(play(find_strategy(OURS), case, person.beliefs(case)))
    for budget in (*BUDGETS, None):
        numbers = [number for number, case in enumerate(every) if budget in (case.budget, None)]
        if numbers:
            print(f" {'all budgets' if budget is None else f'{budget:g} target runs'}, {len(numbers)} cases\n{HEADER}")
            for name, played in found.items():
                print(row(name, [played[one] for one in numbers]), flush=True)
    _compare(found)


def _compare(found: Mapping[str, Sequence[Played]]) -> None:
    before, after = (np.array([one.regret for one in played]) for played in found.values())
    gain = before - after
    print(
        f"  mean gain {gain.mean():.2f}, better in {(gain > 0).sum()}, worse in {(gain < 0).sum()} of {len(gain)} cases"
    )


def report_nano() -> None:
    """Print the regret and coverage of the recorded sweeps, by the share of the trials that are known."""
    records = nano.read(HERE / "nano.jsonl")
    problems = [nano.problem_of(nano.configured(record["case"], Path("/nowhere"))) for record in records]
    answers = [nano.answers_along(record)[-1][1] for record in records]
    found: dict[tuple[float, str], list[Played]] = {}
    for number, record in enumerate(records):
        alike = [one for one, other in enumerate(records) if one != number and kind(other) == kind(record)]
        chosen = [int(one) for one in np.random.default_rng(number).permutation(alike)[:EARLIER]]
        earlier = [earlier_of(problems[one].target, answers[one]["low"], answers[one]["high"]) for one in chosen]
        x, y, optimum = nano.curve_of(record)
        for name, sweeps in (("without", []), ("with earlier sweeps", earlier)):
            priors = with_earlier(problems[number].priors, problems[number].target, sweeps)
            for share, answer in nano.answers_along(record, replace(problems[number], priors=priors)):
                above = np.interp(math.log(answer["rate"]), x, np.minimum(y, y.min() + 1)) - y.min()
                held = answer["low"] <= math.exp(optimum) <= answer["high"]
                trials = round(share * len(record["trials"]))
                played = Played(
                    answer=Answer(answer["rate"]), regret=1e3 * float(above), trials=trials, covered=held, seconds=0.0
                )
                found.setdefault((share, name), []).append(played)
    print(f"\nnano: {len(records)} sweeps")
    for share in sorted({share for share, _ in found}):
        print(f" {share:.0%} of the trials known\n{HEADER}")
        for name in ("without", "with earlier sweeps"):
            print(row(name, found[share, name]), flush=True)


def kind(record: dict[str, Any]) -> tuple[str, str]:
    """Return the optimizer and the parametrization of a sweep of nano.py."""
    return record["case"]["optimizer"], record["case"]["model"].partition("-")[2]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "groups", nargs="*", help="dense, mixtures, optimizers, h200, h200-new, nano; all if none is named"
    )
    parser.add_argument("--every", type=int, default=1, help="play only every so many targets")
    arguments = parser.parse_args()
    began = time.monotonic()
    print("Regret at the target in thousandths of a nat, answers at the nearest rate of the table")
    for group in groups(arguments.every):
        if not arguments.groups or group.name in arguments.groups:
            report(group)
    if not arguments.groups or "nano" in arguments.groups:
        report_nano()
    print(f"\n{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
