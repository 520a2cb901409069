"""Which zones sell a type of machine, and the spot prices in force there."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from .calls import Call
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
