"""No capacity: after a while without machines, the launch's next offer is tried, by whoever is awake.

Which offer is current is an object in the store, created only if it does not exist, so that a terminal and a node
never try different ones.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime

from ...aws import AwsSession, Call
from ...runs import LaunchedGroup, LaunchRecord, launch_folder, started_key
from ...storage import Store


def current_offer(store: Store, record: LaunchRecord) -> tuple[int, datetime]:
    """Return the number of the offer that is tried now, and since when, by the store's clock."""
    prefix = _prefix(record)
    tried = {int(stat.key.rpartition("/")[2].removesuffix(".json")): stat for stat in store.list(prefix)}
    if tried:
        newest = max(tried)
        return newest, datetime.fromtimestamp(tried[newest].modified, UTC)
    if record.after is None:
        return 0, datetime.fromisoformat(record.launched_at)
    started = store.stat(started_key(record))
    return 0, datetime.fromtimestamp(started.modified, UTC) if started else datetime.max.replace(tzinfo=UTC)


def machines_in(session: AwsSession, group: LaunchedGroup) -> int:
    """Return how many machines of the group exist, booting or running."""
    call = Call("autoscaling", "DescribeAutoScalingGroups", {"AutoScalingGroupNames": [group.name]})
    return sum(len(found["Instances"]) for found in session.items(call, "AutoScalingGroups"))


def try_next_offer(session: AwsSession, store: Store, record: LaunchRecord, now: datetime) -> str | None:
    """Switch to the next offer if the current one has not given all its machines for too long; says so, or None.

    A switch that was cut off is completed by the next call: the sizes of groups follow from the current offer.
    """
    number, since = current_offer(store, record)
    group = record.groups[number]
    waited = (now - since).total_seconds()
    if (
        number + 1 >= len(record.groups)
        or waited < record.patience_seconds
        or machines_in(session, group) >= group.nodes
    ):
        return None
    following = record.groups[number + 1]
    said = {"from": group.name, "to": following.name, "waited_seconds": round(waited)}
    store.create(f"{_prefix(record)}{number + 1:05d}.json", json.dumps(said).encode())
    set_sizes(session, record, number + 1)
    return (
        f"no {group.nodes} x {group.instance_type} in {group.zone} within {waited / 60:.0f} minutes: trying "
        f"{following.nodes} x {following.instance_type} ({following.market}) in {following.zone}"
    )


def set_sizes(session: AwsSession, record: LaunchRecord, current: int) -> None:
    """Make the current offer's group as large as it wants, and all others empty; the others first."""
    for number, group in sorted(enumerate(record.groups), key=lambda found: found[0] == current):
        session.perform(set_size(group, group.nodes if number == current else 0))


def set_size(group: LaunchedGroup, count: int) -> Call:
    """Return the request for so many machines. Nodes may make it; they may not raise the group's limit."""
    named = {"AutoScalingGroupName": group.name, "DesiredCapacity": count, "HonorCooldown": False}
    return Call("autoscaling", "SetDesiredCapacity", named)


def _prefix(record: LaunchRecord) -> str:
    return f"{launch_folder(record)}/offers/"
