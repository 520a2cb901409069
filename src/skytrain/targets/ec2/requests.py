"""The EC2 requests that rent a plan's machines: per offer one launch template, one group, and the end of that group.

An Auto Scaling group replaces lost machines by itself once they have proved themselves (`replacement.py`), and its
scheduled action ends them at the kill time, whatever becomes of the computer that launched them.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from ...aws import Call, MachineImage, Tags, block_options
from ...config import CloudConfig, SkytrainError
from ...planning import PlannedOffer
from ..jobs import group_name
from .boot import BootScript
from .replacement import HOOK, HOOK_SECONDS

USER_DATA_BYTES = 16 * 1024
# 17 network cards, of which the first has no EFA. AWS: "Maximize network bandwidth on Amazon EC2 instances with multiple
# network cards" (EC2 User Guide) puts an EFA on card 0 only "if the network card index 0 supports EFA"; AWS's own
# ParallelCluster has none there for this type (github.com/aws/aws-parallelcluster/pull/7210).
PLAIN_FIRST_CARD = "p6-b300."


@dataclass(frozen=True)
class GroupSpec:
    """One offer in one zone: everything that its requests are made of."""

    run: str
    launch: str
    number: int  # 0: the choice; others are fallbacks
    offer: PlannedOffer
    zone: str
    image: MachineImage
    boot: BootScript
    tags: Tags
    cloud: CloudConfig
    launched_at: datetime

    @property
    def name(self) -> str:
        return group_name(self.tags.project, self.run, self.launch, self.number)

    @property
    def kill_at(self) -> datetime:
        """When AWS sets the group to zero."""
        return kill_time(self.launched_at, self.offer)

    @property
    def own_tags(self) -> Tags:
        return replace(self.tags, run=self.run, expires_at=self.kill_at)

    @property
    def subnet(self) -> str:
        subnets = getattr(self.cloud.subnets, self.cloud.subnets.nodes)
        if self.zone not in subnets:
            raise SkytrainError(
                f"there is no {self.cloud.subnets.nodes} subnet in {self.zone}: the base has {', '.join(sorted(subnets)) or 'none'}\n"
                "  plan again, or apply infra/terraform/base with that zone and run `skytrain cloud init`"
            )
        return str(subnets[self.zone])


def kill_time(launched_at: datetime, offer: PlannedOffer) -> datetime:
    """Return when AWS ends an offer's machines; whole minutes, as scheduled actions have."""
    return (launched_at + timedelta(seconds=offer.kill_after_seconds)).replace(second=0, microsecond=0)


def launch_calls(groups: Sequence[GroupSpec], *, waits: bool = False) -> list[Call]:
    """Return all requests in order: templates and placement groups, groups with their kill times, then the size.

    Every group is created at zero and gets its kill time before it can have machines: whatever ends this process in
    between leaves nothing that costs money. The last request gives the first group its size, unless the launch waits.
    """
    calls = [call for group in groups for call in (*_placement_group(group), launch_template(group))]
    for group in groups:
        calls += [scaling_group(group), kill_action(group)]
    return calls if waits else [*calls, grow(groups[0])]


def launch_template(group: GroupSpec) -> Call:
    """Return the request for the launch template: all that an instance is, except its zone."""
    user_data = group.boot.render(group.kill_at).encode()
    if len(user_data) > USER_DATA_BYTES:
        raise SkytrainError(
            f"the boot script has {len(user_data)} bytes, and EC2 takes {USER_DATA_BYTES}: its command has every setting\n"
            "  put long ones into a file of your own, such as trainer/mine.yaml, and set trainer=mine"
        )
    tags = group.own_tags
    data: dict[str, Any] = {
        "ImageId": group.image.id,
        "InstanceType": group.offer.instance_type,
        "IamInstanceProfile": {"Name": _needed(group.cloud.instance_profile, "instance_profile")},
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1, "HttpEndpoint": "enabled"},
        "BlockDeviceMappings": [{"DeviceName": group.image.root_device, "Ebs": _disk(group)}],
        "NetworkInterfaces": network_interfaces(group),
        "TagSpecifications": tags.specifications(*_tagged(group)),
        "UserData": base64.b64encode(user_data).decode(),
    }
    if group.offer.placement_group:
        data["Placement"] = {"GroupName": group.name}
    if group.offer.reservation is not None:
        data |= block_options(group.offer.reservation)
    elif group.offer.market == "spot":
        bid = {"MaxPrice": f"{group.offer.max_usd_per_hour_each:.4f}", "SpotInstanceType": "one-time"}
        data["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": bid}
    parameters = {
        "LaunchTemplateName": group.name,
        "LaunchTemplateData": data,
        "TagSpecifications": tags.specifications("launch-template"),
    }
    return Call("ec2", "CreateLaunchTemplate", parameters, token_key=_key(group))


