"""EMR Serverless applications: free while stopped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..calls import Call
from ..errors import CloudError
from ..session import AwsSession
from ._kind import CloudResource, ResourceKind, ours

IDLE = ("CREATED", "STOPPED")
ACTIVE_JOB = ("SUBMITTED", "PENDING", "SCHEDULED", "RUNNING", "QUEUED")


def job_runs_of(session: AwsSession, application: str, region: str) -> list[dict[str, Any]]:
    """Return the job runs of an application; none of one that is gone by now."""
    asked = Call("emr-serverless", "ListJobRuns", {"applicationId": application})
    try:
        return list(session.items(asked, "jobRuns", region))
    except CloudError as error:
        if error.code == "ResourceNotFoundException":
            return []
        raise


def find(session: AwsSession, region: str) -> Iterator[CloudResource]:
    denied: CloudError | None = None
    for found in session.items(Call("emr-serverless", "ListApplications"), "applications", region):
        if found["state"] == "TERMINATED":
            continue
        call = Call("emr-serverless", "GetApplication", {"applicationId": found["id"]})
        try:
            tags = ours(session.perform(call, region)["application"].get("tags"))
        except CloudError as error:  # gone by now, or somebody else's: ours are found all the same
            denied = denied if error.code == "ResourceNotFoundException" else error
            continue
        if tags is not None:
            cost = 0.0 if found["state"] in IDLE else None
            yield CloudResource(
                kind=KIND.name,
                id=found["id"],
                region=region,
                tags=tags,
                state=found["state"],
                created_at=found.get("createdAt"),
                usd_per_hour=cost,
                facts={"name": found.get("name"), "jobs": _running(session, found["id"], region)},
            )
    if denied is not None:
        raise denied


def _running(session: AwsSession, application: str, region: str) -> list[str]:
    """Return the jobs that have not ended: an application with one cannot be stopped."""
    return [one["id"] for one in job_runs_of(session, application, region) if one["state"] in ACTIVE_JOB]


def delete(resource: CloudResource) -> list[Call]:
    named = {"applicationId": resource.id}
    stop = [] if resource.state in IDLE else [Call("emr-serverless", "StopApplication", named)]
    cancel = [
        Call("emr-serverless", "CancelJobRun", {**named, "jobRunId": job}) for job in resource.facts.get("jobs", [])
    ]
    return [*cancel, *stop, Call("emr-serverless", "DeleteApplication", named)]


KIND = ResourceKind(
    name="EMR application",
    service="emr-serverless",
    order=20,
    find=find,
    delete=delete,
    reads=("emr-serverless:ListApplications", "emr-serverless:GetApplication", "emr-serverless:ListJobRuns"),
    deletes=("emr-serverless:CancelJobRun", "emr-serverless:StopApplication", "emr-serverless:DeleteApplication"),
)
