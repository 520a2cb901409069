"""EBS volumes that outlived their instance, or are attached to one."""

from __future__ import annotations

from collections.abc import Iterator

from ..calls import Call
from ..session import AwsSession
from ..tags import project_filter
from ._kind import CloudResource, ResourceKind, ours, per_month

# us-east-2, dollars per GB and month; provisioned throughput and operations beyond the free ones are not counted.
USD_PER_GB = {"gp3": 0.08, "gp2": 0.10, "io1": 0.125, "io2": 0.125, "st1": 0.045, "sc1": 0.015, "standard": 0.05}


def find(session: AwsSession, region: str) -> Iterator[CloudResource]:
    for found in session.items(Call("ec2", "DescribeVolumes", {"Filters": [project_filter()]}), "Volumes", region):
        tags = ours(found.get("Tags"))
        if tags is not None and found["State"] != "deleting":
            price = USD_PER_GB.get(found.get("VolumeType", ""))
            cost = None if price is None else per_month(price * found["Size"])
            facts = {"gb": found["Size"], "type": found.get("VolumeType")}
            yield CloudResource(
                kind=KIND.name,
                id=found["VolumeId"],
                region=region,
                tags=tags,
                state=found["State"],
                created_at=found.get("CreateTime"),
                usd_per_hour=cost,
                facts=facts,
            )


def delete(resource: CloudResource) -> list[Call]:
    return [Call("ec2", "DeleteVolume", {"VolumeId": resource.id})]


KIND = ResourceKind(
    name="volume",
    service="ec2",
    order=50,
    find=find,
    delete=delete,
    reads=("ec2:DescribeVolumes",),
    deletes=("ec2:DeleteVolume",),
)
