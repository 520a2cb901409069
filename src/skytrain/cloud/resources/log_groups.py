"""CloudWatch log groups."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from ..calls import Call
from ..session import AwsSession
from ._kind import CloudResource, ResourceKind, ours, per_month

USD_PER_GB = 0.03  # and month, of what is stored


def find(session: AwsSession, region: str) -> Iterator[CloudResource]:
    for found in session.items(Call("logs", "DescribeLogGroups"), "logGroups", region):
        arn = found["arn"].removesuffix(":*")
        tags = ours(session.perform(Call("logs", "ListTagsForResource", {"resourceArn": arn}), region).get("tags"))
        if tags is not None:
            stored = found.get("storedBytes", 0)
            yield CloudResource(
                KIND.name,
                found["logGroupName"],
                region,
                tags,
                created_at=datetime.fromtimestamp(found["creationTime"] / 1000, UTC),
                usd_per_hour=per_month(USD_PER_GB * stored / 1e9),
                facts={"bytes": stored},
            )


def delete(resource: CloudResource) -> list[Call]:
    return [Call("logs", "DeleteLogGroup", {"logGroupName": resource.id})]


KIND = ResourceKind(
    "log group",
    "logs",
    80,
    find,
    delete,
    ("logs:DescribeLogGroups", "logs:ListTagsForResource"),
    ("logs:DeleteLogGroup",),
)
