"""The plan of a job on one machine that does not train: to prepare, to finish or to serve. Its work decides the machine."""

from __future__ import annotations

from collections.abc import Sequence

from ..config import SkytrainError
from .catalog import HOURS_PER_MONTH, InstanceType, Price
from .costs import GP3_USD_PER_GB_MONTH
from .offers import PlanRequest
from .plan_file import CostForecast, PlannedOffer
from .plan_making import FALLBACKS, PlanMaterial, bid_for, priced_offer

LONGEST_JOB_HOURS = 12.0  # limit on the choice, if a larger machine would be faster for about the same dollars


def disk_usd_per_hour(disk_gb: int) -> float:
    """Return the price of a machine's disk."""
    return disk_gb * GP3_USD_PER_GB_MONTH / HOURS_PER_MONTH


def machine_offer(
    instance: InstanceType, price: Price, material: PlanMaterial, *, disk_gb: int, cost: CostForecast
) -> PlannedOffer:
    """Return the offer of one machine, until the budget's kill time."""
    bid = bid_for(price, instance.type, material.catalog)
    return priced_offer(instance, price, material, bid=bid, disk_gb=disk_gb, cost=cost)


def choose_machine(offers: Sequence[PlannedOffer], request: PlanRequest, what: str, remedy: str) -> list[PlannedOffer]:
    """Return the choice and its fallbacks: each type and market once.

    `what` is the work, for people; `remedy` what they can do if the budget is too small.
    """
    if not offers:
        raise SkytrainError(
            f"the catalogue has no machine for {what} in {request.region}\n  try: skytrain catalog refresh"
        )
    affordable = [offer for offer in offers if request.budget.covers(offer.cost.usd_p90)]
    if not affordable:
        least = min(offers, key=lambda offer: offer.cost.usd_p90)
        raise SkytrainError(
            f"{what} may cost ${least.cost.usd_p90:.2f} (p90, on {least.instance_type}, {least.market}), "
            f"more than budget.usd={request.budget_usd:g}\n  {remedy}"
        )
    limit = request.deadline_hours or LONGEST_JOB_HOURS
    in_time = [offer for offer in affordable if offer.cost.hours_p90 <= limit]
    by_cost = sorted(in_time, key=lambda offer: (round(offer.cost.usd, 2), offer.cost.hours))
    ranked = by_cost or sorted(affordable, key=lambda offer: (offer.cost.hours_p90, offer.cost.usd))
    first = ranked[:FALLBACKS]
    last = ranked[FALLBACKS : FALLBACKS + 1]
    if all(offer.market == "spot" for offer in first):  # add one on demand, in case spot machines are short
        last = [offer for offer in ranked[FALLBACKS:] if offer.market == "on-demand"][:1] or last
    return [*first, *last]
