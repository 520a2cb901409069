"""Placement groups: free, and AWS limits their number."""

from __future__ import annotations

from collections.abc import Iterator

from ..calls import Call
from ..session import AwsSession
from ..tags import project_filter
from ._kind import CloudResource, ResourceKind, ours


def find(session: AwsSession, region: str) -> Iterator[CloudResource]:
    call = Call("ec2", "DescribePlacementGroups", {"Filters": [project_filter()]})
    for found in session.items(call, "PlacementGroups", region):
        tags = ours(found.get("Tags"))
        if tags is not None and found.get("State") != "deleting":
            yield CloudResource(
                kind=KIND.name,
                id=found["GroupName"],
                region=region,
                tags=tags,
                state=found.get("State", ""),
                usd_per_hour=0.0,
            )


def delete(resource: CloudResource) -> list[Call]:
    return [Call("ec2", "DeletePlacementGroup", {"GroupName": resource.id})]


KIND = ResourceKind(
    name="placement group",
    service="ec2",
    order=60,
    find=find,
    delete=delete,
    reads=("ec2:DescribePlacementGroups",),
    deletes=("ec2:DeletePlacementGroup",),
)
