"""Published laws of the best learning rate, with their constants and where they hold.

All are for AdamW, decoders and a single epoch. N is parameters without embeddings, D tokens, B tokens a step.
No law is an answer by itself: on settings that it was not fitted on, it is typically off by a quarter to a half.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from .problem import UNKNOWN_LEVEL, Law, LawShape, Priors, Rung

# GPT-3 (Brown et al. 2020, table 2.1): parameters and rate, at 300 billion tokens and batches of 0.5M to 3.2M.
GPT3 = (
    (125e6, 6.0e-4),
    (350e6, 3.0e-4),
    (760e6, 2.5e-4),
    (1.3e9, 2.0e-4),
    (2.7e9, 1.6e-4),
    (6.7e9, 1.2e-4),
    (13e9, 1.0e-4),
    (175e9, 0.6e-4),
)
GPT3_TOKENS = 300e9
HORIZON_EXPONENT = -0.32  # Bjorck et al. 2024, arXiv 2409.19913

# Shapes besides the law's own and "unchanged". The horizon's is among the two nearer ones in one family of eight, the
# others in three to five (benchmarks/tuning/families.log).
SHAPE_WEIGHTS = {"deepseek": 1.0, "step-law": 1.0, "horizon": 0.25}
# muP and CompleteP: the best rate stays within a factor of two while the width grows 16 to 64 times, the size 256 times
# or more (arXiv 2203.03466, 2404.05728).
WIDTH_FREE_EXPONENT = 0.1
STANDARD = "standard"  # the shape that contradicts muP and CompleteP
# Exponents of the tokens. Weight decay: its timescale 1/(rate x decay) stays a share of the run (Wang and Aitchison,
# arXiv 2405.13698). Batch: Power Lines, arXiv 2505.13738. A warm-up is a share of the run already.
AXIS_EXPONENTS = {"weight_decay": -1.0, "batch_tokens": 0.383}
USER_OFFSET = 0.8  # ln: deviation of a value that is off by up to a factor of four

# Range of the curves that the batch-aware law was fitted on.
FITTED_SIZES = (2.1e8, 1.1e9)
FITTED_TOKENS = (4e9, 1e11)
BENT = 0.4  # share of the exponents that is kept beyond them


@dataclass(frozen=True)
class PublishedLaw:
    name: str
    rate: Callable[[Rung], float]
    source: str
    caveat: str


@dataclass(frozen=True)
class BatchAware:
    """ln rate = level + size ln N/2e8 + horizon ln D/1e10 - batch ln(1 + K/B), K = knee (D/1e10)^knee_horizon.

    The exponent of the horizon at a fixed batch is negative well below the knee and positive above it, which plain
    power laws of N and D cannot be.
    """

    level: float
    size: float
    horizon: float
    batch: float
    knee: float
    knee_horizon: float

    def __call__(self, rung: Rung) -> float:
        size = _within(rung.parameters, FITTED_SIZES) - math.log(2e8)
        horizon = _within(rung.tokens, FITTED_TOKENS) - math.log(1e10)
        knee = self.knee * math.exp(self.knee_horizon * horizon)
        return (
            self.level + self.size * size + self.horizon * horizon - self.batch * math.log1p(knee / rung.batch_tokens)
        )


# Fitted on the 1,911 runs of step-law/steplaw; benchmarks/tuning/replay.py refits the form without each of its targets.
PUBLISHED_CURVES = BatchAware(
    level=-5.6684, size=-0.6583, horizon=0.2504, batch=1.473, knee=72_900.0, knee_horizon=0.6741
)


def deepseek(rung: Rung) -> float:
    return 0.3118 * (6 * rung.parameters * rung.tokens) ** -0.125


def step_law(rung: Rung) -> float:
    return 1.79 * rung.parameters**-0.713 * rung.tokens**0.307


def gpt3(rung: Rung) -> float:
    """Return GPT-3's rate, interpolated and extrapolated on logarithmic axes."""
    points = [(math.log(size), math.log(rate)) for size, rate in GPT3]
    x = math.log(rung.parameters)
    number = min(max(sum(x > size for size, _ in points), 1), len(points) - 1)
    (x0, y0) = points[number - 1]
    (x1, y1) = points[number]
    return math.exp(y0 + (x - x0) * (y1 - y0) / (x1 - x0))


def horizon(rung: Rung) -> float:
    return gpt3(rung) * (rung.tokens / GPT3_TOKENS) ** HORIZON_EXPONENT


