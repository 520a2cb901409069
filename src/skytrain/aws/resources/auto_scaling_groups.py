"""Auto Scaling groups: deleted before their instances, which they would replace."""

from __future__ import annotations

from collections.abc import Iterator

from ..calls import Call
from ..session import AwsSession
from ..tags import project_filter
from ._kind import CloudResource, ResourceKind, ours


def find(session: AwsSession, region: str) -> Iterator[CloudResource]:
    call = Call("autoscaling", "DescribeAutoScalingGroups", {"Filters": [project_filter()]})
    for found in session.items(call, "AutoScalingGroups", region):
        tags = ours(found.get("Tags"))
        if tags is not None and not found.get("Status"):  # a status is set while it is deleted
            yield CloudResource(
                kind=KIND.name,
                id=found["AutoScalingGroupName"],
                region=region,
                tags=tags,
                state=f"{found['DesiredCapacity']} wanted",
                created_at=found.get("CreatedTime"),
                usd_per_hour=0.0,  # its instances are listed by themselves
                facts={"wanted": found["DesiredCapacity"], "most": found["MaxSize"]},
            )


def delete(resource: CloudResource) -> list[Call]:
    return [Call("autoscaling", "DeleteAutoScalingGroup", {"AutoScalingGroupName": resource.id, "ForceDelete": True})]


def scale_to_zero(resource: CloudResource) -> Call:
    """Keep the group, and end its instances: what `skytrain stop` does."""
    sizes = {"MinSize": 0, "DesiredCapacity": 0}
    return Call("autoscaling", "UpdateAutoScalingGroup", {"AutoScalingGroupName": resource.id, **sizes})


KIND = ResourceKind(
    name="Auto Scaling group",
    service="autoscaling",
    order=20,
    find=find,
    delete=delete,
    reads=("autoscaling:DescribeAutoScalingGroups",),
    deletes=("autoscaling:DeleteAutoScalingGroup",),
)
