"""Current prices of a plan's offers by zone, as AWS states them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from ..planning import Plan, PlannedOffer, ZonePrice, load_catalog, timestamp
from .calls import Call
from .errors import CloudError
from .session import AwsSession


def offered_zones(session: AwsSession, instance_type: str) -> list[str]:
    """Return the zones of the session's region that sell the type."""
    named = {"LocationType": "availability-zone", "Filters": [{"Name": "instance-type", "Values": [instance_type]}]}
    sold = session.items(Call("ec2", "DescribeInstanceTypeOfferings", named), "InstanceTypeOfferings")
    return sorted(one["Location"] for one in sold)


def spot_prices(session: AwsSession, instance_type: str, zones: Iterable[str], now: datetime) -> dict[str, float]:
    """Return the spot price in force in each of the zones that has one."""
    named = {
        "InstanceTypes": [instance_type],
        "ProductDescriptions": ["Linux/UNIX"],
        "StartTime": now,  # from now on: the price in force in each zone
    }
    wanted = set(zones)
    prices = dict[str, float]()
    for item in session.items(Call("ec2", "DescribeSpotPriceHistory", named), "SpotPriceHistory"):
        if item["AvailabilityZone"] in wanted:
            prices.setdefault(item["AvailabilityZone"], float(item["SpotPrice"]))
    return prices


def quoted(plan: Plan, session: AwsSession, zones: Iterable[str], now: datetime) -> Plan:
    """Return the plan with current zone prices, cheapest first, without offers that cannot be had at its prices.

    `zones` are those with a subnet. Raises CloudError (exit 5) if the first offer is among them.
    """
    ours = sorted(zones)
    offers = [replace(offer, zones=_zone_prices(offer, session, ours, now)) for offer in plan.offers]
    if not offers[0].zones:
        first = offers[0]
        raise CloudError(
            f"{first.instance_type} ({first.market}) is not sold in {', '.join(ours)} for "
            f"${first.max_usd_per_hour_each:.4f} an hour or less, the most that the plan accepts",
            fix="prices have moved: skytrain catalog refresh, then plan again (or add --replan)",
            cause="capacity",
        )
    return replace(plan, offers=[offer for offer in offers if offer.zones])


def quoted_by_plan(plan: Plan, zones: Iterable[str]) -> Plan:
    """Return the plan with its own prices in each of these zones: AWS is not asked."""
    ours = sorted(zones)
    return replace(
        plan,
        offers=[
            replace(offer, zones=[ZonePrice(zone, min(offer.usd_per_hour_each), plan.made_at) for zone in ours])
            for offer in plan.offers
        ],
    )


def _zone_prices(offer: PlannedOffer, session: AwsSession, zones: list[str], now: datetime) -> list[ZonePrice]:
    sold = [zone for zone in offered_zones(session, offer.instance_type) if zone in zones]
    if offer.market == "spot":
        prices = spot_prices(session, offer.instance_type, sold, now)
    else:
        least = load_catalog().least_usd_per_hour(offer.instance_type, offer.region, "on-demand")
        prices = dict.fromkeys(sold, max(least, *offer.usd_per_hour_each))
    return [
        ZonePrice(zone, usd, timestamp(now))
        for zone, usd in sorted(prices.items(), key=lambda pair: (pair[1], pair[0]))
        if usd <= offer.max_usd_per_hour_each
    ]
