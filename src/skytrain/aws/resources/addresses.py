"""Elastic addresses, which cost money whether they are used or not."""

from __future__ import annotations

from collections.abc import Iterator

from ..calls import Call
from ..session import AwsSession
from ..tags import project_filter
from ._kind import CloudResource, ResourceKind, ours

USD_PER_HOUR = 0.005


def find(session: AwsSession, region: str) -> Iterator[CloudResource]:
    for found in session.items(Call("ec2", "DescribeAddresses", {"Filters": [project_filter()]}), "Addresses", region):
        tags = ours(found.get("Tags"))
        if tags is not None:
            association = found.get("AssociationId")
            yield CloudResource(
                kind=KIND.name,
                id=found["AllocationId"],
                region=region,
                tags=tags,
                state="in use" if association else "unused",
                usd_per_hour=USD_PER_HOUR,
                facts={"association": association},
            )


def delete(resource: CloudResource) -> list[Call]:
    association = resource.facts.get("association")
    detach = [Call("ec2", "DisassociateAddress", {"AssociationId": association})] if association else []
    return [*detach, Call("ec2", "ReleaseAddress", {"AllocationId": resource.id})]


KIND = ResourceKind(
    name="address",
    service="ec2",
    order=50,
    find=find,
    delete=delete,
    reads=("ec2:DescribeAddresses",),
    deletes=("ec2:DisassociateAddress", "ec2:ReleaseAddress"),
)
