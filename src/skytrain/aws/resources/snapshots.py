"""EBS snapshots."""

from __future__ import annotations

from collections.abc import Iterator

from ..calls import Call
from ..session import AwsSession
from ..tags import project_filter
from ._kind import CloudResource, ResourceKind, ours, per_month

USD_PER_GB = 0.05  # and month; of the volume's size, which is the most that it can be


def find(session: AwsSession, region: str) -> Iterator[CloudResource]:
    call = Call("ec2", "DescribeSnapshots", {"OwnerIds": ["self"], "Filters": [project_filter()]})
    for found in session.items(call, "Snapshots", region):
        tags = ours(found.get("Tags"))
        if tags is not None:
            cost = per_month(USD_PER_GB * found["VolumeSize"])
            yield CloudResource(
                kind=KIND.name,
                id=found["SnapshotId"],
                region=region,
                tags=tags,
                state=found["State"],
                created_at=found.get("StartTime"),
                usd_per_hour=cost,
            )


def delete(resource: CloudResource) -> list[Call]:
    return [Call("ec2", "DeleteSnapshot", {"SnapshotId": resource.id})]


KIND = ResourceKind(
    name="snapshot",
    service="ec2",
    order=50,
    find=find,
    delete=delete,
    reads=("ec2:DescribeSnapshots",),
    deletes=("ec2:DeleteSnapshot",),
)
