"""API keys of endpoints: encrypted parameters of Systems Manager, below the project's path."""

from __future__ import annotations

from collections.abc import Iterator

from ..calls import Call
from ..session import AwsSession
from ._kind import CloudResource, ResourceKind, ours

ROOT = "/skytrain/"


def find(session: AwsSession, region: str) -> Iterator[CloudResource]:
    below = {"ParameterFilters": [{"Key": "Name", "Option": "BeginsWith", "Values": [ROOT]}]}
    for found in session.items(Call("ssm", "DescribeParameters", below), "Parameters", region):
        name = found["Name"]
        asked = Call("ssm", "ListTagsForResource", {"ResourceType": "Parameter", "ResourceId": name})
        tags = ours(session.perform(asked, region).get("TagList"))
        if tags is not None:
            yield CloudResource(
                kind=KIND.name,
                id=name,
                region=region,
                tags=tags,
                state="",
                created_at=found.get("LastModifiedDate"),
                usd_per_hour=0.0,
            )


def delete(resource: CloudResource) -> list[Call]:
    return [Call("ssm", "DeleteParameter", {"Name": resource.id})]


KIND = ResourceKind(
    name="API key",
    service="ssm",
    order=90,
    find=find,
    delete=delete,
    reads=("ssm:DescribeParameters", "ssm:ListTagsForResource"),
    deletes=("ssm:DeleteParameter",),
)
