"""Capacity blocks: machines in one zone that were bought in advance for some days."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from ..planning import PlannedOffer
from .calls import Call
from .errors import CloudError
from .session import AwsSession

ENDS_BEFORE = timedelta(minutes=35)  # AWS terminates what still runs 30 minutes before the block's end
USABLE = ("active", "scheduled")


@dataclass(frozen=True)
class CapacityBlock:
    id: str
    instance_type: str
    zone: str
    free: int  # number of free machines
    state: str
    starts_at: datetime
    ends_at: datetime | None  # None if it lasts until it is cancelled

    def kill_after_seconds(self, offer: PlannedOffer, now: datetime) -> float:
        """Return when AWS ends the machines: as planned, from the block's start, but before the block ends."""
        planned = max(now, self.starts_at) + timedelta(seconds=offer.kill_after_seconds)
        last = planned if self.ends_at is None else min(planned, self.ends_at - ENDS_BEFORE)
        return (last - now).total_seconds()


def find_block(session: AwsSession, offer: PlannedOffer, now: datetime) -> CapacityBlock:
    """Return the offer's capacity block. Raises CloudError if its machines are not those of the offer."""
    assert offer.reservation is not None
    named = {"CapacityReservationIds": [offer.reservation]}
    reservations = session.perform(Call("ec2", "DescribeCapacityReservations", named))["CapacityReservations"]
    if not reservations:
        raise _unusable(offer, "does not exist in this region")
    one = reservations[0]
    block = CapacityBlock(
        id=one["CapacityReservationId"],
        instance_type=one["InstanceType"],
        zone=one["AvailabilityZone"],
        free=one["AvailableInstanceCount"] if one["State"] == "active" else one["TotalInstanceCount"],
        state=one["State"],
        starts_at=one.get("StartDate") or one.get("CreateDate") or now,
        ends_at=one.get("EndDate"),
    )
    if block.state not in USABLE:
        raise _unusable(offer, f"is {block.state}")
    if block.instance_type != offer.instance_type:
        raise _unusable(offer, f"has {block.instance_type}, not {offer.instance_type}")
    if block.free < offer.nodes:
        raise _unusable(offer, f"has {block.free} free machines, and the plan needs {offer.nodes}", "capacity")
    if block.kill_after_seconds(offer, now) <= 0:
        raise _unusable(offer, f"ends at {block.ends_at}")
    return block


def block_options(reservation: str) -> dict[str, Any]:
    """Return the part of a request that takes machines from a capacity block."""
    target = {"CapacityReservationTarget": {"CapacityReservationId": reservation}}
    return {"InstanceMarketOptions": {"MarketType": "capacity-block"}, "CapacityReservationSpecification": target}


def _unusable(offer: PlannedOffer, problem: str, cause: str = "preflight") -> CloudError:
    return CloudError(
        f"the capacity block {offer.reservation} {problem}",
        fix="set cloud.reservation to a block for the plan: aws ec2 describe-capacity-reservations; then plan again",
        cause=cause,
    )
