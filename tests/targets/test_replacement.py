"""The bound on machines without a committed step: the shipped decisions, with random faults of machines, AWS and the store."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from botocore import xform_name

from skytrain.aws import Call, CloudError
from skytrain.runs import LaunchedGroup, LaunchRecord
from skytrain.storage import NotFound, Stat, StoreUnreachable
from skytrain.targets.ec2 import machines as rented
from skytrain.targets.ec2.machines import Ec2Machines, LaunchKeeper, Replacer
from skytrain.targets.ec2.replacement import (
    GRANTS,
    HOOK_SECONDS,
    GroupSlot,
    LaunchSlots,
    StartedMachine,
    decide_replacements,
    most_machines,
    read_history,
    read_slots,
    since_proof,
)

SCHEDULES = 1000
OFFERS = 4
MINUTES = 300  # of each: more than twice the longest wait of AWS
BEGAN = datetime(2026, 11, 16, tzinfo=UTC)


@dataclass
class MemoryStore:
    """Objects in memory; a request may fail, or be done without an answer."""

    random: random.Random
    failing: float = 0.0
    objects: dict[str, bytes] = field(default_factory=dict)
    root: str = "memory:"
    meanwhile: Callable[[], None] = lambda: None  # what another process does during a request

    def url(self, key: str) -> str:
        return self.root + key

    def _request(self) -> None:
        if self.random.random() < self.failing:
            raise StoreUnreachable("ask", self.root, "out of reach")

    def write(self, key: str, data: bytes) -> None:
        self._request()
        self.objects[key] = data
        self._request()

    def create(self, key: str, data: bytes) -> bool:
        self._request()
        self.meanwhile()
        if key in self.objects:
            return False
        self.objects[key] = data
        self._request()
        return True

    def read(self, key: str, at_most: int | None = None) -> bytes:
        self._request()
        if key not in self.objects:
            raise NotFound("read", key, "there is none")
        return self.objects[key]

    def exists(self, key: str) -> bool:
        self._request()
        return key in self.objects

    def list(self, prefix: str = "") -> list[Stat]:
        self._request()
        return [Stat(key, 1, "", 0.0) for key in sorted(self.objects) if key.startswith(prefix)]


@dataclass
class SimulatedMachine:
    """A rented machine. `doomed`: it ends before it can do anything."""

    id: str
    group: str
    began: float
    doomed: bool
    proven_at: float | None = None
    alive: bool = True
    waits_until: float = 0.0
    removed: bool = False
    served: Ec2Machines | None = None
    member_since: int | None = None  # the progress when it joined the others


class SimulatedAws:
    """Auto Scaling groups with launch hooks, as AWS documents them, on a clock in minutes."""

    region = "us-east-2"

    def __init__(self, chance: random.Random, nodes: int) -> None:
        self.random = chance
        self.now = 0.0
        self.failing = 0.0
        self.doom = 0.0
        self.room = [99] * OFFERS
        self.desired = {f"g-{number}": nodes * (number == 0) for number in range(OFFERS)}
        self.meanwhile: Callable[[], object] = lambda: None  # what another process does during a request
        self.busy = False
        self.machines: list[SimulatedMachine] = []
        self.starts: list[float] = []

    # What AWS does by itself.

    def tick(self) -> None:
        for machine in self.machines:
            if machine.removed or machine.group not in self.desired:
                continue
            if machine.proven_at is None and self.now >= machine.waits_until:
                self._abandon(machine)
            elif machine.proven_at is not None and not machine.alive:
                machine.removed = True
        for number, (name, wanted) in enumerate(list(self.desired.items())):
            held = [machine for machine in self.machines if machine.group == name and not machine.removed]
            for machine in held[wanted:]:  # a scale-in
                if machine.proven_at is not None or self.random.random() < 0.5:
                    machine.alive, machine.removed = False, True
            for _ in range(min(wanted - len(held), self.room[number])):
                self._start(name)

    def _start(self, group: str) -> None:
        name = f"i-{len(self.machines):017x}"
        doomed = self.random.random() < self.doom
        wait = self.now + HOOK_SECONDS / 60
        self.machines.append(SimulatedMachine(name, group, self.now, doomed, waits_until=wait))
        self.starts.append(self.now)

    def _abandon(self, machine: SimulatedMachine) -> None:
        machine.alive, machine.removed = False, True

    def interlope(self, chance: float) -> None:
        """Let another process act now, unless this is what it does."""
        if not self.busy and self.random.random() < chance:
            self.busy = True
            with_errors(self.meanwhile)
            self.busy = False

    # Its API.

    def items(self, call: Call, key: str, region: str | None = None) -> Iterator[Any]:
        yield from self.perform(call, region)[key]

    def perform(self, call: Call, region: str | None = None) -> dict[str, Any]:
        if self.random.random() < self.failing:
            raise CloudError("out of reach", fix="wait")
        self.interlope(0.05)
        answer: dict[str, Any] = getattr(self, xform_name(call.operation))(call.parameters)
        if self.random.random() < self.failing:  # it is done, and the answer lost
            raise CloudError("out of reach", fix="wait")
        return answer

    def describe_auto_scaling_groups(self, asked: Any) -> dict[str, Any]:
        return {
            "AutoScalingGroups": [
                {"DesiredCapacity": self.desired[name], "Instances": [self._member(one) for one in self._held(name)]}
                for name in asked["AutoScalingGroupNames"]
                if name in self.desired
            ]
        }

    def _held(self, group: str) -> list[SimulatedMachine]:
        return [machine for machine in self.machines if machine.group == group and not machine.removed]

    def _member(self, machine: SimulatedMachine) -> dict[str, Any]:
        state = "Pending:Wait" if machine.proven_at is None else "InService"
        return {"InstanceId": machine.id, "LifecycleState": state, "AutoScalingGroupName": machine.group}

    def describe_auto_scaling_instances(self, asked: Any) -> dict[str, Any]:
        held = [one for one in self.machines if one.id in asked["InstanceIds"] and not one.removed]
        return {"AutoScalingInstances": [self._member(one) for one in held]}

    def describe_instances(self, asked: Any) -> dict[str, Any]:
        groups = asked["Filters"][0]["Values"]
        shown = [
            {
                "InstanceId": one.id,
                "State": {"Name": "running" if one.alive else "terminated"},
                "LaunchTime": BEGAN + timedelta(minutes=one.began),
            }
            for one in self.machines
            # EC2 forgets an ended instance after an hour, and learns of a new one late.
            if one.group in groups and (one.alive or self.now - one.began < 60) and self.random.random() > 0.1
        ]
        return {"Reservations": [{"Instances": shown}]}

    def describe_scaling_activities(self, asked: Any) -> dict[str, Any]:
        return {"Activities": list(self.activities(asked["AutoScalingGroupName"]))}

    def activities(self, group: str) -> Iterator[dict[str, Any]]:
        for one in self.machines:
            if one.group == group:
                done = {} if one.proven_at is None else {"EndTime": BEGAN + timedelta(minutes=one.proven_at)}
                yield {
                    "Description": f"Launching a new EC2 instance: {one.id}",
                    "StartTime": BEGAN + timedelta(minutes=one.began),
                    "StatusCode": "MidLifecycleAction" if one.proven_at is None else "Successful",
                    **done,
                }

    def complete_lifecycle_action(self, asked: Any) -> dict[str, Any]:
        [machine] = [one for one in self.machines if one.id == asked["InstanceId"]]
        if machine.removed or machine.proven_at is not None:
            raise CloudError("No active Lifecycle Action found", fix="none", code="ValidationError")
        if asked["LifecycleActionResult"] == "CONTINUE":
            machine.proven_at = self.now
        else:
            self._abandon(machine)
        return {}

    def record_lifecycle_action_heartbeat(self, asked: Any) -> dict[str, Any]:
        [machine] = [one for one in self.machines if one.id == asked["InstanceId"]]
        machine.waits_until = self.now + HOOK_SECONDS / 60
        return {}

    def set_desired_capacity(self, asked: Any) -> dict[str, Any]:
        if asked["AutoScalingGroupName"] in self.desired:
            self.desired[asked["AutoScalingGroupName"]] = asked["DesiredCapacity"]
        return {}

    def terminate_instance_in_auto_scaling_group(self, asked: Any) -> dict[str, Any]:
        [machine] = [one for one in self.machines if one.id == asked["InstanceId"]]
        machine.alive, machine.removed = False, True
        return {}

    def delete_auto_scaling_group(self, asked: Any) -> dict[str, Any]:
        for machine in self._held(asked["AutoScalingGroupName"]):
            machine.alive, machine.removed = False, True
        self.desired.pop(asked["AutoScalingGroupName"], None)
        return {}

    def delete_launch_template(self, asked: Any) -> dict[str, Any]:
        return {}

    def get_console_output(self, asked: Any) -> dict[str, Any]:
        return {"Output": ""}


@dataclass
class Schedule:
    """One launch with random faults, minute by minute: the shipped code of the nodes and of the terminal acts on it."""

    seed: int

    def __post_init__(self) -> None:
        chance = self.random = random.Random(self.seed)
        self.nodes = chance.choice([1, 2, 2, 4])
        self.aws = SimulatedAws(chance, self.nodes)
        self.store = MemoryStore(chance)
        groups = [
            LaunchedGroup(
                name=f"g-{number}",
                zone="a",
                instance_type="p5.48xlarge",
                market="spot",
                nodes=self.nodes,
                usd_per_hour=1.0,
                kill_at="",
                placement_group=False,
            )
            for number in range(OFFERS)
        ]
        self.record = LaunchRecord(
            id="00001",
            run="run",
            verb="train",
            launched_at=BEGAN.isoformat(),
            launched_by="ada",
            account="",
            region="",
            patience_seconds=0.0,
            plan_hash="",
            image="",
            bundle="",
            words=[],
            groups=groups,
        )
        self.keeper = LaunchKeeper(self.aws, self.store, self.record)  # type: ignore[arg-type]
        colleague = Replacer(self.aws, self.store, self.record, lambda _: None)  # type: ignore[arg-type]
        self.aws.meanwhile = lambda: None if self.over else colleague()
        self.store.meanwhile = lambda: self.aws.interlope(0.3)
        self.progress = 0
        self.commits = [-1.0]
        self.over = False

    def run(self) -> None:
        chance, aws = self.random, self.aws
        for minute in range(MINUTES):
            aws.now = float(minute)
            if minute % 20 == 0:  # the weather changes
                aws.doom = chance.choice([0.0, 0.0, 0.3, 1.0])
                aws.failing = chance.choice([0.0, 0.0, 0.2, 0.7, 1.0])
                self.store.failing = chance.choice([0.0, 0.0, 0.2, 1.0])
                aws.room = [chance.choice([99, 99, 1, 0]) for _ in range(OFFERS)]
                self.losses = chance.choice([0.0, 0.0, 0.02, 0.3])
                self.follows = chance.random() < 0.6
                self.trains = chance.random() < 0.6
            aws.tick()
            self._machines()
            if self.follows and not self.over:
                with_errors(self.keeper)
            self._check()

    def _machines(self) -> None:
        chance, aws = self.random, self.aws
        for machine in aws.machines:
            if machine.alive and (chance.random() < self.losses or machine.doomed):
                machine.alive = False
            if machine.alive and machine.served is None:
                machine.served = Ec2Machines(aws, self.store, self.record, machine.id, lambda _: None)  # type: ignore[arg-type]
        here = [machine for machine in aws.machines if machine.alive and not machine.removed]
        nodes = here[: self.nodes] if len(here) >= self.nodes else []
        for machine in here:
            assert machine.served is not None
            if chance.random() < 0.01:
                machine.served.replace_me("unfit")
            if int(aws.now) % 30 == 0:
                with_errors(machine.served.keep_waiting)
            machine.member_since = machine.member_since if machine in nodes else None
            if machine in nodes and machine.member_since is None:
                machine.member_since = self.progress
        if nodes and self.trains and chance.random() < 0.3 and not self.over:
            self.progress += 1
            self.commits.append(aws.now)
        for machine in nodes:
            if machine.member_since is not None and self.progress > machine.member_since and machine.served is not None:
                with_errors(lambda served=machine.served: served.prove(self.progress))
        if here and not nodes and here[0].served is not None and not self.over:
            self.over = here[0].served.lack_nodes(len(here), self.nodes, 1.0) is not None
        if self.over and here and here[0].served is not None:
            here[0].served.set_desired(0)

    def _check(self) -> None:
        """No more than K machines start within two hours without a commit."""
        since = max(self.commits[-1], self.aws.now - HOOK_SECONDS / 60)
        started = sum(start > since for start in self.aws.starts)
        assert started <= most_machines(self.nodes), f"seed {self.seed}: {started} at minute {self.aws.now}"


def with_errors(work: Any) -> None:
    """Do what may fail: the agent and the terminal tell it, and try again later."""
    with contextlib.suppress(CloudError, StoreUnreachable):
        work()


def test_a_thousand_random_fault_schedules_never_start_more_machines_than_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rented, "OFFER_SECONDS", 0.0)
    monkeypatch.setattr(rented, "remove", lambda session, call, region, retry: session.perform(call))
    next_day = SimpleNamespace(now=lambda zone: BEGAN + timedelta(days=1), fromisoformat=datetime.fromisoformat)
    monkeypatch.setattr(rented, "datetime", next_day)
    worst, grants = 0.0, 0
    for seed in range(SCHEDULES):
        schedule = Schedule(seed)
        schedule.run()
        worst = max(worst, len(schedule.aws.starts) / schedule.nodes)
        grants += sum("/grants/" in key for key in schedule.store.objects)
    assert worst > 3 and grants > SCHEDULES / 2  # the schedules are rough, and grants are made


def slot(name: str, *, proven: bool = False, dead: bool = False) -> GroupSlot:
    return GroupSlot(name, proven, dead)


def test_only_dead_machines_without_proof_are_granted_and_three_of_them() -> None:
    slots = (slot("a", dead=True), slot("b", proven=True, dead=True), slot("c"), slot("d", dead=True))
    decided = decide_replacements(LaunchSlots(4, slots, 4))
    assert [(grant.instance, grant.number) for grant in decided.grants] == [("a", 0), ("d", 1)]
    assert not decided.exhausted
    later = decide_replacements(LaunchSlots(4, slots, 6, granted=("x", "y")))
    assert [grant.instance for grant in later.grants] == ["a"] and later.exhausted
    again = decide_replacements(LaunchSlots(4, slots, 4, granted=("a", "d")))
    assert (again.again, again.grants) == (("a", "d"), ())


def test_no_machine_is_granted_when_aws_has_started_as_many_as_may_start() -> None:
    slots = tuple(slot(name, dead=True) for name in "ab")
    for started, grants in ((5, 2), (6, 1), (7, 0), (9, 0)):
        assert len(decide_replacements(LaunchSlots(2, slots, started)).grants) == grants
    assert GRANTS == 3 and most_machines(2) == 7


def test_a_machine_that_ec2_does_not_know_is_dead_at_the_second_look() -> None:
    members = [{"InstanceId": "i-1", "LifecycleState": "Pending:Wait"}]
    assert not read_slots(members, {})[0].dead
    assert read_slots(members, {}, frozenset({"i-1"}))[0].dead
    assert not read_slots(members, {"i-1": "running"}, frozenset({"i-1"}))[0].dead


def test_a_machine_that_ec2_has_stopped_is_dead() -> None:
    members = [{"InstanceId": f"i-{number}", "LifecycleState": "Pending:Wait"} for number in range(3)]
    slots = read_slots(members, {"i-0": "running", "i-1": "stopped", "i-2": "stopping"})
    assert [slot.dead for slot in slots] == [False, True, True]


def test_machines_are_counted_since_the_last_proof() -> None:
    def at(minutes: int) -> datetime:
        return BEGAN + timedelta(minutes=minutes)

    activities = [
        {"Description": "Launching a new EC2 instance: i-1", "StatusCode": "Successful", "StartTime": at(0), "EndTime": at(20)},
        {"Description": "Launching a new EC2 instance: i-2", "StatusCode": "Cancelled", "StartTime": at(1), "EndTime": at(130)},
        {"Description": "Terminating EC2 instance: i-2", "StatusCode": "Successful", "StartTime": at(130), "EndTime": at(131)},
        {"Description": "Launching a new EC2 instance. Status Reason: no capacity", "StatusCode": "Failed", "StartTime": at(131)},
        {"Description": "Launching a new EC2 instance: i-3", "StatusCode": "MidLifecycleAction", "StartTime": at(132)},
    ]  # fmt: skip
    assert since_proof(read_history(activities)) == [StartedMachine("i-3", at(132))]
    assert json.dumps([one.instance for one in read_history(activities)]) == '["i-1", "i-2", "i-3"]'
