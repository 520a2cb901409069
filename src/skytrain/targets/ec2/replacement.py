"""How many machines a launch may start without progress: the rule, as pure functions of what AWS and the store say.

Every group has a launch hook. A new machine waits in `Pending:Wait`, where Auto Scaling neither checks its health nor
replaces it, until it has *proved* itself: it was a member of a generation that committed a step, and its agent completes
the hook. Only a proven machine that vanishes is replaced by AWS, and its replacement has to prove itself again.

A machine that ends unproven keeps its place in the group, at no cost. A live node that lacks it, or the terminal that
follows the run, may abandon its hook, so that AWS starts one other: a *grant*. There are `GRANTS` of them until the next
proof. So a launch of n nodes starts at most n machines, n that replace proven ones, and `GRANTS`, without a committed
step in between: `most_machines`. AWS itself abandons the hook of a dead machine after `HOOK_SECONDS`, the longest that it
allows; each machine that boots, and everyone who grants, therefore counts what AWS has started, too.

`docs/launch.md` has the argument, `tests/targets/test_replacement.py` explores this code with random faults.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

HOOK = "skytrain-proof"
HOOK_SECONDS = 7200  # the longest that Auto Scaling allows without a heartbeat
GRANTS = 3  # replacements of unproven machines until the next proof
UNPROVEN = "Pending"  # how the lifecycle states of machines that are not proven begin
# EC2 stops machines of failing hardware; one that waits for its proof would keep its place, and nobody starts it again.
DEAD = frozenset({"shutting-down", "terminated", "stopping", "stopped"})
LAUNCHING = re.compile(r"Launching a new EC2 instance: (i-\w+)")


def most_machines(nodes: int) -> int:
    """Return how many machines of a launch may start without a committed step in between."""
    return 2 * nodes + GRANTS


@dataclass(frozen=True)
class StartedMachine:
    """A machine that a group has started, by the group's activity history."""

    instance: str
    at: datetime
    proven_at: datetime | None = None


@dataclass(frozen=True)
class GroupSlot:
    """A machine that holds one of the group's places."""

    instance: str
    proven: bool
    dead: bool


@dataclass(frozen=True)
class LaunchSlots:
    """What AWS and the store say about the machines of a launch."""

    nodes: int
    slots: tuple[GroupSlot, ...]
    started: int  # machines since the last proof
    granted: tuple[str, ...] = ()  # unproven machines that were replaced since the last proof

    @property
    def unproven_dead(self) -> tuple[str, ...]:
        return tuple(slot.instance for slot in self.slots if slot.dead and not slot.proven)

    @property
    def all_dead(self) -> bool:
        """Whether machines hold all places of the group, and none of them lives."""
        return len(self.slots) >= self.nodes and all(slot.dead for slot in self.slots)


@dataclass(frozen=True)
class Grant:
    """The decision to let AWS start another machine in place of a dead one. Grants are numbered from 0."""

    instance: str
    number: int


@dataclass(frozen=True)
class Replacements:
    """What is to be done about the dead machines of a launch."""

    again: tuple[str, ...] = ()  # granted before; the request to AWS may have been lost
    grants: tuple[Grant, ...] = ()
    exhausted: bool = False  # a dead machine is left that may not be replaced

    @property
    def hopeless(self) -> bool:
        """Whether machines are lacking, and none will come."""
        return self.exhausted and not self.grants and not self.again


def decide_replacements(view: LaunchSlots) -> Replacements:
    """Decide which dead machines are replaced, within the grants and the machines that are left."""
    again = tuple(instance for instance in view.unproven_dead if instance in view.granted)
    dead = [instance for instance in view.unproven_dead if instance not in view.granted]
    # What was granted or asked for and has not started yet counts as started.
    coming = len(again) + max(0, view.nodes - len(view.slots))
    left = min(GRANTS - len(view.granted), most_machines(view.nodes) - view.started - coming)
    allowed = dead[: max(0, left)]
    grants = tuple(Grant(instance, len(view.granted) + number) for number, instance in enumerate(allowed))
    return Replacements(again, grants, exhausted=len(allowed) < len(dead))


def may_try_offer(nodes: int, started: int) -> bool:
    """Return whether the machines of another offer may start."""
    return started + nodes <= most_machines(nodes)


def since_proof(machines: Iterable[StartedMachine]) -> list[StartedMachine]:
    """Return the machines that were started after the last proof."""
    machines = list(machines)
    proofs = [machine.proven_at for machine in machines if machine.proven_at is not None]
    return [machine for machine in machines if not proofs or machine.at > max(proofs)]


def read_history(activities: Iterable[Mapping[str, Any]]) -> list[StartedMachine]:
    """Return the machines of DescribeScalingActivities. A launch is successful when its hook was completed."""
    found = []
    for activity in activities:
        if launched := LAUNCHING.search(activity.get("Description", "")):
            proven = activity["EndTime"] if activity["StatusCode"] == "Successful" else None
            found.append(StartedMachine(launched[1], activity["StartTime"], proven))
    return found


def read_slots(
    members: Sequence[Mapping[str, Any]], states: Mapping[str, str], missing_before: frozenset[str] = frozenset()
) -> tuple[GroupSlot, ...]:
    """Return the places of a group, from its instances and EC2's states of them.

    EC2 does not know an instance that has just started, nor one that ended an hour ago: one that it did not know at the
    former look either is dead.
    """
    slots = []
    for member in members:
        name = member["InstanceId"]
        dead = states[name] in DEAD if name in states else name in missing_before
        slots.append(GroupSlot(name, not member["LifecycleState"].startswith(UNPROVEN), dead))
    return tuple(slots)
