"""The loss that a model of N parameters reaches after D tokens: published laws, a fit of our own, and the user's runs.

A law is L(N, D) = E + A/N^alpha + B/D^beta, in nats per token. A text multiplies it: one factor for each text leaves
0.02 to 0.05 nats between a law and runs that it has not seen (`benchmarks/planning/losses.log`), where one added
constant leaves up to 0.3. A recipe multiplies the tokens: Muon needs fewer than AdamW for the same loss.

The factor, the recipe's efficiency and the law's own constants have prior widths. Runs of the same text and recipe
narrow them (`LossForecaster`), so the interval of a prediction follows from how far it is from what has been seen.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import resources
from typing import Any

import numpy as np

from .flops import DecoderSize

REFERENCE_PARAMETERS = 1e8
REFERENCE_TOKENS = 1e9
Z80 = 1.2816  # of a normal distribution: 80% lie within this many deviations

# Repeated data (Muennighoff et al. 2023, arXiv 2305.16264, appendix A): each repetition is worth less by the first constant,
# parameters beyond those that suit the text by the second.
REPETITION_CONSTANT = 15.39
EXCESS_CONSTANT = 5.31

# ln of what a token is worth by ln(batch / best batch)^2; Step Law's runs give 0.15 (benchmarks/planning/losses.log).
BATCH_MISFIT = 0.15

# Prior deviations: ln of a text's factor where the text is known and where it is not, ln of a recipe's efficiency,
# and of a law's E, ln A, alpha, ln B, beta. The last five are about what two laws fitted on different runs differ by.
KNOWN_TEXT = 0.02
UNKNOWN_TEXT = 0.15
EFFICIENCY = 0.25
SHAPE = (0.05, 0.10, 0.02, 0.10, 0.02)
MISFIT_NATS = 0.03  # of a single run around its law: seeds, rates that are not quite the best


@dataclass(frozen=True)
class LossLaw:
    """A fit of L(N, D) = E + A/N^alpha + B/D^beta, whose minimum at a fixed compute of 6·N·D gives the optimal tokens."""

    name: str
    date: str
    source: str
    e: float
    a: float
    b: float
    alpha: float
    beta: float
    c4_factor: float  # of its losses, to be those of C4 with a GPT-2-like tokenizer (benchmarks/planning/losses.log)
    blocks_only: bool = False  # N without embeddings and head; otherwise it counts all parameters
    sizes: tuple[float, float] = (7e7, 1.6e10)  # of the models it was fitted on, as it counts them: Hoffmann's
    fewest_tokens: float = 0.0  # for each parameter, in the runs it was fitted on
    most_tokens: float = math.inf

    def loss(self, parameters: float, tokens: float) -> float:
        """Return nats per token on the text of the fit."""
        return self.e + self.a / parameters**self.alpha + self.b / tokens**self.beta

    def optimal_tokens(self, parameters: float) -> float:
        """Return the tokens for which this model size is compute-optimal: alpha·A/N^alpha = beta·B/D^beta."""
        return (self.beta * self.b * parameters**self.alpha / (self.alpha * self.a)) ** (1 / self.beta)

    def optimal_parameters(self, tokens: float) -> float:
        """Return the model size for which so many tokens are compute-optimal."""
        return (self.alpha * self.a * tokens**self.beta / (self.beta * self.b)) ** (1 / self.alpha)

    def counted(self, size: DecoderSize) -> float:
        """Return what this law counts of a model's parameters."""
        return float(size.block_matrices if self.blocks_only else size.parameters)

    @property
    def constants(self) -> Any:
        """Return E, ln A, alpha, ln B and beta, with A and B at 100M parameters and 1B tokens."""
        return np.array(
            [
                self.e,
                math.log(self.a) - self.alpha * math.log(REFERENCE_PARAMETERS),
                self.alpha,
                math.log(self.b) - self.beta * math.log(REFERENCE_TOKENS),
                self.beta,
            ]
        )


HOFFMANN = LossLaw(
    name="Hoffmann 2022",
    date="2022-03-29",
    source="Hoffmann et al., arXiv 2203.15556, approach 3",
    e=1.69,
    a=406.4,
    b=410.7,
    alpha=0.34,
    beta=0.28,
    c4_factor=1.084,
)
BESIROGLU = LossLaw(
    name="Besiroglu 2024",
    date="2024-04-15",
    source="Besiroglu et al., arXiv 2404.10102: Hoffmann's runs fitted again",
    e=1.8172,
    a=482.01,
    b=2085.43,
    alpha=0.3478,
    beta=0.3658,
    c4_factor=1.096,
)

