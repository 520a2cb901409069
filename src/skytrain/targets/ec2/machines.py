"""The Auto Scaling groups of a launch: how a node or a terminal grows them, ends them and counts what they cost.

A machine that was lost before it proved itself is replaced only by a live node or by the terminal that follows the run,
within the limits of `replacement.py`. The grants are objects in the store, created only if they do not exist.

No capacity: after a while without machines, the launch's next offer is tried, by whoever is awake. Which offer is
current is an object in the store, created only if it does not exist, so that a terminal and a node never try
different ones.

Cost: a machine is billed from its launch, for a minute at least, and writes its first record when it has booted. One
that never writes, or that ends after its last record, is counted by the times that EC2 has. It describes an ended
instance for about an hour, with its launch time and, where it knows it, the time of its end. Of a machine that nobody
asked about within that hour, only the start is known, from Auto Scaling's history: it is counted as a minute.
"""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from ...aws import WAITING, AwsSession, Call, CloudError, remove
from ...config import error_text
from ...runs import (
    HostSpends,
    LaunchedGroup,
    LaunchRecord,
    billed_machines,
    current_offer,
    end_launch,
    following_launches,
    largest_counts,
    launch_folder,
    mark_withdrawn,
    may_grow,
    offer_key,
    preceding_launches,
    started_key,
    write_billed,
)
from ...storage import Retry, Store, StoreError, is_text, read_object
from .history import (
    GROUP_TAG,
    described,
    ended_at,
    group_history,
    started_machines,
    why_ended,
    why_not_started,
)
from .replacement import (
    DEAD,
    HOOK,
    HOOK_SECONDS,
    UNPROVEN,
    Grant,
    LaunchSlots,
    Replacements,
    decide_replacements,
    may_try_offer,
    read_slots,
)

OFFER_SECONDS = 60.0  # between two looks at an offer that lacks machines
LEAVING = Retry(seconds=20.0, first_wait_seconds=2.0, longest_wait_seconds=5.0)  # of a node, which costs money
NO_ACTION = "No active Lifecycle Action"  # AWS's answer for a machine that does not wait for its proof
PROVEN = re.compile(r"/proven/(\d+)-")
TERMINATED = frozenset({"shutting-down", "terminated"})
BILLED_SECONDS = 60.0  # of every machine at least
FORGOTTEN_SECONDS = 3600.0  # after which EC2 may not describe an ended instance any more


def machines_in(session: AwsSession, group: LaunchedGroup) -> int:
    """Return how many machines of the group exist, booting or running."""
    call = Call("autoscaling", "DescribeAutoScalingGroups", {"AutoScalingGroupNames": [group.name]})
    return sum(len(one["Instances"]) for one in session.items(call, "AutoScalingGroups"))


def try_next_offer(session: AwsSession, store: Store, record: LaunchRecord, now: datetime) -> str | None:
    """Switch to the next offer if the current one has not given all its machines for too long, and say so.

    A switch that was cut off is completed by the next call: the sizes of groups follow from the current offer.
    """
    if not may_grow(store, record):
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
    if not may_try_offer(following.nodes, len(started_machines(session, record))):
        return None
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


