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
                KIND.name, found["SnapshotId"], region, tags, found["State"], found.get("StartTime"), cost
            )


def delete(resource: CloudResource) -> list[Call]:
    return [Call("ec2", "DeleteSnapshot", {"SnapshotId": resource.id})]


KIND = ResourceKind("snapshot", "ec2", 50, find, delete, ("ec2:DescribeSnapshots",), ("ec2:DeleteSnapshot",))
