"""The problem of a search: the target, the cheaper trials that can be bought, and what has been observed so far.

Everything here is plain data, so the same strategies run on a GPU, on a published table of runs and in a simulation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .fits import ScalingFit

RATES_PER_DOUBLING = 4  # nearer rates cannot be told apart, and a coarse grid is easier to read
# ln: how far a law's level is off in a family that it was not made for: rms over all laws and families
# (benchmarks/tuning/families.log). At nano scale the level is off by as much (nano.log).
UNKNOWN_LEVEL = 1.9
DIVERGED_NATS = 1.0  # a final loss this far above the best of its rung counts as diverged
SPARE = 1.5  # reserve as a multiple of a trial's probable cost, once trials of its model have been measured
LEAST_COST = 0.25  # share of the expected cost that trials cost at least on average, whatever the first ones say
# Epoch AI's refit of Chinchilla's law (arXiv 2404.10102): loss = ... + B / D^beta.
DATA_FACTOR = 2085.43
DATA_EXPONENT = 0.3658
NAMED = 3  # earlier sweeps that are listed by name
BELIEVED = "believed"  # marks an observation that was made up for a trial that is still running

Law = Callable[["Rung"], float]
"""Maps a rung to the logarithm of its expected best rate."""


@dataclass(frozen=True)
class Rung:
    """A model, a horizon and a batch size: trials on one rung differ only in the tuned value."""

    name: str
    parameters: float  # of the blocks, without embeddings
    tokens: float  # the horizon of its complete schedule
    batch_tokens: float
    usd: float  # the most that one trial may cost
    rates: tuple[float, ...] = ()  # the values that exist in a table of published runs; empty if any value can be run
    layers: int = 0
    width: int = 0
    steps_usd: float | None = None  # the probable cost of a trial's steps; None if only `usd` is known
    around_usd: float = 0.0  # the probable cost of start-up, validations and checkpoints

    @property
    def probable_usd(self) -> float:
        return (self.usd if self.steps_usd is None else self.steps_usd) + self.around_usd

    @property
    def model(self) -> tuple[float, int, int]:
        """Return what rungs that differ only in their horizon and batch have in common."""
        return self.parameters, self.layers, self.width

    def snap(self, rate: float) -> float:
        """Return the value nearest to `rate` on the logarithmic axis that a trial can have."""
        if self.rates:
            return min(self.rates, key=lambda one: abs(math.log(one / rate)))
        return float(f"{2 ** (round(RATES_PER_DOUBLING * math.log2(rate)) / RATES_PER_DOUBLING):.4g}")


@dataclass(frozen=True)
class Trial:
    """A run to be made: a rung, the tuned value and a seed."""

    rung: str
    rate: float
    seed: int = 0

    @property
    def key(self) -> str:
        return f"{self.rung}@{self.rate:.4g}" + (f"#{self.seed}" if self.seed else "")


@dataclass(frozen=True)
class Observation:
    """A finished trial: its loss, or that it diverged, and what it cost."""

    trial: Trial
    loss: float  # validation loss after the complete schedule; infinite if it diverged, nan if its limit stopped it
    usd: float
    seconds: float = 0.0
    extra: dict[str, Any] = field(default_factory=dict)  # train loss, accuracy of tasks, the run's name

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss)

    @property
    def diverged(self) -> bool:
        return math.isinf(self.loss)


@dataclass(frozen=True)
class LawShape:
    """One way in which the best rate may depend on size, horizon and batch."""

    name: str
    law: Law
    weight: float = 1.0
    offset: float | None = None  # how far its level may be off; null: as far as the beliefs that it belongs to say


@dataclass(frozen=True)
class Priors:
    """Beliefs before the first trial, as standard deviations on logarithmic scales.

    The widths say how far a law may be off: `offset` in all, `size_exponent` in that of the size, `exponent` in those
    of horizon and batch, and `nugget` for each rung and its neighbours. They are what the families of
    benchmarks/tuning/families.log disagree by.
    """

    law: Law  # the expected rate, and the first of the shapes
    shapes: tuple[LawShape, ...] = ()  # others, through the same rate at the target
    offset: float = 0.45
    size_exponent: float = 0.25
    exponent: float = 0.25
    nugget: float = 0.17
    curvature: float = 0.1  # nats for a factor of e around the optimum
    curvature_offset: float = 1.4
    before: Priors | None = None  # beliefs without the earlier sweeps that moved these ones: they count as much
    earlier: tuple[str, ...] = ()  # names of these sweeps

    @property
    def exponents(self) -> tuple[float, float, float]:
        """Return the widths of the exponents of size, horizon and batch."""
        return self.size_exponent, self.exponent, self.exponent

    def earlier_names(self) -> str:
        more = len(self.earlier) - NAMED
        return ", ".join(self.earlier[:NAMED]) + (f" and {more} more" if more > 0 else "")

    def all_shapes(self, target: Rung) -> tuple[LawShape, ...]:
        """Return every shape: the law, no dependence at all, and the others; then those of the beliefs before."""
        level = self.law(target)
        own = (LawShape("law", self.law), LawShape("unchanged", lambda rung: level), *self.shapes)
        if self.before is None:
            return own
        return (*own, *(replace(one, offset=self.before.offset) for one in self.before.all_shapes(target)))


@dataclass(frozen=True)
class Problem:
    """A search: the target, the rungs that trials may use (the target may be one), the range of rates and beliefs."""

    target: Rung
    rungs: tuple[Rung, ...]
    lowest: float
    highest: float
    priors: Priors
    noise: float = 0.002  # standard deviation of the final loss between seeds, in nats
    seed: int = 0
    trials_per_rung: int | None = None  # null: as many as the strategy needs

    def rung(self, name: str) -> Rung:
        return next(one for one in (*self.rungs, self.target) if one.name == name)

    def clip(self, rate: float) -> float:
        return min(self.highest, max(self.lowest, rate))

    def place(self, rung: Rung, rate: float) -> float:
        """Return the value nearest to `rate` that a trial on this rung can have within the allowed range."""
        nearest = rung.snap(self.clip(rate))
        return nearest if rung.rates else self.clip(nearest)

    def expected_rate(self, rung: Rung) -> float:
        """Return the prior's best rate of a rung, within the allowed range."""
        return self.clip(math.exp(self.priors.law(rung)))

    def around(self, rate: float) -> Problem:
        """Return the same problem with a law that passes through `rate` at the target."""
        shift = math.log(rate) - self.priors.law(self.target)
        shapes = tuple(replace(one, law=shifted(one.law, shift)) for one in self.priors.shapes)
        priors = replace(self.priors, law=shifted(self.priors.law, shift), shapes=shapes, before=None, earlier=())
        return replace(self, priors=priors)