class Replacer:
    """Lets AWS replace the launch's dead machines that had not proved themselves, as far as `decide_replacements` allows.

    Every request may be repeated, and several processes may act at the same time.
    """

    def __init__(self, session: AwsSession, store: Store, record: LaunchRecord, tell: Callable[[str], None]) -> None:
        self._session = session
        self._store = store
        self._record = record
        self._tell = tell
        self._missing: frozenset[str] = frozenset()  # machines that EC2 did not know at the last look

    def __call__(self) -> tuple[LaunchSlots, Replacements]:
        """Look, replace what may be replaced, and return both. Raises CloudError and StoreError."""
        number, _ = current_offer(self._store, self._record)
        group = self._record.groups[number]
        if not may_grow(self._store, self._record):
            return LaunchSlots(group.nodes, (), 0), Replacements()
        view = self.look(group)
        decided = decide_replacements(view)
        for instance in decided.again:
            self._abandon(group, instance)
        for grant in decided.grants:
            self._grant(group, grant)
        return view, decided

    def look(self, group: LaunchedGroup) -> LaunchSlots:
        """Return the places of a group, and the grants so far; a group that is at zero has none."""
        named = Call("autoscaling", "DescribeAutoScalingGroups", {"AutoScalingGroupNames": [group.name]})
        found = next(iter(self._session.items(named, "AutoScalingGroups")), None)
        if found is None or not found["DesiredCapacity"]:
            return LaunchSlots(group.nodes, (), 0)
        states = {one["InstanceId"]: one["State"]["Name"] for one in described(self._session, [group.name])}
        slots = read_slots(found["Instances"], states, self._missing)
        self._missing = frozenset(slot.instance for slot in slots) - states.keys()
        return LaunchSlots(
            nodes=group.nodes,
            slots=slots,
            started=len(started_machines(self._session, self._record)),
            granted=tuple(self._grants().values()),
        )

    def replace_unfit(self, group: LaunchedGroup, instance: str) -> bool:
        """Replace a machine that lives, has not proved itself, and is unfit; False if no grant is left."""
        view = self.look(group)
        slots = tuple(replace(slot, dead=slot.dead or slot.instance == instance) for slot in view.slots)
        decided = decide_replacements(replace(view, slots=slots))
        if instance in decided.again:
            return self._abandon(group, instance)
        grant = next((one for one in decided.grants if one.instance == instance), None)
        # Another dead machine may come first: this one then takes the first number that is free.
        return grant is not None and self._grant(group, replace(grant, number=len(view.granted)))

    def _grants(self) -> dict[str, str]:
        """Return the machines that were replaced since the last proof, by the keys of their grants."""
        keys = [stat.key for stat in self._store.list(self._folder())]
        return {key: str(read_object(self._store, key, {"instance": is_text})["instance"]) for key in keys}

    def _folder(self) -> str:
        proofs = [stat.key for stat in self._store.list(f"{launch_folder(self._record)}/proven/")]
        progress = max((int(found[1]) for key in proofs if (found := PROVEN.search(key))), default=0)
        return f"{launch_folder(self._record)}/grants/{progress:012d}/"

    def _grant(self, group: LaunchedGroup, grant: Grant) -> bool:
        body = {"instance": grant.instance, "at": datetime.now(UTC).isoformat(timespec="seconds")}
        if not self._store.create(f"{self._folder()}{grant.number}.json", json.dumps(body).encode()):
            return False  # somebody else took this number: the next look shows for which machine
        self._tell(f"asking AWS for another machine in place of {grant.instance}, which came to no committed step")
        return self._abandon(group, grant.instance)

    def _abandon(self, group: LaunchedGroup, instance: str) -> bool:
        complete_hook(self._session, group.name, instance, "ABANDON")
        return True


def complete_hook(session: AwsSession, group: str, instance: str, result: str) -> None:
    """End a machine's wait for its proof; one that does not wait any more is left as it is."""
    named = {"LifecycleHookName": HOOK, "AutoScalingGroupName": group, "InstanceId": instance}
    try:
        session.perform(Call("autoscaling", "CompleteLifecycleAction", {**named, "LifecycleActionResult": result}))
    except CloudError as error:
        if NO_ACTION not in error.problem:
            raise


