"""The number of tokens that a budget buys on each offer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from ..config import Config, SkytrainError, batch_sizes, format_seconds
from .catalog import InstanceType
from .communication import Node
from .costs import Estimate, estimate, most_training_seconds, work_of
from .host import disk_problem
from .offers import Offer, Offering


@dataclass(frozen=True)
class Purchase:
    """The tokens that a budget buys on one offer."""

    tokens: int
    estimate: Estimate
    offer: Offer


def tokens_for_budget(
    config: Config, offer: Offer, budget_usd: float, deadline_hours: float | None = None, more_than: int = 0
) -> int:
    """Return the tokens within budget and deadline at p90, in whole optimizer steps.

    0 if not even one step fits, or if they are not `more_than` so many tokens, which one try shows.
    """

    assert offer.placement
    placement, node = offer.placement, Node.of(offer.instance)

    def used(steps: int) -> float:
        """Return how much of the scarcer limit these steps use; at most 1 if they keep both."""
        if disk_problem(placement.job, placement.mesh, node, work_of(config, steps)):
            return math.inf
        estimate = estimate_steps(config, offer, steps)
        hours = 0.0 if deadline_hours is None else estimate.hours_p90 / deadline_hours
        return max(hours, estimate.usd_p90 / budget_usd)

    batches = batch_sizes(config.trainer)
    if more_than and used(batches.steps_in(more_than) + 1) > 1:
        return 0
    return batches.before(_most_steps(used))


def _most_steps(used: Callable[[int], float]) -> int:
    """Return the most steps that use at most 1; what they use grows about linearly, which saves most of the tries."""
    low, high = 0, 1
    low_used = 0.0
    while (high_used := used(high)) <= 1:
        low, low_used = high, high_used
        high = max(high + 1, int(high * min(1000.0, 1.02 / max(high_used, 1e-9))))
    tries = 0
    while high - low > 1:
        tries += 1
        straight = math.isfinite(high_used) and tries % 3  # every third try halves, whatever the line says
        share = (1 - low_used) / (high_used - low_used) if straight else 0.5
        middle = min(high - 1, max(low + 1, low + round((high - low) * share)))
        if (found := used(middle)) <= 1:
            # The answer is most probably just above: look there before the interval is halved again.
            low, low_used = middle, found
            if (above := min(high - 1, middle + max(1, middle // 10000))) > low:
                if (found := used(above)) <= 1:
                    low, low_used = above, found
                else:
                    high, high_used = above, found
        else:
            high, high_used = middle, found
            if (below := max(low + 1, middle - max(1, middle // 10000))) < high:
                if (found := used(below)) <= 1:
                    low, low_used = below, found
                else:
                    high, high_used = below, found
    return low


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
    bought = _buy(config, offers, budget_usd, deadline_hours, rows, [])
    if not bought:
        raise _buys_nothing(config, offers, budget_usd, deadline_hours)
    return bought


def best_purchase(config: Config, offering: Offering, budget_usd: float, deadline_hours: float) -> Purchase | None:
    """Return the most tokens that the budget buys; None if it buys no step.

    Layouts are searched only on machines that could still buy more than the best so far.
    """
    best: list[Purchase] = []
    limits = at_most(offering, budget_usd, deadline_hours)
    waiting = [(-most, number, False) for number, (most, _, _) in enumerate(limits)]
    while waiting:
        most, number, laid_out = heappop(waiting)
        _, instance, nodes = limits[number]
        if not most or (best and -most <= best[0].tokens):
            break  # neither these machines nor any after them can buy more
        if laid_out:
            best = _buy(config, list(offering.on(instance, nodes)), budget_usd, deadline_hours, 1, best)
        else:
            closer = offering.most_tokens(instance, nodes, budget_usd, deadline_hours, laid_out=True)
            heappush(waiting, (-closer, number, True))
    return best[0] if best else None


def at_most(offering: Offering, budget_usd: float, hours: float) -> list[tuple[float, InstanceType, int]]:
    """Return machines with a number of tokens that they cannot exceed, the largest first."""
    bounds = [
        (offering.most_tokens(instance, nodes, budget_usd, hours), instance, nodes)
        for instance, nodes in offering.machines
    ]
    return sorted(bounds, key=lambda one: -one[0])


def _priced(offers: Sequence[Offer]) -> list[Offer]:
    return [offer for offer in offers if offer.placement and offer.price]


def _buy(
    config: Config,
    offers: Sequence[Offer],
    budget_usd: float,
    deadline_hours: float | None,
    rows: int,
    known: Sequence[Purchase],
) -> list[Purchase]:
    """Return the best of the known purchases and of the offers', best first."""

    def most(offer: Offer) -> float:
        """Return an upper bound of the tokens: no evaluation, checkpoints, restarts or storage."""
        assert offer.placement and offer.price
        seconds = most_training_seconds(
            budget_usd,
            deadline_hours or math.inf,
            offer.nodes,
            (offer.price.usd_per_hour_min, offer.price.usd_per_hour_max),
            offer.placement.prediction.source,
            compiled=config.trainer.compile,
        )
        return offer.placement.tokens_per_s * seconds

    bought = list(known)
    for offer in sorted(_priced(offers), key=most, reverse=True):
        least = bought[rows - 1].tokens if len(bought) >= rows else 0
        if least and most(offer) <= least:
            break  # neither this offer nor any after it can buy more
        if tokens := tokens_for_budget(config, offer, budget_usd, deadline_hours, more_than=least):
            steps = batch_sizes(config.trainer).steps_in(tokens)
            bought.append(Purchase(tokens, estimate_steps(config, offer, steps), offer))
            bought.sort(key=lambda one: -one.tokens)
    return bought[:rows]


def _buys_nothing(
    config: Config, offers: Sequence[Offer], budget_usd: float, deadline_hours: float | None
) -> SkytrainError:
    priced = _priced(offers)
    if not priced:
        why = next((f": on {offer.name}: {offer.problem}" for offer in offers if offer.problem), "")
        return SkytrainError(
            f"nothing that fits is sold that way{why}\n  try another --region, --market, --instance or --nodes"
        )
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
