"""Machines that ended before they could record their own cost: counted by what EC2 says about them.

A machine is billed from its launch, and writes its first record when it has booted. EC2 describes an ended instance for
about an hour, with its launch time and, where it knows it, the time of its end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from ...aws import AwsSession, Call
from ...jobs import list_meeting
from ...runs import LaunchRecord
from ...storage import Store

ENDED_AT = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")
GROUP_TAG = "aws:autoscaling:groupName"


def count_ended(session: AwsSession, store: Store, record: LaunchRecord) -> list[str]:
    """Record the cost of the launch's ended machines that have no record in the store; returns their ids."""
    found = list_meeting(store, record.run)
    known = {each.host.rpartition(".")[0] for each in found.hosts} | {each.host for each in found.boots}
    prices = {group.name: group.usd_per_hour for group in record.groups}
    counted = []
    for instance, now in _ended(session, list(prices)):
        name = instance["InstanceId"]
        group = next((tag["Value"] for tag in instance.get("Tags", []) if tag["Key"] == GROUP_TAG), "")
        if name in known or group not in prices:
            continue
        said = ENDED_AT.search(instance.get("StateTransitionReason", ""))
        # Without the time of its end, it is counted until now: too much rather than too little.
        ended = datetime.fromisoformat(said[1]).replace(tzinfo=UTC) if said else now
        launched: datetime = instance["LaunchTime"].astimezone(UTC)
        seconds = max(0.0, (ended - launched).total_seconds()) + 1.0  # both are whole seconds
        usd = seconds * prices[group] / 3600
        machine = {"usd": usd, "seconds": seconds, "boot": "", "boot_seconds": seconds}
        spend = {"usd": usd, "usd_per_hour": prices[group], "machines": {f"{name} {launched.isoformat()}": machine}}
        store.write(f"runs/{record.run}/meeting/boot/{name}.json", json.dumps({"spend": spend}).encode())
        counted.append(name)
    return counted


def _ended(session: AwsSession, groups: list[str]) -> Iterator[tuple[dict[str, Any], datetime]]:
    """Yield the ended instances of the groups, each with EC2's present time: a machine's own clock may not be set yet."""
    filters = [
        {"Name": f"tag:{GROUP_TAG}", "Values": groups},
        {"Name": "instance-state-name", "Values": ["shutting-down", "terminated"]},
    ]
    answer = session.perform(Call("ec2", "DescribeInstances", {"Filters": filters}))
    said = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    now = parsedate_to_datetime(said) if said else datetime.now(UTC)
    for reservation in answer.get("Reservations", []):
        for instance in reservation["Instances"]:
            yield instance, now
