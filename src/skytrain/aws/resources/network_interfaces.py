"""Network interfaces: free, but they keep security groups and subnets from being deleted."""

from __future__ import annotations

from collections.abc import Iterator

from ..calls import Call
from ..session import AwsSession
from ..tags import project_filter
from ._kind import CloudResource, ResourceKind, ours


def find(session: AwsSession, region: str) -> Iterator[CloudResource]:
    call = Call("ec2", "DescribeNetworkInterfaces", {"Filters": [project_filter()]})
    for found in session.items(call, "NetworkInterfaces", region):
        tags = ours(found.get("TagSet"))
        # AWS deletes the interfaces that it manages itself, with what they belong to.
        if tags is not None and not found.get("RequesterManaged"):
            yield CloudResource(
                kind=KIND.name,
                id=found["NetworkInterfaceId"],
                region=region,
                tags=tags,
                state=found.get("Status", ""),
                usd_per_hour=0.0,
            )


def delete(resource: CloudResource) -> list[Call]:
    return [Call("ec2", "DeleteNetworkInterface", {"NetworkInterfaceId": resource.id})]


KIND = ResourceKind(
    name="network interface",
    service="ec2",
    order=55,
    find=find,
    delete=delete,
    reads=("ec2:DescribeNetworkInterfaces",),
    deletes=("ec2:DeleteNetworkInterface",),
)