def network_interfaces(group: GroupSpec) -> list[dict[str, Any]]:
    """Return the interfaces: one for IP, and EFA ones as the type has them.

    The primary interface cannot be EFA only; its card also carries an EFA device where it can, and so does every other
    card. With several interfaces EC2 assigns no public address.
    """
    security_group = _needed(group.cloud.security_group, "security_group")
    common = {"Groups": [security_group], "DeleteOnTermination": True}
    efa = group.offer.efa_interfaces
    primary: dict[str, Any] = {"DeviceIndex": 0, "NetworkCardIndex": 0, "InterfaceType": "interface", **common}
    if efa == 0:
        primary["AssociatePublicIpAddress"] = group.cloud.subnets.nodes == "public"
    elif group.cloud.subnets.nodes == "public":
        raise SkytrainError(
            f"{group.offer.instance_type} with EFA needs private subnets: EC2 gives no public address to a machine with several interfaces\n"
            "  apply infra/terraform/base with nat_gateway = true or interface_endpoints = true, then: skytrain cloud init --force"
        )
    if group.offer.instance_type.startswith(PLAIN_FIRST_CARD):
        cards = [{"NetworkCardIndex": card, "DeviceIndex": 0} for card in range(1, efa + 1)]
    else:
        cards = [{"NetworkCardIndex": 0, "DeviceIndex": 1}] if efa else []
        cards += [{"NetworkCardIndex": card, "DeviceIndex": 0} for card in range(1, efa)]
    return [primary, *({**card, "InterfaceType": "efa-only", **common} for card in cards)]


def scaling_group(group: GroupSpec) -> Call:
    """Return the request for the group: all nodes in one zone, none of them yet.

    Its hook keeps every new machine from being replaced until it has proved itself.
    """
    hook = {
        "LifecycleHookName": HOOK,
        "LifecycleTransition": "autoscaling:EC2_INSTANCE_LAUNCHING",
        "HeartbeatTimeout": HOOK_SECONDS,
        "DefaultResult": "ABANDON",
    }
    parameters = {
        "AutoScalingGroupName": group.name,
        "LaunchTemplate": {"LaunchTemplateName": group.name, "Version": "1"},
        "MinSize": 0,
        "MaxSize": group.offer.nodes,
        "DesiredCapacity": 0,
        "VPCZoneIdentifier": group.subnet,
        "HealthCheckType": "EC2",
        "LifecycleHookSpecificationList": [hook],
        "Tags": group.own_tags.for_group(group.name),
    }
    return Call("autoscaling", "CreateAutoScalingGroup", parameters)


def grow(group: GroupSpec) -> Call:
    """Return the request for the machines of a group."""
    named = {"AutoScalingGroupName": group.name, "DesiredCapacity": group.offer.nodes, "HonorCooldown": False}
    return Call("autoscaling", "SetDesiredCapacity", named)


def kill_action(group: GroupSpec) -> Call:
    """Return the request that lets AWS set the group to zero at the kill time."""
    parameters = {
        "AutoScalingGroupName": group.name,
        "ScheduledActionName": f"{group.name}-kill",
        "StartTime": group.kill_at,
        "MinSize": 0,
        "MaxSize": 0,
        "DesiredCapacity": 0,
    }
    return Call("autoscaling", "PutScheduledUpdateGroupAction", parameters)


def _placement_group(group: GroupSpec) -> list[Call]:
    if not group.offer.placement_group:
        return []
    parameters = {
        "GroupName": group.name,
        "Strategy": "cluster",
        "TagSpecifications": group.own_tags.specifications("placement-group"),
    }
    return [Call("ec2", "CreatePlacementGroup", parameters)]


def _tagged(group: GroupSpec) -> tuple[str, ...]:
    spot = ("spot-instances-request",) if group.offer.market == "spot" else ()
    return ("instance", "volume", "network-interface", *spot)


def _disk(group: GroupSpec) -> dict[str, Any]:
    disk = {"VolumeType": "gp3", "VolumeSize": group.offer.disk_gb, "Encrypted": True, "DeleteOnTermination": True}
    return {**disk, "KmsKeyId": group.cloud.kms_key} if group.cloud.kms_key else disk


def _key(group: GroupSpec) -> str:
    return f"{group.name} {group.launched_at.isoformat()}"


def _needed(value: str | None, name: str) -> str:
    if not value:
        raise SkytrainError(f"cloud.{name} is not set\n  run: skytrain cloud init, and add cloud=aws")
    return value
