"""A simulated trainer: known optima, noisy losses and times, divergences, kills at any moment."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from skytrain.storage import Store
from skytrain.tuning import Problem, Rung, Trial, TrialResult
from skytrain.tuning.curve import u_shape
from skytrain.tuning.problem import Priors


class Killed(BaseException):
    """The process is gone, at this very point."""


@dataclass(frozen=True)
class Truth:
    """Best rate = level (N/N*)^size (D/D*)^horizon, where * is the target."""

    level: float = 2e-3
    size: float = -0.5
    horizon: float = 0.1
    curvature: float = 0.03
    wall: float = 2.2  # ln of diverging over optimal rate
    scatter: float = 0.0  # of each rung's optimum

    def optimum(self, rung: Rung, target: Rung) -> float:
        """ln of the best rate."""
        own = self.scatter * float(np.random.default_rng(abs(hash(rung.name)) % 2**32).standard_normal())
        place = self.size * math.log(rung.parameters / target.parameters)
        return math.log(self.level) + place + self.horizon * math.log(rung.tokens / target.tokens) + own


def make_problem(sizes=(0.1, 0.3, 1.0), horizons=(0.0625, 0.125, 0.25), *, law=None, noise=0.002, seed=0) -> Problem:
    target = Rung(name="target", parameters=4e8, tokens=2e10, batch_tokens=5e5, usd=1.0)
    rungs = [
        Rung(
            name=f"n{size:g}-d{share:g}", parameters=size * 4e8, tokens=share * 2e10, batch_tokens=5e5, usd=size * share
        )
        for size in sizes
        for share in horizons
    ]
    priors = Priors(law or (lambda rung: math.log(2e-3) - 0.4 * math.log(rung.parameters / 4e8)))
    return Problem(target=target, rungs=tuple(rungs), lowest=1e-5, highest=0.2, priors=priors, noise=noise, seed=seed)


def loss_of(truth: Truth, problem: Problem, trial: Trial, rng: np.random.Generator | None = None) -> float:
    rung = problem.rung(trial.rung)
    distance = math.log(trial.rate) - truth.optimum(rung, problem.target)
    if distance > truth.wall:
        return math.inf
    floor = 2.0 + 0.3 * (rung.tokens / 2e10) ** -0.3 + 0.3 * (rung.parameters / 4e8) ** -0.3
    noise = problem.noise * float(rng.standard_normal()) if rng is not None else 0.0
    return floor + truth.curvature * float(u_shape(np.array(distance))) + noise


@dataclass
class SimulatedRunner:
    """Remembers what each trial has really cost, as a cloud's bill does, over all kills."""

    truth: Truth
    problem: Problem
    rng: np.random.Generator
    kill_chance: float = 0.0
    bill: dict[int, float] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=dict)
    stopped: set[int] = field(default_factory=set)  # by their limit

    def run(self, number: int, trial: Trial, limit_usd: float) -> TrialResult:
        rung = self.problem.rung(trial.rung)
        if number not in self.losses:
            self.losses[number] = loss_of(self.truth, self.problem, trial, np.random.default_rng(number))
        loss = self.losses[number]
        whole = rung.usd * float(np.clip(self.rng.lognormal(-0.1, 0.25), 0.5, 3.0))
        whole = whole * 0.3 if math.isinf(loss) else whole
        before = self.bill.get(number, 0.0)
        if self.rng.random() < self.kill_chance:
            self.bill[number] = min(
                limit_usd, before + 0.5 * self.rng.random() * (whole - before) if whole > before else before
            )
            raise Killed
        cost = max(before, min(whole, limit_usd))
        self.bill[number] = cost
        if whole > limit_usd:
            self.stopped.add(number)
        return TrialResult(None if number in self.stopped else loss, cost, cost * 3600, {})


class FailingStore:
    """A store whose process is killed before or after some of its writes."""

    def __init__(self, store: Store, rng: np.random.Generator, chance: float) -> None:
        self._store, self._rng, self._chance = store, rng, chance

    def __getattr__(self, name: str):
        return getattr(self._store, name)

    def write(self, key: str, data: bytes) -> None:
        self._maybe_die()
        self._store.write(key, data)
        self._maybe_die()

    def create(self, key: str, data: bytes) -> bool:
        self._maybe_die()
        done = self._store.create(key, data)
        self._maybe_die()
        return done

    def _maybe_die(self) -> None:
        if self._rng.random() < self._chance:
            raise Killed
