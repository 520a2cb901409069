"""The cost of a launch's machines by EC2's own account of them, for what they did not record themselves.

A machine is billed from its launch, for a minute at least, and writes its first record when it has booted. One that
never writes, or that ends after its last record, is counted by the times that EC2 has. It describes an ended instance
for about an hour, with its launch time and, where it knows it, the time of its end.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from ...aws import AwsSession, Call
from ...runs import HostSpends, LaunchRecord, largest_counts
from ...storage import Store
from .history import GROUP_TAG, ended_at
from .replacement import ENDED

BILLED_SECONDS = 60.0  # of every machine at least
ALIVE = ("pending", "running", "stopping", "stopped")


def count_machines(session: AwsSession, store: Store, record: LaunchRecord, *, running: bool = False) -> list[str]:
    """Record the cost of the launch's ended machines beyond what they recorded, and return their ids.

    With `running`, machines that run and have recorded nothing are counted until now.
    """
    known = largest_counts(HostSpends(store, record.run).read())
    keys = {key.partition(" ")[0]: key for key in known}
    prices = {group.name: group.usd_per_hour for group in record.groups}
    counted = []
    for instance, now in _instances(session, list(prices), (*ENDED, *ALIVE) if running else ENDED):
        name = instance["InstanceId"]
        group = next((tag["Value"] for tag in instance.get("Tags", []) if tag["Key"] == GROUP_TAG), "")
        ended = ended_at(instance)
        if group not in prices or (name in keys and ended is None):
            continue  # what machines record themselves reaches beyond their next record
        launched: datetime = instance["LaunchTime"].astimezone(UTC)
        # Without the time of its end, it is counted until now, once: too much rather than too little. Times are whole seconds.
        seconds = max(BILLED_SECONDS, ((ended or now) - launched).total_seconds() + 1.0)
        key = keys.get(name, f"{name} {launched.isoformat()}")
        if key in known and known[key].seconds >= seconds:
            continue
        usd = seconds * prices[group] / 3600
        count = {"usd": usd, "seconds": seconds, "boot": "", "boot_seconds": seconds}
        spend = {"usd": usd, "usd_per_hour": prices[group], "machines": {key: count}}
        store.write(f"runs/{record.run}/meeting/boot/{name}.json", json.dumps({"spend": spend}).encode())
        counted.append(name)
    return counted


def _instances(
    session: AwsSession, groups: list[str], states: Iterable[str]
) -> Iterator[tuple[dict[str, Any], datetime]]:
    """Yield the instances of the groups, each with EC2's present time: a machine's own clock may not be set yet."""
    filters = [
        {"Name": f"tag:{GROUP_TAG}", "Values": groups},
        {"Name": "instance-state-name", "Values": sorted(states)},
    ]
    answer = session.perform(Call("ec2", "DescribeInstances", {"Filters": filters}))
    said = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    now = parsedate_to_datetime(said) if said else datetime.now(UTC)
    for reservation in answer.get("Reservations", []):
        for instance in reservation["Instances"]:
            yield instance, now
