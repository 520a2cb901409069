"""Jobs on EMR as AWS describes them: job runs of EMR Serverless, and steps of clusters."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ...aws import AwsSession, Call, job_runs_of, read_tags
from ...planning import Market
from ...runs import LaunchRecord, launch_folder
from ...storage import Store

SERVERLESS = "emr-serverless"
CLUSTER = "emr"
TARGETS = (SERVERLESS, CLUSTER)
ENDED = ("SUCCESS", "FAILED", "CANCELLED", "COMPLETED", "INTERRUPTED", "TERMINATED", "TERMINATED_WITH_ERRORS")
WELL = ("SUCCESS", "COMPLETED")
ENDING = ("CANCELLING", "CANCEL_PENDING", "TERMINATING")  # stopped already, and not over yet
LOG_NAMES = ("stderr", "stdout")  # progress, then the result


@dataclass(frozen=True)
class EmrJob:
    """The job of one launch."""

    name: str
    kind: str  # emr-serverless, emr
    place: str  # the application or the cluster
    id: str  # the job run or the step
    state: str
    reason: str | None  # AWS's own words, of a failure above all
    began_at: datetime | None
    seconds: int | None
    vcpu_hours: float | None = None  # billed by EMR Serverless
    gb_hours: float | None = None
    region: str | None = None
    disk_gb_hours: float = 0.0  # beyond the free 20 GB of each worker

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    @property
    def is_ending(self) -> bool:
        return self.state in ENDING

    @property
    def ended_well(self) -> bool:
        return self.state in WELL


def emr_jobs_of(session: AwsSession, launches: list[LaunchRecord]) -> list[EmrJob]:
    """Return the jobs of these launches, newest first. They are found by name, whatever answer was lost."""
    found: list[EmrJob] = []
    for record in reversed(launches):
        if record.target in TARGETS:
            find = _job_runs if record.target == SERVERLESS else _steps
            found += find(session, record)
    return found


def has_emr_job(session: AwsSession, record: LaunchRecord) -> bool:
    """Whether the launch's job runs or waits."""
    return any(not job.has_ended for job in emr_jobs_of(session, [record]))


def stop_emr_job(job: EmrJob) -> Call:
    """Return the request that ends a job; a cluster ends with it."""
    if job.kind == SERVERLESS:
        return Call("emr-serverless", "CancelJobRun", {"applicationId": job.place, "jobRunId": job.id})
    return Call("emr", "TerminateJobFlows", {"JobFlowIds": [job.place]})


def _job_runs(session: AwsSession, record: LaunchRecord) -> Iterator[EmrJob]:
    name = record.groups[0].name
    region = record.region
    for one in session.items(Call("emr-serverless", "ListApplications"), "applications", region):
        if one.get("name") != name or one["state"] == "TERMINATED":
            continue
        for run in job_runs_of(session, one["id"], region):
            named = {"applicationId": one["id"], "jobRunId": run["id"]}
            found = session.perform(Call("emr-serverless", "GetJobRun", named), region)["jobRun"]
            tags = read_tags(found.get("tags"))
            if tags is None or tags.run != record.run:  # the name of an application is not only ours to choose
                continue
            billed = found.get("billedResourceUtilization") or {}
            yield EmrJob(
                name=name,
                kind=SERVERLESS,
                place=one["id"],
                id=run["id"],
                state=found["state"],
                reason=found.get("stateDetails") or None,
                began_at=found.get("startedAt") or found.get("createdAt"),
                seconds=found.get("totalExecutionDurationSeconds"),
                vcpu_hours=billed.get("vCPUHour"),
                gb_hours=billed.get("memoryGBHour"),
                region=region,
                disk_gb_hours=billed.get("storageGBHour") or 0.0,
            )


def _steps(session: AwsSession, record: LaunchRecord) -> Iterator[EmrJob]:
    name = record.groups[0].name
    region = record.region
    for one in session.items(Call("emr", "ListClusters"), "Clusters", region):
        if one["Name"] != name:
            continue
        status = one["Status"]
        step = next(iter(session.items(Call("emr", "ListSteps", {"ClusterId": one["Id"]}), "Steps", region)), None)
        said = step["Status"] if step else status
        # A cluster that could not start has a step that waits for ever, and one that ended has a last word.
        if status["State"] in (*ENDED, *ENDING) and said["State"] not in ENDED:
            said = status
        times: dict[str, Any] = status.get("Timeline", {})
        began = times.get("CreationDateTime")
        ended = times.get("EndDateTime")
        seconds = round((ended - began).total_seconds()) if began and ended else None
        yield EmrJob(
            name=name,
            kind=CLUSTER,
            place=one["Id"],
            id=step["Id"] if step else "",
            state=said["State"],
            reason=_reason(said) or _reason(status),
            began_at=began,
            seconds=seconds,
            region=region,
        )


@dataclass(frozen=True)
class NodeTime:
    """One node of a cluster, as EMR tells its life."""

    type: str
    market: Market
    seconds: float


def node_times(session: AwsSession, job: EmrJob, now: datetime) -> list[NodeTime]:
    """Return the nodes that a job's cluster has had, those that were replaced included."""
    found = []
    asked = Call("emr", "ListInstances", {"ClusterId": job.place})
    for one in session.items(asked, "Instances", job.region):
        times = one.get("Status", {}).get("Timeline", {})
        began = times.get("CreationDateTime")
        if began:
            seconds = ((times.get("EndDateTime") or now) - began).total_seconds()
            found.append(NodeTime(one["InstanceType"], "spot" if one.get("Market") == "SPOT" else "on-demand", seconds))
    return found


def _reason(status: dict[str, Any]) -> str | None:
    failure = status.get("FailureDetails") or {}
    change = status.get("StateChangeReason") or {}
    words = [failure.get("Reason"), failure.get("Message"), change.get("Message"), failure.get("LogFile")]
    said = ": ".join(dict.fromkeys(str(word) for word in words if word))
    return said or None


def emr_log_folder(record: LaunchRecord) -> str:
    """Return the folder of the store in which EMR keeps the logs of a launch."""
    return f"{launch_folder(record)}/logs"


def emr_log_lines(store: Store, record: LaunchRecord, job: EmrJob) -> list[str]:
    """Return what the driver wrote, as far as EMR has copied it to the store: it does so every few minutes."""
    folder = emr_log_folder(record)
    if job.kind == SERVERLESS:
        prefix = f"{folder}/applications/{job.place}/jobs/{job.id}/"
        wanted = [f"SPARK_DRIVER/{name}.gz" for name in LOG_NAMES]
    else:
        prefix = f"{folder}/{job.place}/steps/{job.id}/"
        wanted = [f"{name}.gz" for name in LOG_NAMES]
    keys = sorted(stat.key for stat in store.list(prefix))
    lines: list[str] = []
    for end in wanted:  # attempts lie in folders of their own, in order
        for key in keys:
            if key.endswith(f"/{end}"):
                lines += gzip.decompress(store.read(key)).decode(errors="replace").splitlines()
    return lines
