"""SageMaker endpoints."""

from __future__ import annotations

from collections.abc import Iterator

from ..calls import Call
from ..session import AwsSession
from ._kind import CloudResource, ResourceKind, ours


def find(session: AwsSession, region: str) -> Iterator[CloudResource]:
    for found in session.items(Call("sagemaker", "ListEndpoints"), "Endpoints", region):
        if found["EndpointStatus"] == "Deleting":
            continue
        tags = ours(
            list(session.items(Call("sagemaker", "ListTags", {"ResourceArn": found["EndpointArn"]}), "Tags", region))
        )
        if tags is not None:
            yield CloudResource(
                kind=KIND.name,
                id=found["EndpointName"],
                region=region,
                tags=tags,
                state=found["EndpointStatus"],
                created_at=found.get("CreationTime"),
            )


def delete(resource: CloudResource) -> list[Call]:
    return [Call("sagemaker", "DeleteEndpoint", {"EndpointName": resource.id})]


KIND = ResourceKind(
    name="SageMaker endpoint",
    service="sagemaker",
    order=20,
    find=find,
    delete=delete,
    reads=("sagemaker:ListEndpoints", "sagemaker:ListTags"),
    deletes=("sagemaker:DeleteEndpoint",),
)