# N of blocks; fitted by benchmarks/planning/losses.py, whose log has what it misses on runs that it has not seen.
OPEN_RUNS = LossLaw(
    name="open runs 2026",
    date="2026-11-16",
    source="fitted on open_lm's runs on C4 and RefinedWeb (arXiv 2403.08540) and on Step Law's (arXiv 2503.04715)",
    e=2.0376,
    a=350.0,
    b=992.0,
    alpha=0.3286,
    beta=0.3369,
    c4_factor=0.996,
    blocks_only=True,
    sizes=(5e7, 7e9),
    fewest_tokens=18,
    most_tokens=640,
)
LAWS = {law.name: law for law in (OPEN_RUNS, BESIROGLU, HOFFMANN)}

# HellaSwag, zero shot, by OPEN_RUNS's loss with factor 1; within 0.014 on its texts and 0.037 on another (the same log).
HELLASWAG_MIDDLE = 2.540
HELLASWAG_WIDTH = 0.279
HELLASWAG_FITTED = (2.42, 5.70)  # losses; outside of them nothing is claimed


def hellaswag(size: DecoderSize, tokens: float) -> float | None:
    """Return the expected accuracy after `tokens` useful tokens of web text; None beyond the models of the fit."""
    loss = OPEN_RUNS.loss(OPEN_RUNS.counted(size), tokens)
    if not HELLASWAG_FITTED[0] <= loss <= HELLASWAG_FITTED[1]:
        return None
    return 0.25 + 0.75 / (1 + math.exp((loss - HELLASWAG_MIDDLE) / HELLASWAG_WIDTH))


def law_value(constants: Any, parameters: Any, tokens: Any) -> Any:
    """Return the loss of a law by its constants."""
    e, ln_a, alpha, ln_b, beta = constants
    return (
        e
        + np.exp(ln_a - alpha * np.log(np.asarray(parameters) / REFERENCE_PARAMETERS))
        + np.exp(ln_b - beta * np.log(np.asarray(tokens) / REFERENCE_TOKENS))
    )


def useful_tokens(tokens: float, distinct: float | None) -> float:
    """Return how many tokens of fresh text `tokens` are worth when only `distinct` of them are different."""
    if distinct is None or tokens <= distinct:
        return tokens
    repeated = tokens / distinct - 1
    return distinct * (1 + REPETITION_CONSTANT * (1 - math.exp(-repeated / REPETITION_CONSTANT)))


def least_known(*tokens: float | None) -> float | None:
    """Return the least of several limits on how much text there is; None if none of them is known."""
    return min((float(one) for one in tokens if one), default=None)


def best_batch(tokens: float) -> float:
    """Return the tokens a step with which so many tokens give the lowest loss (Step Law, arXiv 2503.04715)."""
    return 0.58 * tokens**0.571


def batch_worth(batch_tokens: float, tokens: float) -> float:
    """Return what a token is worth in steps of another batch than the best: 0.93 where that is twice or half as large."""
    return math.exp(-BATCH_MISFIT * math.log(batch_tokens / best_batch(tokens)) ** 2)


def useful_parameters(parameters: Any, suitable: float) -> Any:
    """Return how many parameters a model is worth on a text for which `suitable` are the most that are well used."""
    excess = np.maximum(0.0, np.asarray(parameters) / suitable - 1)
    used = suitable * (1 + EXCESS_CONSTANT * (1 - np.exp(-excess / EXCESS_CONSTANT)))
    return np.where(excess > 0, used, parameters)


@dataclass(frozen=True)
class TextFacts:
    """What public runs say about a text; None where none is known."""

    name: str
    factor: float | None  # of the loss, relative to C4 with a GPT-2-like tokenizer
    tokens: float | None  # distinct ones
    source: str


@lru_cache(maxsize=1)
def known_texts() -> dict[str, TextFacts]:
    rows = resources.files("skytrain.planning").joinpath("data/texts.csv").read_text().splitlines()
    return {
        row["text"]: TextFacts(
            name=row["text"],
            factor=float(row["factor"]) if row["factor"] else None,
            tokens=float(row["tokens"]) if row["tokens"] else None,
            source=row["source"],
        )
        for row in csv.DictReader(line for line in rows if not line.startswith("#"))
    }


@dataclass(frozen=True)
class OwnRun:
    """A finished run of the user's: what it had and what it reached."""

    name: str
    parameters: float
    block_parameters: float
    tokens: float  # of fresh text that those it read are worth
    loss: float


@dataclass(frozen=True)
class Forecast:
    """An expected loss and its 80% interval."""

    loss: float
    low: float
    high: float


