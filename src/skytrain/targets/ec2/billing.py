"""The cost of a launch's machines by EC2's own account of them, for what they did not record themselves.

A machine is billed from its launch, for a minute at least, and writes its first record when it has booted. One that
never writes, or that ends after its last record, is counted by the times that EC2 has. It describes an ended instance
for about an hour, with its launch time and, where it knows it, the time of its end. Of a machine that nobody asked
about within that hour, only the start is known, from Auto Scaling's history: it is counted as a minute.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from ...aws import AwsSession, Call
from ...runs import HostSpends, LaunchRecord, billed_machines, largest_counts, write_billed
from ...storage import Store
from .history import GROUP_TAG, ended_at, group_history
from .replacement import DEAD

TERMINATED = frozenset({"shutting-down", "terminated"})
BILLED_SECONDS = 60.0  # of every machine at least
FORGOTTEN_SECONDS = 3600.0  # after which EC2 may not describe an ended instance any more


def count_machines(session: AwsSession, store: Store, record: LaunchRecord, *, running: bool = False) -> list[str]:
    """Record the cost of the launch's ended machines beyond what they recorded, and return their ids.

    With `running`, machines that run and have recorded nothing are counted until now.
    """
    known = largest_counts(HostSpends(store, record.run).read())
    keys = {key.partition(" ")[0]: key for key in known}
    prices = {group.name: group.usd_per_hour for group in record.groups}
    instances, now = _instances(session, list(prices), record.region)
    billed = billed_machines(store, record.run)
    counted = []

    def write(name: str, launched: datetime, seconds: float, usd_per_hour: float) -> None:
        usd = seconds * usd_per_hour / 3600
        count = {"usd": usd, "seconds": seconds, "boot": "", "boot_seconds": seconds}
        key = keys.get(name, f"{name} {launched.isoformat()}")
        spend = {"usd": usd, "usd_per_hour": usd_per_hour, "machines": {key: count}}
        store.write(f"runs/{record.run}/meeting/boot/{name}.json", json.dumps({"spend": spend}).encode())
        counted.append(name)

    for name, instance in instances.items():
        group = next((tag["Value"] for tag in instance.get("Tags", []) if tag["Key"] == GROUP_TAG), "")
        ended = ended_at(instance)
        state = instance["State"]["Name"]
        # A machine that is only stopped may start again. The time of an end may be told later than the end.
        if group in prices and name not in billed and (state == "terminated" or (state in TERMINATED and ended)):
            lived = _seconds(instance, ended) if ended is not None else None
            write_billed(store, record.run, name, lived, lived * prices[group] / 3600 if lived is not None else None)
        if group not in prices or (state not in DEAD and not running):
            continue
        if name in keys and ended is None:
            continue  # what machines record themselves reaches beyond their next record
        launched: datetime = instance["LaunchTime"].astimezone(UTC)
        # Without the time of its end, it is counted until now, once: too much rather than too little.
        seconds = _seconds(instance, ended or now)
        if name not in keys or known[keys[name]].seconds < seconds:
            write(name, launched, seconds, prices[group])
    if (now - datetime.fromisoformat(record.launched_at)).total_seconds() < FORGOTTEN_SECONDS:
        return counted
    for group, usd_per_hour in prices.items():
        for machine in group_history(session, group, record.region):
            is_old = (now - machine.at).total_seconds() > FORGOTTEN_SECONDS
            if is_old and machine.instance not in keys and machine.instance not in instances:
                write(machine.instance, machine.at.astimezone(UTC), BILLED_SECONDS, usd_per_hour)
    return counted


def _seconds(instance: dict[str, Any], until: datetime) -> float:
    """Return the seconds that are billed of an instance until then. EC2's times are whole seconds: one more is counted."""
    launched: datetime = instance["LaunchTime"].astimezone(UTC)
    return max(BILLED_SECONDS, (until - launched).total_seconds() + 1.0)


def _instances(session: AwsSession, groups: list[str], region: str) -> tuple[dict[str, dict[str, Any]], datetime]:
    """Return the instances of the groups by their ids, and EC2's time: a machine's own clock may not be set yet."""
    filters = [{"Name": f"tag:{GROUP_TAG}", "Values": groups}]
    answer = session.perform(Call("ec2", "DescribeInstances", {"Filters": filters}), region)
    said = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    now = parsedate_to_datetime(said) if said else datetime.now(UTC)
    found = [one for reservation in answer.get("Reservations", []) for one in reservation["Instances"]]
    return {one["InstanceId"]: one for one in found}, now
