"""Plays the ladder and its peers in made-up worlds. Its constants were chosen on worlds 0 to 75.

    python benchmarks/tuning/worlds.py --first 100 --worlds 40 > benchmarks/tuning/worlds.log

A world has a power law of the best rate with exponents that the searcher does not know, a bend in it, a curvature, noise
of seeds, a start-up cost, an unstable region above the optimum, and a prior that is off. They are drawn from ranges that
published runs and our own cover, so no measured table is needed; benchmarks/tuning/replay.py and h200.py then test the
result on real runs. Regret is exact: the world's U at the answer.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from skytrain.tuning import Answer, Observation, Priors, Problem, Rung, Search, Trial, find_strategy, u_shape

BUDGETS = (0.5, 1.0, 2.0, 4.0)  # in target runs
SIZES = (1 / 16, 1 / 4, 1.0)
HORIZONS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
PEERS = ("literature", "early-stopping", "data-scaling", "model-scaling", "transfer", "greedy", "grid", "halving", "hyperband")  # fmt: skip


@dataclass(frozen=True)
class World:
    """The truth of one search. Exponents are of parameters (a width squared) and tokens."""

    level: float  # ln of the target's best rate
    size: float
    horizon: float
    bend: float  # of the horizon's exponent, per ln
    scatter: float  # of each rung's own optimum
    curvature: float
    steeper: float  # exponent of the curvature over the horizon: short runs have steeper curves
    noise: float
    wall: float  # ln of unstable over optimal rate
    jump: float  # nats that an unstable run loses; above one nat it counts as diverged
    start: float  # share of the cheapest trial's cost
    prior_off: float  # ln
    seed: int

    @classmethod
    def draw(cls, seed: int) -> World:
        rng = np.random.default_rng(seed)
        return cls(
            level=math.log(2e-3),
            size=rng.uniform(-0.5, 0.0),
            horizon=rng.uniform(-0.3, 0.7),
            bend=rng.normal(0, 0.04),
            scatter=rng.uniform(0.0, 0.12),
            curvature=math.exp(rng.uniform(math.log(0.02), math.log(0.3))),
            steeper=rng.uniform(-0.25, 0.0),
            noise=math.exp(rng.uniform(math.log(0.001), math.log(0.06))),
            wall=rng.uniform(0.6, 2.5),
            jump=math.exp(rng.uniform(math.log(0.2), math.log(3.0))),
            start=rng.uniform(0.0, 0.6),
            prior_off=rng.uniform(-math.log(4), math.log(4)),
            seed=seed,
        )

    def rungs(self) -> tuple[Rung, ...]:
        least = SIZES[0] ** 0.7 * HORIZONS[0]
        fixed = self.start / (1 - self.start) * least
        return tuple(
            Rung(
                name=f"n{size:.3g}-d{share:.3g}",
                parameters=size * 5e6,
                tokens=share * 2e7,
                batch_tokens=16384.0,
                usd=fixed + size**0.7 * share,
            )
            for size in SIZES
            for share in HORIZONS
        )

    def problem(self) -> Problem:
        rungs = self.rungs()
        target = replace(rungs[-1], name="target")
        believed = self.level + self.prior_off

        def law(rung: Rung) -> float:
            return believed - 0.25 * math.log(rung.parameters / 5e6) + 0.1 * math.log(rung.tokens / 2e7)

        return Problem(target=target, rungs=rungs, lowest=1e-5, highest=0.3, priors=wide(law), seed=self.seed)

    def optimum(self, rung: Rung) -> float:
        size = math.log(rung.parameters / 5e6)
        horizon = math.log(rung.tokens / 2e7)
        own = np.random.default_rng([self.seed, round(rung.parameters), round(rung.tokens)]).normal()
        away = math.hypot(size, horizon)
        scatter = self.scatter * own * math.sqrt(1 - math.exp(-away))
        return self.level + self.size * size + self.horizon * horizon + self.bend * horizon**2 + scatter

    def clean(self, rung: Rung, rate: float) -> float:
        """The loss without noise."""
        distance = math.log(rate) - self.optimum(rung)
        a = self.curvature * (rung.tokens / 2e7) ** self.steeper
        above = a * float(u_shape(np.array(min(distance, 4.0))))
        if distance > self.wall:
            above = max(above, self.jump)
        floor = 2.0 + 0.5 * (rung.tokens / 2e7) ** -0.3 + 0.3 * (rung.parameters / 5e6) ** -0.3
        return floor + above

    def observe(self, rung: Rung, trial: Trial) -> float:
        rng = np.random.default_rng([self.seed, round(1e7 * trial.rate), round(rung.parameters), round(rung.tokens)])
        # Seeds matter more where training is about to become unstable.
        near = 1 + 2 * max(0.0, math.log(trial.rate) - self.optimum(rung))
        floor = self.clean(rung, math.exp(self.optimum(rung)))
        loss = self.clean(rung, trial.rate) + near * self.noise * rng.normal()
        return math.inf if loss > floor + 1.0 and math.log(trial.rate) > self.optimum(rung) else loss


def wide(law) -> Priors:  # type: ignore[no-untyped-def]
    """What is believed about a target that no published law was fitted near."""
    from skytrain.tuning import priors_for

    return priors_for(Rung(name="", parameters=5e6, tokens=2e7, batch_tokens=16384.0, usd=1.0), law)


@dataclass(frozen=True)
class Outcome:
    answer: Answer
    regret: float
    trials: int
    usd: float
    covered: bool | None
    history: tuple[Observation, ...] = ()


def play(name: str, world: World, budget: float) -> Outcome:
    problem = world.problem()
    strategy = find_strategy(name)
    target = problem.target
    history: list[Observation] = []
    total = left = budget * target.usd
    while (trial := strategy.propose(Search(problem, tuple(history), left, total))) is not None:
        rung = problem.rung(trial.rung)
        assert rung.usd <= left + 1e-9, f"{name} overspends"
        loss = world.observe(rung, trial)
        usd = rung.usd * (0.5 if math.isinf(loss) else 1.0)
        left -= usd
        history.append(Observation(trial, loss, usd))
    answer = strategy.answer(Search(problem, tuple(history), left, total))
    best = world.optimum(target)
    regret = world.clean(target, answer.rate) - world.clean(target, math.exp(best))
    covered = None if answer.low is None or answer.high is None else answer.low <= math.exp(best) <= answer.high
    return Outcome(
        answer=answer, regret=regret, trials=len(history), usd=total - left, covered=covered, history=tuple(history)
    )


def row(name: str, worlds: Sequence[World], outcomes: Sequence[Outcome]) -> str:
    """Regret in curvatures, so that steep worlds do not drown the others, and in nats."""
    regrets = np.array([one.regret for one in outcomes])
    relative = regrets / np.array([world.curvature for world in worlds])
    covered = [one.covered for one in outcomes if one.covered is not None]
    share = f"{100 * np.mean(covered):4.0f}%" if covered else "    -"
    return (
        f"{name:28} {np.median(relative):8.3f} {np.percentile(relative, 90):8.3f} {1e3 * np.median(regrets):8.2f} "
        f"{1e3 * np.percentile(regrets, 90):8.1f} {share:>9} {np.mean([one.trials for one in outcomes]):7.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--worlds", type=int, default=60)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", default="", help="strategies, with commas")
    arguments = parser.parse_args()
    began = time.monotonic()
    worlds = [World.draw(seed) for seed in range(arguments.first, arguments.first + arguments.worlds)]
    names = arguments.only.split(",") if arguments.only else ("ladder", *PEERS)
    header = f"{'':28} {'median/a':>8} {'p90/a':>8} {'mnats':>8} {'p90':>8} {'coverage':>9} {'trials':>7}"
    print(f"{len(worlds)} worlds; regret over the curvature, and in thousandths of a nat\n{header}")
    for budget in BUDGETS:
        for name in names:
            print(row(f"{budget:g} {name}", worlds, [play(name, world, budget) for world in worlds]), flush=True)
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
