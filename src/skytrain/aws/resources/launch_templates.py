"""Launch templates: free, and named after their run."""

from __future__ import annotations

from collections.abc import Iterator

from ..calls import Call
from ..session import AwsSession
from ..tags import project_filter
from ._kind import CloudResource, ResourceKind, ours


def find(session: AwsSession, region: str) -> Iterator[CloudResource]:
    call = Call("ec2", "DescribeLaunchTemplates", {"Filters": [project_filter()]})
    for found in session.items(call, "LaunchTemplates", region):
        tags = ours(found.get("Tags"))
        if tags is not None:
            yield CloudResource(
                KIND.name,
                found["LaunchTemplateId"],
                region,
                tags,
                created_at=found.get("CreateTime"),
                usd_per_hour=0.0,
                facts={"name": found.get("LaunchTemplateName")},
            )


def delete(resource: CloudResource) -> list[Call]:
    return [Call("ec2", "DeleteLaunchTemplate", {"LaunchTemplateId": resource.id})]


KIND = ResourceKind(
    name="launch template",
    service="ec2",
    order=60,
    find=find,
    delete=delete,
    reads=("ec2:DescribeLaunchTemplates",),
    deletes=("ec2:DeleteLaunchTemplate",),
)
