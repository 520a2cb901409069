"""The training jobs of runs, as SageMaker describes them, their quotas, prices and logs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ...aws import AwsSession, Call, CloudError, stream_lines
from ...runs import LaunchRecord

LOG_GROUP = "/aws/sagemaker/TrainingJobs"
PRICING_REGION = "us-east-1"  # one of the few regions that answer
ACTIVE = ("InProgress", "Stopping")
MISSING = "ValidationException"  # DescribeTrainingJob of a job that does not exist


@dataclass(frozen=True)
class SageMakerJob:
    """One training job."""

    name: str
    state: str  # InProgress, Completed, Failed, Stopping, Stopped
    phase: str  # Starting, Downloading, Training, Interrupted, MaxWaitTimeExceeded, ...
    instance_type: str
    nodes: int
    spot: bool
    began_at: datetime | None
    seconds: int | None  # that it has run
    billed_seconds: int | None  # of each machine; spot: what the time would be at the price on demand
    reason: str | None  # of its failure

    @property
    def has_ended(self) -> bool:
        return self.state not in ACTIVE


def describe_job(session: AwsSession, name: str, region: str | None = None) -> SageMakerJob | None:
    """Return the job; None if SageMaker does not know it."""
    try:
        found = session.perform(Call("sagemaker", "DescribeTrainingJob", {"TrainingJobName": name}), region)
    except CloudError as error:
        if error.code in (MISSING, "ResourceNotFound"):
            return None
        raise
    resources = found["ResourceConfig"]
    return SageMakerJob(
        name=name,
        state=found["TrainingJobStatus"],
        phase=found["SecondaryStatus"],
        instance_type=resources.get("InstanceType", ""),
        nodes=resources.get("InstanceCount", 0),
        spot=bool(found.get("EnableManagedSpotTraining")),
        began_at=found.get("TrainingStartTime"),
        seconds=found.get("TrainingTimeInSeconds"),
        billed_seconds=found.get("BillableTimeInSeconds"),
        reason=found.get("FailureReason") or None,
    )


def jobs_of(session: AwsSession, launches: list[LaunchRecord]) -> list[SageMakerJob]:
    """Return the jobs of these launches, newest first."""
    named = [
        (group.name, record.region) for record in launches if record.target == "sagemaker" for group in record.groups
    ]
    found = [describe_job(session, name, region) for name, region in reversed(named)]
    return [job for job in found if job is not None]


def has_training_job(session: AwsSession, record: LaunchRecord) -> bool:
    """Whether the launch's job runs, or waits for machines."""
    return any(not job.has_ended for job in jobs_of(session, [record]))


def stop_job(name: str) -> Call:
    return Call("sagemaker", "StopTrainingJob", {"TrainingJobName": name})


def used_instances(session: AwsSession, instance_type: str, spot: bool) -> int:
    """Return how many machines of this type (ml.*) the account's training jobs use now."""
    running = Call("sagemaker", "ListTrainingJobs", {"StatusEquals": "InProgress"})
    names = [one["TrainingJobName"] for one in session.items(running, "TrainingJobSummaries")]
    jobs = [job for name in names if (job := describe_job(session, name)) is not None]
    return sum(
        job.nodes for job in jobs if (job.instance_type, job.spot, job.has_ended) == (instance_type, spot, False)
    )


def quota_of(session: AwsSession, name: str) -> tuple[str, int] | None:
    """Return the code and value of a SageMaker quota by its name; None if the region has none of that name."""
    for operation in ("ListServiceQuotas", "ListAWSDefaultServiceQuotas"):
        for one in session.items(Call("service-quotas", operation, {"ServiceCode": "sagemaker"}), "Quotas"):
            if one["QuotaName"] == name:
                return str(one["QuotaCode"]), int(one["Value"])
    return None


def training_quotas(session: AwsSession) -> dict[str, int]:
    """Return SageMaker's quotas by name: the account's own, and AWS's defaults where it has none."""
    found: dict[str, int] = {}
    for operation in ("ListAWSDefaultServiceQuotas", "ListServiceQuotas"):
        for one in session.items(Call("service-quotas", operation, {"ServiceCode": "sagemaker"}), "Quotas"):
            found[one["QuotaName"]] = int(one["Value"])
    return found


def on_demand_usd(session: AwsSession, instance_type: str) -> float | None:
    """Return what an hour of a training machine (ml.*) costs on demand; None if the Pricing API names no price."""
    wanted = {"instanceName": instance_type, "regionCode": session.region, "component": "Training"}
    filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted.items()]
    call = Call("pricing", "GetProducts", {"ServiceCode": "AmazonSageMaker", "Filters": filters})
    found = [usd for item in session.items(call, "PriceList", PRICING_REGION) for usd in _hourly(json.loads(item))]
    return min(found, default=None)


def _hourly(product: dict[str, Any]) -> Iterator[float]:
    for term in product["terms"].get("OnDemand", {}).values():
        for dimension in term["priceDimensions"].values():
            usd = float(dimension["pricePerUnit"]["USD"])
            if usd > 0 and dimension["unit"].lower() in ("hrs", "hour", "hours"):
                yield usd


def job_log_lines(session: AwsSession, name: str, lines: int | None) -> list[str]:
    """Return the last lines that the job's containers wrote to CloudWatch, each with its host."""
    return stream_lines(session, LOG_GROUP, f"{name}/", lines)
