"""CloudWatch log groups. An account may have thousands: the tagging API names ours."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from ..calls import Call
from ..session import AwsSession
from ..tags import PROJECT
from ._kind import CloudResource, ResourceKind, ours, per_month

USD_PER_GB = 0.03  # and month, of what is stored


def find(session: AwsSession, region: str) -> Iterator[CloudResource]:
    wanted = {"TagFilters": [{"Key": PROJECT}], "ResourceTypeFilters": ["logs"]}
    tagged = Call("resourcegroupstaggingapi", "GetResources", wanted)
    for each in session.items(tagged, "ResourceTagMappingList", region):
        tags = ours(each["Tags"])
        name = each["ResourceARN"].removesuffix(":*").partition(":log-group:")[2]
        if tags is None or not name:
            continue
        described = Call("logs", "DescribeLogGroups", {"logGroupNamePrefix": name})
        for found in session.items(described, "logGroups", region):
            if found["logGroupName"] == name:
                stored = found.get("storedBytes", 0)
                created = found["creationTime"] / 1000
                cost = per_month(USD_PER_GB * stored / 1e9)
                when = datetime.fromtimestamp(created, UTC)
                yield CloudResource(
                    kind=KIND.name,
                    id=name,
                    region=region,
                    tags=tags,
                    state="",
                    created_at=when,
                    usd_per_hour=cost,
                    facts={"bytes": stored},
                )


def delete(resource: CloudResource) -> list[Call]:
    return [Call("logs", "DeleteLogGroup", {"logGroupName": resource.id})]


KIND = ResourceKind(
    name="log group",
    service="logs",
    order=80,
    find=find,
    delete=delete,
    reads=("tag:GetResources", "logs:DescribeLogGroups"),
    deletes=("logs:DeleteLogGroup",),
)
