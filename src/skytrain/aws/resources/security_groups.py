"""Security groups: free; deleted when nothing uses them any more."""

from __future__ import annotations

from collections.abc import Iterator

from ..calls import Call
from ..session import AwsSession
from ..tags import project_filter
from ._kind import CloudResource, ResourceKind, ours


def find(session: AwsSession, region: str) -> Iterator[CloudResource]:
    call = Call("ec2", "DescribeSecurityGroups", {"Filters": [project_filter()]})
    for found in session.items(call, "SecurityGroups", region):
        tags = ours(found.get("Tags"))
        if tags is not None and found["GroupName"] != "default":  # a VPC's own cannot be deleted
            yield CloudResource(
                KIND.name, found["GroupId"], region, tags, usd_per_hour=0.0, facts={"name": found["GroupName"]}
            )


def delete(resource: CloudResource) -> list[Call]:
    return [Call("ec2", "DeleteSecurityGroup", {"GroupId": resource.id})]


KIND = ResourceKind(
    name="security group",
    service="ec2",
    order=70,
    find=find,
    delete=delete,
    reads=("ec2:DescribeSecurityGroups",),
    deletes=("ec2:DeleteSecurityGroup",),
)