LAWS = (
    PublishedLaw(
        "deepseek",
        deepseek,
        "0.3118 C^-0.125 with C = 6 N D (DeepSeek LLM, arXiv 2401.02954)",
        "at the batch that its own law gives; fitted on 1e17 to 2e19 FLOPs",
    ),
    PublishedLaw(
        "step-law",
        step_law,
        "1.79 N^-0.713 D^0.307 (arXiv 2503.04715)",
        "only along the best batch, 0.58 D^0.571 tokens; replications find a smaller exponent of D",
    ),
    PublishedLaw(
        "gpt3-table",
        gpt3,
        "the rates of GPT-3's eight sizes (arXiv 2005.14165, table 2.1)",
        "chosen for 300B tokens and large batches; low for short runs",
    ),
    PublishedLaw(
        "horizon",
        horizon,
        "GPT-3's table times (D / 300B)^-0.32 (arXiv 2409.19913)",
        "the sign of the exponent holds for small batches; at large ones the best rate rises with D",
    ),
    PublishedLaw(
        "batch-aware",
        lambda rung: math.exp(PUBLISHED_CURVES(rung)),
        "a form with a knee in the batch, fitted by us on the 1,911 runs of arXiv 2503.04715",
        "Llama-like models of 0.2B to 1.1B, 4B to 100B tokens",
    ),
)


def law_named(name: str) -> PublishedLaw:
    return next(one for one in LAWS if one.name == name)


def combined_law(target: Rung, *, width_free: bool = False, curves: BatchAware = PUBLISHED_CURVES) -> Law:
    """Return the law that a search starts from: the batch-aware one, with its exponent of the tokens everywhere.

    Only the level bends beyond the published runs: at a batch that is large for the horizon, every fit of the
    exponent of the tokens is 0.25 to 0.31. `width_free` is for muP and CompleteP, under which the best rate does not
    depend on the model's size.
    """
    size = 0.0 if width_free else curves.size

    def law(rung: Rung) -> float:
        steps = _within(rung.parameters, FITTED_SIZES) - _within(target.parameters, FITTED_SIZES)
        extra = (size - curves.size) * steps
        bent = _within(rung.tokens, FITTED_TOKENS) - _within(target.tokens, FITTED_TOKENS)
        extra += curves.horizon * (math.log(rung.tokens / target.tokens) - bent)
        return curves(rung) + extra

    return law


def centred_law(target: Rung, rate: float) -> Law:
    """Return a law that is flat through `rate`, for optimizers and settings that no published law covers."""
    return lambda rung: math.log(rate)


def priors_for(target: Rung, law: Law) -> Priors:
    """Return beliefs around a law: its own shape, that of three others, and none at all.

    The others span the published exponents of the tokens, -0.32 to 0.31. The levels of the published laws differ by
    more than their shapes, and the batch-aware one was the nearest in every family (benchmarks/tuning/families.log);
    so all shapes pass through the expected rate at the target.
    """
    level = law(target)
    others = [
        LawShape(name, _through(law_named(name), target, level), weight) for name, weight in SHAPE_WEIGHTS.items()
    ]
    return Priors(law=law, shapes=tuple(others))


def width_free_priors(target: Rung) -> Priors:
    """Return beliefs for muP and CompleteP: the best rate does not depend on the size, unless the trials disagree.

    No law's level was fitted under these parametrizations, so it may be anywhere.
    """
    standard = LawShape(STANDARD, combined_law(target))
    law = combined_law(target, width_free=True)
    return Priors(law=law, shapes=(standard,), offset=UNKNOWN_LEVEL, size_exponent=WIDTH_FREE_EXPONENT)


def axis_shapes(axis: str, target: Rung, level: float) -> tuple[LawShape, ...]:
    """Return how the best value of another setting may depend on the horizon, besides not at all."""
    exponent = AXIS_EXPONENTS.get(axis)
    if exponent is None:
        return ()
    return (LawShape(axis, lambda rung: level + exponent * math.log(rung.tokens / target.tokens)),)


def priors_around(target: Rung, rate: float) -> Priors:
    """Return wide beliefs around a user's value, for optimizers that no published law covers."""
    return replace(priors_for(target, centred_law(target, rate)), offset=USER_OFFSET)


def _through(published: PublishedLaw, target: Rung, level: float) -> Law:
    shift = level - math.log(published.rate(target))
    return lambda rung: math.log(published.rate(rung)) + shift


def _within(value: float, limits: tuple[float, float]) -> float:
    """Return ln of a value, with the distance beyond the limits shortened: far from its data a power law bends."""
    low, high = limits
    inside = min(max(value, low), high)
    return math.log(inside) + BENT * math.log(value / inside)
