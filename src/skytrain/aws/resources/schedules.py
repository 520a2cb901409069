"""Groups of EventBridge schedules; a schedule has no tags of its own."""

from __future__ import annotations

from collections.abc import Iterator

from ..calls import Call
from ..session import AwsSession
from ._kind import CloudResource, ResourceKind, ours


def find(session: AwsSession, region: str) -> Iterator[CloudResource]:
    for found in session.items(Call("scheduler", "ListScheduleGroups"), "ScheduleGroups", region):
        if found["Name"] == "default" or found.get("State") == "DELETING":
            continue
        call = Call("scheduler", "ListTagsForResource", {"ResourceArn": found["Arn"]})
        tags = ours(session.perform(call, region).get("Tags"))
        if tags is not None:
            yield CloudResource(
                kind=KIND.name,
                id=found["Name"],
                region=region,
                tags=tags,
                state=found.get("State", ""),
                created_at=found.get("CreationDate"),
                usd_per_hour=0.0,
            )


def delete(resource: CloudResource) -> list[Call]:
    return [Call("scheduler", "DeleteScheduleGroup", {"Name": resource.id}, token_key=resource.id)]


KIND = ResourceKind(
    name="schedule group",
    service="scheduler",
    order=10,
    find=find,
    delete=delete,
    reads=("scheduler:ListScheduleGroups", "scheduler:ListTagsForResource"),
    deletes=("scheduler:DeleteScheduleGroup", "scheduler:DeleteSchedule"),
)
