"""NAT gateways: the largest standing cost of the base, where it has one. No run makes one, so gc deletes none."""

from __future__ import annotations

from collections.abc import Iterator

from ..calls import Call
from ..session import AwsSession
from ..tags import project_filter
from ._kind import CloudResource, ResourceKind, ours

USD_PER_HOUR = 0.045  # and as much for each GB that passes


def find(session: AwsSession, region: str) -> Iterator[CloudResource]:
    filters = [project_filter(), {"Name": "state", "Values": ["pending", "available"]}]
    for found in session.items(Call("ec2", "DescribeNatGateways", {"Filter": filters}), "NatGateways", region):
        tags = ours(found.get("Tags"))
        if tags is not None and found["State"] in ("pending", "available"):
            yield CloudResource(
                kind=KIND.name,
                id=found["NatGatewayId"],
                region=region,
                tags=tags,
                state=found["State"],
                created_at=found.get("CreateTime"),
                usd_per_hour=USD_PER_HOUR,
            )


def delete(resource: CloudResource) -> list[Call]:
    return []


KIND = ResourceKind(
    name="NAT gateway",
    service="ec2",
    order=100,
    find=find,
    delete=delete,
    reads=("ec2:DescribeNatGateways",),
    deletes=(),
)
