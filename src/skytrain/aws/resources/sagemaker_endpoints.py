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
                KIND.name, found["EndpointName"], region, tags, found["EndpointStatus"], found.get("CreationTime")
            )


def delete(resource: CloudResource) -> list[Call]:
    return [Call("sagemaker", "DeleteEndpoint", {"EndpointName": resource.id})]


KIND = ResourceKind(
    "SageMaker endpoint",
    "sagemaker",
    20,
    find,
    delete,
    ("sagemaker:ListEndpoints", "sagemaker:ListTags"),
    ("sagemaker:DeleteEndpoint",),
)
