"""SageMaker training jobs that still run; ended ones cost nothing and cannot be deleted."""

from __future__ import annotations

from collections.abc import Iterator

from ..calls import Call
from ..session import AwsSession
from ._kind import CloudResource, ResourceKind, ours


def find(session: AwsSession, region: str) -> Iterator[CloudResource]:
    call = Call("sagemaker", "ListTrainingJobs", {"StatusEquals": "InProgress"})
    for found in session.items(call, "TrainingJobSummaries", region):
        if found["TrainingJobStatus"] != "InProgress":
            continue
        tags = ours(
            list(session.items(Call("sagemaker", "ListTags", {"ResourceArn": found["TrainingJobArn"]}), "Tags", region))
        )
        if tags is not None:
            yield CloudResource(
                kind=KIND.name,
                id=found["TrainingJobName"],
                region=region,
                tags=tags,
                state=found["TrainingJobStatus"],
                created_at=found.get("CreationTime"),
            )


def delete(resource: CloudResource) -> list[Call]:
    return [Call("sagemaker", "StopTrainingJob", {"TrainingJobName": resource.id})]


KIND = ResourceKind(
    name="SageMaker job",
    service="sagemaker",
    order=20,
    find=find,
    delete=delete,
    reads=("sagemaker:ListTrainingJobs", "sagemaker:ListTags"),
    deletes=("sagemaker:StopTrainingJob",),
)
