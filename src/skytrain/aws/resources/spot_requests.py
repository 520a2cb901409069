"""Spot requests: an open one may still start an instance, and counts towards the quota."""

from __future__ import annotations

from collections.abc import Iterator

from ..calls import Call
from ..session import AwsSession
from ..tags import project_filter
from ._kind import CloudResource, ResourceKind, ours


def find(session: AwsSession, region: str) -> Iterator[CloudResource]:
    filters = [project_filter(), {"Name": "state", "Values": ["open", "active"]}]
    call = Call("ec2", "DescribeSpotInstanceRequests", {"Filters": filters})
    for found in session.items(call, "SpotInstanceRequests", region):
        tags = ours(found.get("Tags"))
        if tags is not None and found["State"] in ("open", "active"):
            yield CloudResource(
                kind=KIND.name,
                id=found["SpotInstanceRequestId"],
                region=region,
                tags=tags,
                state=found["State"],
                created_at=found.get("CreateTime"),
                usd_per_hour=0.0,  # its instance is listed by itself
            )


def delete(resource: CloudResource) -> list[Call]:
    return [Call("ec2", "CancelSpotInstanceRequests", {"SpotInstanceRequestIds": [resource.id]})]


KIND = ResourceKind(
    name="spot request",
    service="ec2",
    order=25,
    find=find,
    delete=delete,
    reads=("ec2:DescribeSpotInstanceRequests",),
    deletes=("ec2:CancelSpotInstanceRequests",),
)