class LaunchKeeper:
    """What the terminal does that launched the run and follows it: it replaces dead machines, and tries the next offer.

    The offer is tried when the current one has lacked machines for `cloud.patience`, as seen from here: a machine that
    was lost and is being replaced after hours of training does not mean a lack of capacity. When all machines are dead
    and none may be replaced, the launch is ended, with the cause.
    """

    def __init__(self, session: AwsSession, store: Store, record: LaunchRecord) -> None:
        self._session = session
        self._store = store
        self._record = record
        self._due = 0.0
        self._lacks: tuple[int, float] | None = None  # which offer, and since when
        self._said: list[str] = []
        self._replacer = Replacer(session, store, record, self._said.append)

    def __call__(self) -> str | None:
        """Look once a minute, and return what was done."""
        now = time.monotonic()
        if now < self._due:
            return None
        self._due = now + OFFER_SECONDS
        self._said.clear()
        view, decided = self._replacer()
        if decided.hopeless and view.all_dead:
            return self._end(view)
        if offer := self._try_offer(now):
            self._said.append(offer)
        return "\n".join(self._said) or None

    def _end(self, view: LaunchSlots) -> str:
        why = why_ended(self._session, self._store, self._record) or "all machines ended"
        end_launch(self._store, self._record, why)
        for call in removal_calls(self._record):
            remove_quietly(self._session, call, self._said.append)
        return f"{view.started} machines have started without a committed step, and no more are asked for: {why}"

    def _try_offer(self, now: float) -> str | None:
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
        self._replacer = Replacer(session, store, record, tell)

    def keep_waiting(self) -> bool:
        """Let AWS wait on for this machine's proof; False if it does not wait: the machine is proven."""
        group, state = self._place()
        if group is None or not state.startswith(UNPROVEN):
            return False
        named = {"LifecycleHookName": HOOK, "AutoScalingGroupName": group.name, "InstanceId": self._instance}
        try:
            self._session.perform(Call("autoscaling", "RecordLifecycleActionHeartbeat", named))
        except CloudError as error:
            if NO_ACTION not in error.problem:
                raise
            return False
        return True

    def prove(self, progress: int) -> None:
        """Complete this machine's hook: it has taken part in a committed step, and AWS replaces it from now on."""
        group, _ = self._place()
        if group is not None:
            complete_hook(self._session, group.name, self._instance, "CONTINUE")
            self._store.write(f"{launch_folder(self._record)}/proven/{progress:012d}-{self._instance}.json", b"{}")

    def _place(self) -> tuple[LaunchedGroup | None, str]:
        """Return this machine's group and its state in it; None if it has none of the launch."""
        asked = Call("autoscaling", "DescribeAutoScalingInstances", {"InstanceIds": [self._instance]})
        for found in self._session.perform(asked).get("AutoScalingInstances", []):
            for group in self._record.groups:
                if group.name == found["AutoScalingGroupName"]:
                    return group, str(found["LifecycleState"])
        return None, ""

    def end_run(self, exit_code: int) -> bool:
        """Start the launch that waits for this one if all went well, else remove the groups of all that wait.

        False if the launch could not be started, and must be asked for again.
        """
        waiting = following_launches(self._store, self._record)
        if not waiting:
            return True
        following = waiting[0]
        if self._store.exists(started_key(following)):  # by another host
            return True
        if exit_code == 0:
            return self._start(following)
        if not may_grow(self._store, following):  # withdrawn, or superseded
            return True
        for each in waiting:
            self._tell(f"{self._record.run} ended with exit code {exit_code}: {each.run} is not started")
            for call in removal_calls(each):
                self._perform(call)
            mark_withdrawn(self._store, each)
        return True

    def _start(self, following: LaunchRecord) -> bool:
        """Ask for the machines of a launch that waited; False if it must be asked for again.

        People may stop it in the same moment. Who withdraws it then sets its groups to zero, and so does this host if it
        sees that: whichever comes last, no machine is left.
        """
        if may_grow(self._store, following):
            self._tell(f"{self._record.run} ended well: starting {following.run}")
            if not self._perform(set_size(following.groups[0], following.groups[0].nodes)):
                return False
        if not may_grow(self._store, following):
            self._tell(f"{following.run} was stopped: it is not started")
            done = [self._perform(set_size(group, 0)) for group in following.groups]
            return all(done)
        self._store.write(started_key(following), b"{}")
        return True

    def count_ended(self) -> None:
        """Count machines that ended before they could record their own cost. A failure is told, not raised."""
        try:
            for record in (self._record, *preceding_launches(self._store, self._record)[:1]):
                for name in count_machines(self._session, self._store, record):
                    self._tell(f"{name} ended with more time than it had recorded; it is counted now")
        except (CloudError, StoreError) as error:
            self._tell(f"warning: ended machines could not be counted: {error}")

    def set_desired(self, count: int) -> bool:
        """Scale every group to `count`, which is 0: the run is over. False if a request failed, and must be repeated."""
        assert count == 0, "a node ends its groups; the launch's offers decide how they grow"
        done = [self._perform(set_size(group, 0)) for group in self._record.groups]
        return all(done)

    def lack_nodes(self, ready: int, wanted: int, seconds: float) -> str | None:
        """Replace dead machines, or try the next offer after `cloud.patience`; return why the run cannot go on."""
        try:
            view, decided = self._replacer()
            if decided.grants:
                self.count_ended()  # EC2 forgets an ended machine after an hour
            if decided.hopeless:
                why = why_ended(self._session, self._store, self._record, console=False) or "they ended"
                reason = f"{view.started} machines have started since the last committed step: {why}"
                end_launch(self._store, self._record, reason)
                return reason
            if seconds >= self._record.patience_seconds:
                told = try_next_offer(self._session, self._store, self._record, datetime.now(UTC))
                if told is not None:
                    self._tell(told)
        except (CloudError, StoreError) as error:
            self._tell(f"warning: lost machines could not be replaced, nor the next offer tried: {error}")
        return None

    def delete_groups(self) -> None:
        """Delete templates and groups; a group that is deleted ends its machines, this one too.

        Placement groups are free, and stay until `skytrain gc`: this machine is in one.
        """
        for call in reversed(list(removal_calls(self._record))):
            if call.operation != "DeletePlacementGroup":
                self._perform(call)

    def replace_me(self, reason: str) -> None:
        """Ask for another machine: AWS replaces a proven one, and a grant one that is not. The reason is recorded."""
        folder = f"{launch_folder(self._record)}/unfit/"
        try:
            self._store.write(f"{folder}{self._instance}.json", json.dumps({"reason": reason}).encode())
        except StoreError as error:
            self._tell(f"warning: {error}")
        try:
            group, state = self._place()
            if group is None:
                return
            if not state.startswith(UNPROVEN):
                self._tell(f"asking for another machine in place of {self._instance}: {reason}")
                self._perform(_terminate(self._instance, shrink=False))
            elif not self._replacer.replace_unfit(group, self._instance):
                self._tell(f"{self._instance} is not replaced, because too many machines were: {reason}")
        except (CloudError, StoreError) as error:
            self._tell(f"warning: {self._instance} is not replaced: {error}")

    def terminate_me(self) -> None:
        """End this machine, after those that could not record their own cost were counted."""
        self.count_ended()
        self._perform(Call("ec2", "TerminateInstances", {"InstanceIds": [self._instance]}))

    def _perform(self, call: Call) -> bool:
        return remove_quietly(self._session, call, self._tell, LEAVING)


def remove_quietly(session: AwsSession, call: Call, tell: Callable[[str], None], retry: Retry = WAITING) -> bool:
    """Perform a removal; False if it failed, which is told, not raised, so that the next one is tried."""
    try:
        remove(session, call, session.region, retry)
    except Exception as error:  # whatever it is, a node that gives back or a terminal goes on with the next one
        tell(error_text(error))
        return False
    return True


def trouble(session: AwsSession, store: Store, record: LaunchRecord) -> str | None:
    """Return in one line what keeps the machines of a launch from working; None if nothing does."""
    number, _ = current_offer(store, record)
    group = record.groups[number]
    view = Replacer(session, store, record, lambda _: None).look(group)
    if not view.unproven_dead:
        lacks = len(view.slots) < view.nodes
        return why_not_started(session, group.name, record.region) if lacks else None
    why = why_ended(session, store, record)
    if why is None or not view.all_dead:
        return why
    command = f"skytrain stop {shlex.quote(record.run)} cloud=ec2"
    tries = f"AWS tries again {HOOK_SECONDS // 3600} hours after each end, until the kill time"
    return (
        f"{why}\n  no machine runs, and nothing is charged; {tries}\n  try again now: {command}; then the same launch"
    )


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