def shifted(law: Law, shift: float) -> Law:
    return lambda rung: law(rung) + shift


@dataclass(frozen=True)
class Search:
    """A problem in progress. A strategy is a pure function of this, so a killed search continues where it was."""

    problem: Problem
    history: Sequence[Observation]
    left_usd: float
    total_usd: float  # the most that the search may spend in all, from its first trial

    def of_rung(self, name: str) -> list[Observation]:
        return [one for one in self.history if one.trial.rung == name]

    def tried(self, trial: Trial) -> bool:
        return any(one.trial.key == trial.key for one in self.history)

    def _measured(self) -> list[tuple[Rung, float]]:
        """Return what trials have cost. One that diverged ended early, and one that is running has no price yet."""
        done = [one for one in self.history if not one.diverged and BELIEVED not in one.extra]
        return [(self.problem.rung(one.trial.rung), one.usd) for one in done]

    def reserve_usd(self, rung: Rung) -> float:
        """Return the most that the next trial of a rung may cost: as estimated, until trials of its model have been
        measured.
        """
        alike = [(other, usd) for other, usd in self._measured() if other.model == rung.model]
        dearer = max((usd / other.usd for other, usd in alike), default=0.0)
        if not alike or dearer >= 1:
            return rung.usd * max(1.0, dearer)
        worst = max(usd / self._measured_usd(other) for other, usd in alike)
        return min(rung.usd, SPARE * max(1.0, worst) * self._measured_usd(rung))

    def probable_usd(self, rung: Rung) -> float:
        """Return what the next trial of a rung will probably cost."""
        return min(self.reserve_usd(rung), self._measured_usd(rung))

    def _measured_usd(self, rung: Rung) -> float:
        """Return the cost of a trial, corrected by what others have shown about overheads, or about trials as such."""
        measured = self._measured()
        if not measured:
            return rung.probable_usd
        around = sum(other.around_usd for other, _ in measured)
        spent = sum(usd for _, usd in measured)
        expected = sum(other.probable_usd for other, _ in measured)
        least = LEAST_COST * rung.probable_usd
        if around == 0:
            return max(least, rung.probable_usd * spent / expected)
        share = max(0.0, 1 + (spent - expected) / around)
        return max(least, rung.probable_usd + (share - 1) * rung.around_usd)

    def affordable(self, rung: Rung) -> int:
        """Return how many trials of a rung the remaining money buys, if each costs all that is reserved for it."""
        return math.floor(self.left_usd / self.reserve_usd(rung) + 1e-9)

    def buys(self, rung: Rung) -> int:
        """Return how many trials of a rung the remaining money probably buys, one after another."""
        first = self.reserve_usd(rung)
        usd = self.probable_usd(rung)
        if self.left_usd < first - 1e-9:
            return 0
        return 1 + math.floor((self.left_usd - min(first, SPARE * usd)) / usd + 1e-9)

    def best(self, rung: str) -> Observation | None:
        """Return the trial with the lowest loss on a rung."""
        finite = [one for one in self.of_rung(rung) if one.finite]
        return min(finite, key=lambda one: one.loss) if finite else None


@dataclass(frozen=True)
class Answer:
    """The value to train the target with, and its uncertainty."""

    rate: float
    low: float | None = None  # `low` to `high` contains the optimum with 80% probability
    high: float | None = None
    regret_nats: float | None = None  # expected loss above the optimum's
    divergence: float | None = None  # probability that the target diverges at this rate
    why: str = ""
    warnings: tuple[str, ...] = ()
    fits: tuple[ScalingFit, ...] = ()  # of a projection: curves through the optima of its rungs, side by side
    own: bool = True  # whether the strategy's trials gave it, not the rate that was expected anyway


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
    if not slopes:
        # The law is for billions of tokens: for a hundred thousand it says 11 nats, where one is a lot.
        return min(DIVERGED_NATS, DATA_EXPONENT * DATA_FACTOR / problem.target.tokens**DATA_EXPONENT)
    _, tokens, slope = max(slopes)  # of the largest model over its longest horizon
    return float(slope * (problem.target.tokens / tokens) ** -DATA_EXPONENT)
