"""Auto Scaling's machine lifecycle on top of moto, which has none: launch hooks, health checks, activity history.

As AWS documents it: with a launch hook a new instance is `Pending:Wait` until somebody completes its action or the hook
times out. Health is checked, and an ended instance replaced, only when it is `InService`. CONTINUE puts it into service,
ABANDON terminates it, and the group then asks for what it lacks. A launch is `Successful` in the activity history when the
instance is in service. Deleting a group by force ends its instances and outstanding actions. What AWS does not document is
whether a scale-in ends an instance that waits: `scale_in_waits` chooses.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from moto.autoscaling.exceptions import ValidationError
from moto.autoscaling.models import AutoScalingBackend, FakeAutoScalingGroup, TerminateInstanceActivity
from moto.autoscaling.responses import AutoScalingResponse
from moto.core.responses import ActionResult, EmptyResult
from moto.ec2.responses.general import General
from moto.ec2.utils import Base64EncodedString

WAITING = "Pending:Wait"
LONGEST_SECONDS = 48 * 3600.0
PAGE = 100  # activities in an answer, at most
Patch = tuple[Any, str, Any]


@dataclass
class Wait:
    """An instance that waits for the end of its lifecycle action."""

    group: Any
    until: float
    longest: float
    seconds: float
    result: str


@dataclass
class ScalingStandIn:
    """What Auto Scaling knows besides moto's groups. `patches` put it into moto."""

    clock: Callable[[], float] = time.time
    console: Callable[[str], str] = lambda instance: ""
    room: Callable[[str], int] = lambda zone: 1_000_000  # instances that a zone can still start
    scale_in_waits: bool = False  # whether instances that wait survive a scale-in until their hook ends
    waits: dict[str, Wait] = field(default_factory=dict)
    activities: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # by group, the newest last

    def tick(self) -> None:
        """Let hooks time out, and let groups replace what they lack."""
        for instance, wait in list(self.waits.items()):
            if self.clock() >= min(wait.until, wait.longest):
                self._finish(instance, wait.result)

    def fill(self, group: Any) -> None:
        """Start what the group lacks, or end what it has too much; ended instances that wait keep their places."""
        wanted = group.desired_capacity or 0
        lacking = wanted - len(group.instance_states)
        if lacking > 0:
            count = min(lacking, self.room(group.availability_zones[0]))
            if count:
                self._launch(group, count)
        elif lacking < 0:
            going = [
                each for each in group.instance_states if not self.scale_in_waits or each.lifecycle_state != WAITING
            ]
            for each in going[:-lacking]:
                self._remove(group, each)

    def _launch(self, group: Any, count: int) -> None:
        before = len(group.instance_states)
        group.replace_autoscaling_group_instances(count, group.get_propagated_tags())
        backend = group.autoscaling_backend
        hooks = [hook for hook in backend.lifecycle_hooks.values() if hook.auto_scaling_group_name == group.name]
        now = self.clock()
        for each in group.instance_states[before:]:
            activity = {
                "ActivityId": str(uuid.uuid4()),
                "AutoScalingGroupName": group.name,
                "Description": f"Launching a new EC2 instance: {each.instance.id}",
                "Cause": "a difference between desired and actual capacity",
                "StartTime": datetime.fromtimestamp(now, UTC),
                "StatusCode": "MidLifecycleAction" if hooks else "Successful",
                "Progress": 50,
                "instance": each.instance.id,
            }
            if not hooks:
                activity["EndTime"] = activity["StartTime"]
            self.activities.setdefault(group.name, []).append(activity)
            for hook in hooks:
                each.lifecycle_state = WAITING
                seconds = float(hook.heartbeat_timeout)
                longest = now + min(LONGEST_SECONDS, 100 * seconds)
                self.waits[each.instance.id] = Wait(
                    group=group, until=now + seconds, longest=longest, seconds=seconds, result=hook.default_result
                )

    def _remove(self, group: Any, state: Any) -> None:
        self.waits.pop(state.instance.id, None)
        group.instance_states = [each for each in group.instance_states if each is not state]
        if state.instance.state != "terminated":
            group.autoscaling_backend.ec2_backend.terminate_instances([state.instance.id])

    def _finish(self, instance: str, result: str) -> None:
        wait = self.waits.pop(instance)
        group = wait.group
        [state] = [each for each in group.instance_states if each.instance.id == instance]
        for activity in self.activities[group.name]:
            if activity["instance"] == instance:
                activity["StatusCode"] = "Successful" if result == "CONTINUE" else "Cancelled"
                activity["EndTime"] = datetime.fromtimestamp(self.clock(), UTC)
        state.lifecycle_state = "InService"
        if result != "CONTINUE" or state.instance.state == "terminated":
            self._remove(group, state)
        self.fill(group)

    def _waiting(self, asked: Any) -> Wait:
        wait = self.waits.get(asked._get_param("InstanceId"))
        if wait is None:
            raise ValidationError(f"No active Lifecycle Action found with instance ID {asked._get_param('InstanceId')}")
        return wait

    def patches(self) -> list[Patch]:
        """Return what is to be replaced in moto."""
        create = AutoScalingResponse.create_auto_scaling_group

        def create_with_hooks(asked: Any) -> Any:
            answer = create(asked)
            for hook in asked._get_params().get("LifecycleHookSpecificationList", []):
                asked.autoscaling_backend.create_lifecycle_hook(
                    name=hook["LifecycleHookName"],
                    as_name=asked._get_param("AutoScalingGroupName"),
                    transition=hook["LifecycleTransition"],
                    timeout=int(hook["HeartbeatTimeout"]),
                    result=hook["DefaultResult"],
                )
            return answer

        def complete(asked: Any) -> Any:
            self._waiting(asked)
            self._finish(asked._get_param("InstanceId"), asked._get_param("LifecycleActionResult"))
            return EmptyResult()

        def heartbeat(asked: Any) -> Any:
            wait = self._waiting(asked)
            wait.until = self.clock() + wait.seconds
            return EmptyResult()

        def describe_activities(asked: Any) -> Any:
            found = reversed(self.activities.get(asked._get_param("AutoScalingGroupName"), []))
            shown = [{key: value for key, value in each.items() if key != "instance"} for each in found]
            first = int(asked._get_param("NextToken") or 0)
            page = {"Activities": shown[first : first + PAGE]}
            return ActionResult(page | ({"NextToken": str(first + PAGE)} if len(shown) > first + PAGE else {}))

        def set_desired(group: Any, capacity: int | None) -> None:
            group.desired_capacity = group.min_size if capacity is None else capacity
            self.fill(group)

        def set_group_desired(backend: Any, name: str, capacity: int | None) -> None:
            group = backend.autoscaling_groups.get(name)
            if group is None:
                raise ValidationError(f"AutoScalingGroup name not found - {name}")
            if capacity is not None and capacity > group.max_size:
                raise ValidationError(f"New SetDesiredCapacity value {capacity} is above max value {group.max_size}")
            group.set_desired_capacity(capacity)

        def ended(backend: Any, instances: list[str]) -> None:
            """Health checks: only what is in service is replaced."""
            for group in list(backend.autoscaling_groups.values()):
                kept = [
                    each
                    for each in group.instance_states
                    if each.instance.id not in instances or each.lifecycle_state == WAITING
                ]
                if len(kept) < len(group.instance_states):
                    group.instance_states = kept
                    self.fill(group)

        def terminate(backend: Any, instance_id: str, should_decrement: bool) -> Any:
            for group in backend.autoscaling_groups.values():
                for each in group.instance_states:
                    if each.instance.id == instance_id:
                        size = group.desired_capacity
                        group.desired_capacity = size - int(should_decrement)
                        self._remove(group, each)
                        self.fill(group)
                        return TerminateInstanceActivity(each.instance, size)
            raise ValidationError(f"Instance Id not found - No managed instance found for instance ID: {instance_id}")

        def delete(backend: Any, name: str) -> None:
            group = backend.autoscaling_groups.pop(name, None)
            if group is None:
                raise ValidationError(f"AutoScalingGroup name not found - AutoScalingGroup '{name}' not found")
            for each in list(group.instance_states):
                self._remove(group, each)

        def console_output(asked: Any) -> Any:
            name = asked._get_param("InstanceId")
            text = Base64EncodedString.from_raw_string(self.console(name))
            return ActionResult({"InstanceId": name, "Timestamp": datetime.now(UTC), "Output": text})

        return [
            (AutoScalingResponse, "create_auto_scaling_group", create_with_hooks),
            (AutoScalingResponse, "complete_lifecycle_action", complete),
            (AutoScalingResponse, "record_lifecycle_action_heartbeat", heartbeat),
            (AutoScalingResponse, "describe_scaling_activities", describe_activities),
            (AutoScalingBackend, "set_desired_capacity", set_group_desired),
            (AutoScalingBackend, "notify_terminate_instances", ended),
            (AutoScalingBackend, "terminate_instance", terminate),
            (AutoScalingBackend, "delete_auto_scaling_group", delete),
            (FakeAutoScalingGroup, "set_desired_capacity", set_desired),
            (General, "get_console_output", console_output),
        ]
