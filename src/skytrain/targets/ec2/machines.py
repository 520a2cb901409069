"""The Auto Scaling groups of a launch: how a node or a terminal grows them, ends them and counts what they cost.

No capacity: after a while without machines, the launch's next offer is tried, by whoever is awake. Which offer is
current is an object in the store, created only if it does not exist, so that a terminal and a node never try
different ones.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from ...aws import WAITING, AwsSession, Call, CloudError, remove
from ...config import error_text
from ...jobs import list_meeting
from ...runs import (
    LaunchedGroup,
    LaunchRecord,
    current_offer,
    is_superseded,
    launch_folder,
    mark_failed,
    offer_key,
    read_launch,
    started_key,
)
from ...storage import Retry, Store, StoreError

ENDED_AT = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")
GROUP_TAG = "aws:autoscaling:groupName"
OFFER_SECONDS = 60.0  # between two looks at an offer that lacks machines
LEAVING = Retry(seconds=20.0, first_wait_seconds=2.0, longest_wait_seconds=5.0)  # of a node, which costs money
UNFIT_PER_NODE = 3  # machines that fail their health check, after which a launch ends


def count_ended(session: AwsSession, store: Store, record: LaunchRecord) -> list[str]:
    """Record the cost of the launch's ended machines that have no record in the store, and return their ids.

    A machine is billed from its launch, and writes its first record when it has booted. EC2 describes an ended instance
    for about an hour, with its launch time and, where it knows it, the time of its end.
    """
    meeting = list_meeting(store, record.run)
    known = {each.host.rpartition(".")[0] for each in meeting.hosts} | {each.host for each in meeting.boots}
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


def machines_in(session: AwsSession, group: LaunchedGroup) -> int:
    """Return how many machines of the group exist, booting or running."""
    call = Call("autoscaling", "DescribeAutoScalingGroups", {"AutoScalingGroupNames": [group.name]})
    return sum(len(one["Instances"]) for one in session.items(call, "AutoScalingGroups"))


def try_next_offer(session: AwsSession, store: Store, record: LaunchRecord, now: datetime) -> str | None:
    """Switch to the next offer if the current one has not given all its machines for too long, and say so.

    A switch that was cut off is completed by the next call: the sizes of groups follow from the current offer.
    """
    if is_superseded(store, record):  # a terminal that slept, or a machine that was cut off
        return None
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
    store.create(offer_key(record, number + 1), json.dumps(said).encode())
    set_sizes(session, record, number + 1)
    return (
        f"no {group.nodes} x {group.instance_type} in {group.zone} within {waited / 60:.0f} minutes: trying "
        f"{following.nodes} x {following.instance_type} ({following.market}) in {following.zone}"
    )


def set_sizes(session: AwsSession, record: LaunchRecord, current: int) -> None:
    """Make the current offer's group as large as it wants, and all others empty; the others first."""
    for number, group in sorted(enumerate(record.groups), key=lambda item: item[0] == current):
        session.perform(set_size(group, group.nodes if number == current else 0))


def set_size(group: LaunchedGroup, count: int) -> Call:
    """Return the request for so many machines. Nodes may make it; they may not raise the group's limit."""
    named = {"AutoScalingGroupName": group.name, "DesiredCapacity": count, "HonorCooldown": False}
    return Call("autoscaling", "SetDesiredCapacity", named)


class OfferTurns:
    """Tries the launch's next offer when the current one has lacked machines for `cloud.patience`, as seen from here.

    Seen from here: a machine that was lost and is being replaced after hours of training does not mean a lack of capacity.
    """

    def __init__(self, session: AwsSession, store: Store, record: LaunchRecord) -> None:
        self._session = session
        self._store = store
        self._record = record
        self._due = 0.0
        self._lacks: tuple[int, float] | None = None  # which offer, and since when

    def __call__(self) -> str | None:
        """Look once a minute, and return what was done."""
        now = time.monotonic()
        if now < self._due:
            return None
        self._due = now + OFFER_SECONDS
        number, _ = current_offer(self._store, self._record)
        group = self._record.groups[number]
        if machines_in(self._session, group) >= group.nodes:
            self._lacks = None
            return None
        if self._lacks is None or self._lacks[0] != number:
            self._lacks = (number, now)
        if now - self._lacks[1] < self._record.patience_seconds:
            return None
        return try_next_offer(self._session, self._store, self._record, datetime.now(UTC))


