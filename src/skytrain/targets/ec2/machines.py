"""The Auto Scaling groups of a launch, as a node or a terminal ends and grows them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from ...aws import WAITING, AwsSession, Call, CloudError, remove
from ...runs import LaunchRecord, launch_folder, mark_failed, read_launch, started_key
from ...storage import Retry, Store, StoreError
from ..emr.jobs import TARGETS, has_emr_job
from ..sagemaker.jobs import has_training_job
from .ended_machines import count_ended
from .fallback_offers import set_size, try_next_offer

LEAVING = Retry(seconds=20.0, first_wait_seconds=2.0, longest_wait_seconds=5.0)  # of a node, which costs money
UNFIT_PER_NODE = 3  # machines that fail their health check, after which a launch ends


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
        if following.failed or self._store.exists(started_key(following)):
            return  # by another host
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
    except CloudError as error:
        tell(f"{error}")
        return False
    return True


def has_machines(session: AwsSession, record: LaunchRecord) -> bool | None:
    """Whether one of the launch's groups has machines, or asks for some; elsewhere: whether its job has not ended.

    None: its scheduler is none of AWS's.
    """
    if record.target == "sagemaker":
        return has_training_job(session, record)
    if record.target in TARGETS:
        return has_emr_job(session, record)
    if record.target != "ec2":
        return None
    named = {"AutoScalingGroupNames": [group.name for group in record.groups]}
    found = session.items(Call("autoscaling", "DescribeAutoScalingGroups", named), "AutoScalingGroups", record.region)
    return any(group["DesiredCapacity"] or group["Instances"] for group in found)


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