@dataclass(frozen=True)
class LossForecaster:
    """One law for one text and one recipe, narrowed by the user's own runs of both."""

    law: LossLaw
    factor: float | None  # of the text, relative to C4; None: unknown
    efficiency: float  # of the recipe: tokens of the law's runs that one of its tokens is worth
    runs: tuple[OwnRun, ...] = ()
    distinct: float | None = None  # tokens of the text; None: more than any run reads

    def forecast(self, size: DecoderSize, tokens: float, batch_tokens: int | None = None) -> Forecast:
        """Return the loss after reading `tokens` of the text, in steps of the best batch or of the given one."""
        useful = self.useful(tokens, batch_tokens)
        state, covariance, scatter = self._posterior

        def value(point: Any) -> Any:
            return np.array([float(self._loss(point, self.law.counted(size), useful))])

        gradient = jacobian(value, state)[0]
        deviation = math.sqrt(float(gradient @ covariance @ gradient) + scatter * MISFIT_NATS**2)
        loss = float(value(state)[0])
        return Forecast(loss, loss - Z80 * deviation, loss + Z80 * deviation)

    def loss(self, size: DecoderSize, tokens: float, batch_tokens: int | None = None) -> float:
        """Return the expected loss only, which is cheap."""
        useful = self.useful(tokens, batch_tokens)
        return float(self._loss(self._posterior[0], self.law.counted(size), useful))

    def useful(self, tokens: float, batch_tokens: int | None) -> float:
        """Return the tokens of fresh text, in steps of the best batch, that these are worth."""
        useful = useful_tokens(tokens, self.distinct)
        return useful if batch_tokens is None else useful * batch_worth(batch_tokens, useful)

    def _loss(self, state: Any, parameters: Any, tokens: Any) -> Any:
        if self.distinct is not None:
            suitable = self.law.optimal_parameters(self.efficiency * self.distinct)
            parameters = useful_parameters(parameters, suitable)
        return np.exp(state[0]) * law_value(state[2:], parameters, np.asarray(tokens) * np.exp(state[1]))

    @cached_property
    def _posterior(self) -> tuple[Any, Any, float]:
        """Return the most probable factor, efficiency and constants, their covariance, and the runs' scatter.

        Runs that scatter around every law by more than expected are short, or badly tuned: they say less by as much.
        """
        known = KNOWN_TEXT if self.factor is not None else UNKNOWN_TEXT
        mean = np.array(
            [math.log(self.law.c4_factor * (self.factor or 1.0)), math.log(self.efficiency), *self.law.constants]
        )
        widths = np.array([known, EFFICIENCY, *SHAPE])
        if not self.runs:
            return mean, np.diag(widths**2), 1.0
        parameters = np.array([run.block_parameters if self.law.blocks_only else run.parameters for run in self.runs])
        tokens = np.array([run.tokens for run in self.runs])
        losses = np.array([run.loss for run in self.runs])

        def residuals(state: Any) -> Any:
            missed = (self._loss(state, parameters, tokens) - losses) / MISFIT_NATS
            return np.concatenate([missed, (state - mean) / widths])

        found = least_squares(residuals, mean)
        slope = jacobian(residuals, found)
        missed = residuals(found)[: len(losses)]
        scatter = max(1.0, float(missed @ missed) / len(losses))
        return found, scatter * np.linalg.inv(slope.T @ slope), scatter


def jacobian(function: Callable[[Any], Any], point: Any) -> Any:
    base = function(point)
    columns = []
    for number in range(len(point)):
        moved = point.copy()
        moved[number] += 1e-6
        columns.append((function(moved) - base) / 1e-6)
    return np.stack(columns, axis=1)


def least_squares(residuals: Callable[[Any], Any], start: Any, steps: int = 200) -> Any:
    """Return where the sum of squared residuals is least (Levenberg 1944, Marquardt 1963)."""
    point = np.asarray(start, dtype=float)
    damping = 1e-2
    now = residuals(point)
    for _ in range(steps):
        slope = jacobian(residuals, point)
        square = slope.T @ slope
        while True:
            step = np.linalg.solve(square + damping * np.diag(np.diag(square) + 1e-12), -slope.T @ now)
            tried = residuals(point + step)
            if np.isfinite(tried).all() and tried @ tried < now @ now:
                break
            damping *= 4
            if damping > 1e9:
                return point
        point = point + step
        now = tried
        damping = max(damping / 3, 1e-9)
        if np.abs(step).max() < 1e-9:
            break
    return point


def lowest_of_each(runs: Sequence[OwnRun]) -> tuple[OwnRun, ...]:
    """Return the best run of each size and length: trials at other learning rates say nothing about a law."""
    best: dict[tuple[float, float], OwnRun] = {}
    for run in runs:
        key = (run.parameters, run.tokens)
        if key not in best or run.loss < best[key].loss:
            best[key] = run
    return tuple(best.values())