class Ec2Machines:
    """What the node agent may do with the machines of its run. Every request may be repeated."""

    def __init__(
        self, session: AwsSession, store: Store, record: LaunchRecord, instance: str, tell: Callable[[str], None]
    ) -> None:
        self._session = session
        self._store = store
        self._record = record
        self._instance = instance
        self._tell = tell

    def end_run(self, exit_code: int) -> None:
        """After a smoke run: start the run that waits for it if all went well, else remove that run's groups."""
        if self._record.then is None:
            return
        following = read_launch(self._store, self._record.then.run, self._record.then.launch)
        done = following.failed or self._store.exists(started_key(following))  # by another host, or withdrawn
        if done or is_superseded(self._store, following):
            return
        if exit_code == 0:
            self._tell(f"the smoke run ended well: starting {following.run}")
            self._perform(set_size(following.groups[0], following.groups[0].nodes))
            self._store.write(started_key(following), b"{}")
            return
        self._tell(f"the smoke run ended with exit code {exit_code}: {following.run} is not started")
        for call in removal_calls(following):
            self._perform(call)
        mark_failed(self._store, following)

    def count_ended(self) -> None:
        """Count machines that ended before they could record their own cost. A failure is told, not raised."""
        try:
            for name in count_ended(self._session, self._store, self._record):
                self._tell(f"{name} ended before it recorded its cost; it is counted now")
        except (CloudError, StoreError) as error:
            self._tell(f"warning: ended machines could not be counted: {error}")

    def set_desired(self, count: int) -> None:
        """Scale every group to `count`, which is 0: the run is over."""
        assert count == 0, "a node ends its groups; the launch's offers decide how they grow"
        self.count_ended()
        for group in self._record.groups:
            self._perform(set_size(group, 0))

    def lack_nodes(self, ready: int, wanted: int, seconds: float) -> None:
        """Try the next offer if this host has waited for others longer than `cloud.patience`."""
        if seconds < self._record.patience_seconds:
            return
        try:
            told = try_next_offer(self._session, self._store, self._record, datetime.now(UTC))
        except CloudError as error:
            told = f"warning: the next offer could not be tried: {error}"
        if told is not None:
            self._tell(told)

    def delete_groups(self) -> None:
        """Delete templates and groups; a group that is deleted ends its machines, this one too.

        Placement groups are free, and stay until `skytrain gc`: this machine is in one.
        """
        for call in reversed(list(removal_calls(self._record))):
            if call.operation != "DeletePlacementGroup":
                self._perform(call)

    def replace_me(self, reason: str) -> None:
        """Ask for another machine; after too many that were unfit the fault is not theirs, and all groups end."""
        folder = f"{launch_folder(self._record)}/unfit/"
        try:
            self._store.write(f"{folder}{self._instance}.json", json.dumps({"reason": reason}).encode())
            unfit = len(self._store.list(folder))
        except StoreError as error:
            self._tell(f"warning: {error}")
            unfit = 0
        if unfit >= UNFIT_PER_NODE * max(group.nodes for group in self._record.groups):
            self._tell(f"{unfit} machines were unfit, the last one because {reason}: ending all")
            self.set_desired(0)
            return
        self._tell(f"asking for another machine in place of {self._instance}: {reason}")
        self._perform(_terminate(self._instance, shrink=False))

    def terminate_me(self) -> None:
        self._perform(Call("ec2", "TerminateInstances", {"InstanceIds": [self._instance]}))

    def _perform(self, call: Call) -> None:
        remove_quietly(self._session, call, self._tell, LEAVING)


def remove_quietly(session: AwsSession, call: Call, tell: Callable[[str], None], retry: Retry = WAITING) -> bool:
    """Perform a removal; False if it failed, which is told, not raised, so that the next one is tried."""
    try:
        remove(session, call, session.region, retry)
    except Exception as error:  # whatever it is, a node that gives back or a terminal goes on with the next one
        tell(error_text(error))
        return False
    return True


def has_machines(session: AwsSession, record: LaunchRecord) -> bool:
    """Return whether one of the launch's groups has machines, or asks for some."""
    named = {"AutoScalingGroupNames": [group.name for group in record.groups]}
    groups = session.items(Call("autoscaling", "DescribeAutoScalingGroups", named), "AutoScalingGroups", record.region)
    return any(group["DesiredCapacity"] or group["Instances"] for group in groups)


def removal_calls(record: LaunchRecord) -> Iterator[Call]:
    """Yield the requests that remove everything of a launch; machines first, then what describes them."""
    for group in record.groups:
        named = {"AutoScalingGroupName": group.name, "ForceDelete": True}
        yield Call("autoscaling", "DeleteAutoScalingGroup", named)
    for group in record.groups:
        yield Call("ec2", "DeleteLaunchTemplate", {"LaunchTemplateName": group.name})
    for group in record.groups:
        if group.placement_group:
            yield Call("ec2", "DeletePlacementGroup", {"GroupName": group.name})


def _terminate(instance: str, *, shrink: bool) -> Call:
    named = {"InstanceId": instance, "ShouldDecrementDesiredCapacity": shrink}
    return Call("autoscaling", "TerminateInstanceInAutoScalingGroup", named)
