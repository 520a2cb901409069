"""The number of tokens to train on: what a budget buys on each offer, and what is compute-optimal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..config import Config, SkytrainError, format_seconds
from .budget import Budget
from .communication import Node
from .costs import Estimate, estimate, work_of
from .host import disk_problem
from .offers import Offer


@dataclass(frozen=True)
class Purchase:
    """The tokens that a budget buys on one offer."""

    tokens: int
    estimate: Estimate
    offer: Offer


def tokens_for_budget(config: Config, offer: Offer, budget_usd: float, deadline_hours: float | None = None) -> int:
    """Return the tokens within budget and deadline at p90, in whole optimizer steps; 0 if not even one step fits."""

    assert offer.placement
    placement, node = offer.placement, Node.of(offer.instance)

    def fits(steps: int) -> bool:
        if disk_problem(placement.job, placement.mesh, node, work_of(config, steps)):
            return False
        estimate = estimate_steps(config, offer, steps)
        return Budget(budget_usd).covers(estimate.usd_p90) and (
            deadline_hours is None or estimate.hours_p90 <= deadline_hours
        )

    if not fits(1):
        return 0
    low = 1
    high = 2
    while fits(high):
        low, high = high, high * 2
    while high - low > max(1, low // 1000):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low * config.trainer.batch_tokens


def estimate_steps(config: Config, offer: Offer, steps: int) -> Estimate:
    """Estimate the hours and dollars of `steps` steps on an offer."""
    assert offer.placement and offer.price
    prediction = offer.placement.prediction
    work = work_of(config, steps)
    return estimate(work, prediction.seconds, prediction.source, offer.instance, offer.nodes, offer.price)


def most_tokens(
    config: Config, offers: Sequence[Offer], budget_usd: float, deadline_hours: float | None, rows: int
) -> list[Purchase]:
    """Return the offers on which the budget buys most, best first. Raises SkytrainError if it buys no step at all."""
    priced = [offer for offer in offers if offer.estimate]

    def at_most(offer: Offer) -> float:
        """Return an upper bound of the tokens: no boot, restarts or storage, at the cheapest price."""
        assert offer.placement and offer.price
        hours = Budget(budget_usd).hours_at(offer.nodes * offer.price.usd_per_hour_min)
        return offer.placement.tokens_per_s * 3600 * min(hours, deadline_hours or math.inf)

    bought: list[Purchase] = []
    for offer in sorted(priced, key=at_most, reverse=True):
        if len(bought) >= rows and at_most(offer) <= bought[rows - 1].tokens:
            break  # neither this offer nor any after it can buy more
        if tokens := tokens_for_budget(config, offer, budget_usd, deadline_hours):
            steps = tokens // config.trainer.batch_tokens
            bought.append(Purchase(tokens, estimate_steps(config, offer, steps), offer))
            bought.sort(key=lambda one: -one.tokens)
    if not bought:
        raise _buys_nothing(config, priced, budget_usd, deadline_hours)
    return bought[:rows]


def _buys_nothing(
    config: Config, priced: Sequence[Offer], budget_usd: float, deadline_hours: float | None
) -> SkytrainError:
    if not priced:
        return SkytrainError("nothing that fits is sold that way\n  try another --region, --market or --instance")
    first_step = [(estimate_steps(config, offer, 1), offer) for offer in priced]
    in_time = [(one, offer) for one, offer in first_step if deadline_hours is None or one.hours_p90 <= deadline_hours]
    if deadline_hours is not None and not in_time:
        soonest, offer = min(first_step, key=lambda pair: pair[0].hours_p90)
        return SkytrainError(
            f"no offer makes one step within {format_seconds(3600 * deadline_hours)}: the soonest takes "
            f"{format_seconds(3600 * soonest.hours_p90)} at p90 ({offer.name})\n"
            "  a machine has to boot first; try a later --deadline"
        )
    least, offer = min(in_time, key=lambda pair: pair[0].usd_p90)
    return SkytrainError(
        f"budget.usd={budget_usd:g} does not buy a single step: the least is ${least.usd_p90:,.2f} at p90 ({offer.name}), for booting a machine and one step\n  try: budget.usd={math.ceil(least.usd_p90)} or more"
    )


@dataclass(frozen=True)
class LossLaw:
    """A fit of L(N, D) = E + A/N^alpha + B/D^beta, whose minimum at a fixed compute of 6·N·D gives the optimal tokens.

    N counts all parameters.
    """

    name: str
    e: float
    a: float
    b: float
    alpha: float
    beta: float

    def loss(self, parameters: float, tokens: float) -> float:
        """Return nats per token on the data of the fit; differences transfer to other data better than levels."""
        return self.e + self.a / parameters**self.alpha + self.b / tokens**self.beta

    def optimal_tokens(self, parameters: float) -> float:
        """Return the tokens for which this model size is compute-optimal: alpha·A/N^alpha = beta·B/D^beta."""
        return (self.beta * self.b * parameters**self.alpha / (self.alpha * self.a)) ** (1 / self.beta)


# Hoffmann et al. 2022 (arXiv 2203.15556), approach 3, and the replication by Besiroglu et al. 2024 (arXiv 2404.10102),
# who show that the original fit is off.
HOFFMANN = LossLaw(name="Hoffmann 2022", e=1.69, a=406.4, b=410.7, alpha=0.34, beta=0.28)
BESIROGLU = LossLaw(name="Besiroglu 2024", e=1.8172, a=482.01, b=2085.43, alpha=0.3478, beta=0.3658)
