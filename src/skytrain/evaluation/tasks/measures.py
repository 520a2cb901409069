"""What a task measured: each scoring with its standard error, and a paired comparison of two models."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from ...config import SkytrainError

Scale = Literal["mean", "exp"]
CONFIDENCE_95 = 1.959963984540054  # standard errors on each side of a 95% interval
SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Measure:
    """A ratio of sums over items, such as right answers per item or nats per word; `exp` of it for a perplexity.

    The standard error is that of a ratio estimator; for a mean it is the deviation over the square root of the count, as
    lm-evaluation-harness computes it.
    """

    amounts: np.ndarray
    weights: np.ndarray
    scale: Scale = "mean"
    higher_is_better: bool = True

    @property
    def ratio(self) -> float:
        return float(self.amounts.sum() / self.weights.sum())

    @property
    def value(self) -> float:
        if self.scale == "mean":
            return self.ratio
        return math.exp(self.ratio) if self.ratio < 700 else math.inf

    @property
    def stderr(self) -> float:
        """The standard error; not a number for a single item."""
        error = _ratio_error(self.amounts, self.weights)
        return error if self.scale == "mean" else self.value * error


def accuracy(right: np.ndarray) -> Measure:
    return Measure(right.astype(np.float64), np.ones(len(right)))


def _ratio_error(amounts: np.ndarray, weights: np.ndarray) -> float:
    count = len(amounts)
    total = float(weights.sum())
    if count < 2:
        return math.nan
    residuals = amounts - amounts.sum() / total * weights
    return math.sqrt(float((residuals**2).sum()) * count / (count - 1)) / total


@dataclass(frozen=True)
class TaskResult:
    """A task's measures by scoring, and what was scored."""

    task: str
    measures: dict[str, Measure]
    items: int
    available: int  # items in the data; more than `items` where a limit was given
    truncated: int = 0  # items that lost the beginning of a context, because the model sees no more
    answers: list[dict[str, object]] = field(default_factory=list)  # one for each item
    chance: float | None = None  # the share of right answers of a guesser, where there are choices

    def metrics(self) -> dict[str, float]:
        """Return the measures by the names of the logs: eval/TASK/SCORING, and the same with _stderr."""
        found: dict[str, float] = {}
        for scoring, measure in self.measures.items():
            found[f"eval/{self.task}/{scoring}"] = measure.value
            if not math.isnan(measure.stderr):
                found[f"eval/{self.task}/{scoring}_stderr"] = measure.stderr
        if self.chance is not None:
            found[f"eval/{self.task}/chance"] = self.chance
        if self.truncated:
            found[f"eval/{self.task}/truncated"] = float(self.truncated)
        return found | {f"eval/{self.task}/items": float(self.items)}


@dataclass(frozen=True)
class PairedDifference:
    """The second model minus the first, over the same items; of perplexities, the difference of their logarithms."""

    task: str
    scoring: str
    first: float
    second: float
    difference: float
    low: float
    high: float
    p_value: float
    higher_is_better: bool

    @property
    def verdict(self) -> str:
        if not self.p_value < SIGNIFICANT or self.low <= 0 <= self.high:
            return "no difference beyond noise"
        return "second is better" if (self.difference > 0) == self.higher_is_better else "first is better"


def compare(first: TaskResult, second: TaskResult) -> list[PairedDifference]:
    """Compare two models on the items that both have answered. The interval holds 95%.

    For accuracies the test is exact: a few items that all changed the same way have no variance, and prove little.
    """
    if first.task != second.task or first.items != second.items:
        raise SkytrainError(
            f"{first.task} with {first.items} items and {second.task} with {second.items} cannot be compared in pairs"
        )
    differences = []
    for scoring, one in first.measures.items():
        two = second.measures.get(scoring)
        if two is None or not np.array_equal(one.weights, two.weights):
            continue  # such as the loss per token of models with different tokenizers
        difference = two.ratio - one.ratio
        if _is_accuracy(one) and _is_accuracy(two):
            low, high, p_value = _paired_answers(two.amounts - one.amounts)
        else:
            error = _ratio_error(two.amounts - one.amounts, one.weights)
            margin = CONFIDENCE_95 * error
            low = difference - margin
            high = difference + margin
            p_value = _p_value(difference, error)
        differences.append(
            PairedDifference(
                task=first.task,
                scoring=scoring,
                first=one.value,
                second=two.value,
                difference=difference,
                low=low,
                high=high,
                p_value=p_value,
                higher_is_better=one.higher_is_better,
            )
        )
    return differences


def _is_accuracy(measure: Measure) -> bool:
    return bool(np.isin(measure.amounts, (0.0, 1.0)).all() and (measure.weights == 1).all())


def _paired_answers(changes: np.ndarray) -> tuple[float, float, float]:
    """Return the interval of a difference of accuracies (Agresti and Min 2005), and McNemar's exact p-value."""
    gained = int((changes > 0).sum())
    lost = int((changes < 0).sum())
    count = len(changes) + 2
    difference = (gained - lost) / count
    margin = CONFIDENCE_95 * math.sqrt(gained + lost + 1 - count * difference**2) / count
    return max(-1.0, difference - margin), min(1.0, difference + margin), _sign_test(gained, lost)


def _sign_test(gained: int, lost: int) -> float:
    """Return the two-sided probability that at least as many changes go one way if each way is equally likely."""
    changed = gained + lost
    fewer = min(gained, lost)
    if changed == 0 or gained == lost:
        return 1.0
    logs = [math.lgamma(changed + 1) - math.lgamma(k + 1) - math.lgamma(changed - k + 1) for k in range(fewer + 1)]
    return min(1.0, 2 * math.fsum(math.exp(log - changed * math.log(2)) for log in logs))


def _p_value(difference: float, error: float) -> float:
    """Return the two-sided p-value of a normal distribution."""
    if not error > 0:
        return math.nan if math.isnan(error) else float(difference == 0)
    return math.erfc(abs(difference) / error / math.sqrt(2))


@dataclass(frozen=True)
class ModelResults:
    """What a model scored, and the seconds that the scoring took."""

    model: str
    step: int | None  # of a run's checkpoint
    results: tuple[TaskResult, ...]
    seconds: float
