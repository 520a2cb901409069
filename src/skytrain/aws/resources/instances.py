"""EC2 instances."""

from __future__ import annotations

from collections.abc import Iterator

from ...planning import Market, load_catalog
from ..calls import Call
from ..session import AwsSession
from ..tags import project_filter
from ._kind import CloudResource, ResourceKind, ours

ALIVE = ["pending", "running", "shutting-down", "stopping", "stopped"]
GROUP_TAG = "aws:autoscaling:groupName"


def find(session: AwsSession, region: str) -> Iterator[CloudResource]:
    filters = [project_filter(), {"Name": "instance-state-name", "Values": ALIVE}]
    catalog = load_catalog()
    for reservation in session.items(Call("ec2", "DescribeInstances", {"Filters": filters}), "Reservations", region):
        for found in reservation["Instances"]:
            tags = ours(found.get("Tags"))
            state = found["State"]["Name"]
            if tags is None or state == "shutting-down":  # no longer billed, and cannot be terminated once more
                continue
            market: Market = "spot" if found.get("InstanceLifecycle") == "spot" else "on-demand"
            price = catalog.price(found["InstanceType"], region, market)
            running = state in ("pending", "running")
            yield CloudResource(
                kind=KIND.name,
                id=found["InstanceId"],
                region=region,
                tags=tags,
                state=state,
                created_at=found.get("LaunchTime"),
                usd_per_hour=0.0 if not running else price.usd_per_hour_max if price else None,
                facts={
                    "type": found["InstanceType"],
                    "market": market,
                    "zone": found.get("Placement", {}).get("AvailabilityZone"),
                    "group": next((tag["Value"] for tag in found["Tags"] if tag["Key"] == GROUP_TAG), None),
                    "address": found.get("PrivateIpAddress"),
                },
            )


def delete(resource: CloudResource) -> list[Call]:
    return [Call("ec2", "TerminateInstances", {"InstanceIds": [resource.id]})]


KIND = ResourceKind(
    name="instance",
    service="ec2",
    order=30,
    find=find,
    delete=delete,
    reads=("ec2:DescribeInstances",),
    deletes=("ec2:TerminateInstances",),
)
