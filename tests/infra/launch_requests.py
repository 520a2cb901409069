"""The requests of launches in the base, of their ends, and of their machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from skytrain.aws import Call, Tags
from skytrain.config import MachineRolesConfig
from skytrain.planning import JobKind, PlannedOffer
from skytrain.runs import LaunchedGroup, LaunchRecord
from skytrain.targets.ec2.requests import GroupSpec
from skytrain.targets.jobs import group_name
from skytrain.targets.machine_roles import MachineRole, machine_role
from tests.infra.permissions import BOUNDARY, GROUP, KEY, NUMBER, OURS, PROJECT, ROLES_PATH, existing
from tests.support.iam.requests import Account
from tests.targets.plans import cpu_offer, offer
from tests.targets.test_ec2 import group_of

OFFERS = {
    "spot": [offer("g5.12xlarge", 2, placement_group=False), offer("g6.xlarge", 1, "on-demand")],
    "on demand": [offer("g6e.xlarge", 1, "on-demand")],
    "EFA": [offer("p4d.24xlarge", 2)],
    "prepare": [cpu_offer("c7i.8xlarge"), cpu_offer("m7i.8xlarge", "on-demand")],
}


PATTERN_POLICIES = {
    "node": ["node_store", "node_machine"],
    "prepare": ["node_store", "node_machine", "prepare_data"],
    "serve": ["serve_store", "serve_machine"],
    "sagemaker": ["node_sagemaker"],
    "vault": ["node_secrets"],
}


class RecordingSession:
    """Notes the requests that it is asked to make. The groups have one machine, which waits for its proof and is dead."""

    region = "us-east-2"

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def perform(self, call: Call, region: str | None = None) -> dict[str, Any]:
        self.calls.append(call)
        group = group_name(PROJECT, "gpt2", "00001", 0)
        waiting = {"InstanceId": "i-ours", "LifecycleState": "Pending:Wait", "AutoScalingGroupName": group}
        ended = {"InstanceId": "i-ours", "State": {"Name": "terminated"}, "LaunchTime": datetime.now(UTC)}
        return {
            "AutoScalingInstances": [waiting],
            "AutoScalingGroups": [{"DesiredCapacity": 1, "Instances": [waiting]}],
            "Reservations": [{"Instances": [ended]}],
            "Activities": [],
        }

    def items(self, call: Call, key: str, region: str | None = None) -> list[Any]:
        found: list[Any] = self.perform(call, region)[key]
        return found


def role_of(offers: Sequence[PlannedOffer]) -> MachineRole:
    """The role of the launch's machines."""
    cloud = group_of(offers[0]).cloud
    policies = {
        kind: [f"arn:aws:iam::{NUMBER}:policy/{name}" for name in names] for kind, names in PATTERN_POLICIES.items()
    }
    settings = MachineRolesConfig(path=ROLES_PATH, boundary=BOUNDARY, **policies)
    job: JobKind = "prepare" if offers[0].gpus_per_node == 0 else "train"
    role = machine_role(replace(cloud, machine_roles=settings), job, "00001", OURS)
    assert role is not None
    return role


def groups_of(subnet: str, offers: Sequence[PlannedOffer]) -> list[GroupSpec]:
    cloud = group_of(offers[0]).cloud
    own = replace(
        cloud, project=PROJECT, kms_key=KEY, security_group=GROUP, instance_profile=role_of(offers).name,
        subnets=replace(cloud.subnets, private={"us-east-2a": subnet}),
    )  # fmt: skip
    return [group_of(each, number, cloud=own, tags=Tags(PROJECT, "ada")) for number, each in enumerate(offers)]


def account_with(subnet: str, calls: Sequence[Call], tags: Mapping[str, Mapping[str, str]]) -> Account:
    """An account with these tags and the templates that these requests create."""
    templates = {
        call.parameters["LaunchTemplateName"]: call.parameters["LaunchTemplateData"]
        for call in calls
        if call.operation == "CreateLaunchTemplate"
    }
    made = [call.parameters["RoleName"] for call in calls if call.operation == "CreateRole"]
    return replace(
        existing(subnet),
        tags=tags,
        templates=templates,
        iam_paths=dict.fromkeys(made, ROLES_PATH),
        boundaries=dict.fromkeys(made, BOUNDARY),
    )


def record_of(groups: Sequence[GroupSpec]) -> LaunchRecord:
    launched = [
        LaunchedGroup(
            name=each.name, zone=each.zone, instance_type=each.offer.instance_type, market=each.offer.market, nodes=each.offer.nodes, usd_per_hour=1.0,
            kill_at="2026-11-16T00:00:00+00:00", placement_group=each.offer.placement_group,
        )
        for each in groups
    ]  # fmt: skip
    at = "2026-11-15T00:00:00+00:00"
    return LaunchRecord(
        id="00001",
        run="gpt2",
        verb="train",
        launched_at=at,
        launched_by="ada",
        account="1",
        region="us-east-2",
        patience_seconds=900.0,
        plan_hash="",
        image="ami-1",
        bundle="",
        words=[],
        groups=launched,
    )
