"""The training jobs of runs, as SageMaker describes them, their quotas, prices and logs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from ...aws import AwsSession, Call, CloudError, stream_lines
from ...config import format_seconds
from ...planning import Catalog, Market, Price, ServicePrices
from ...runs import LaunchRecord
from ..base import Columns, Phase, SchedulerJob, ran

LOG_GROUP = "/aws/sagemaker/TrainingJobs"
PRICING_REGION = "us-east-1"  # one of the few regions that answer
ACTIVE = ("InProgress", "Stopping")
MISSING = "ValidationException"  # DescribeTrainingJob of a job that does not exist


def training_job(session: AwsSession, name: str, region: str | None = None) -> dict[str, Any] | None:
    """Return the job as SageMaker describes it; None if SageMaker does not know it."""
    try:
        return session.perform(Call("sagemaker", "DescribeTrainingJob", {"TrainingJobName": name}), region)
    except CloudError as error:
        if error.code in (MISSING, "ResourceNotFound"):
            return None
        raise


def jobs_of(session: AwsSession, launches: Sequence[LaunchRecord]) -> list[SchedulerJob]:
    """Return the jobs of these launches, newest first."""
    named = [
        (group.name, record.region) for record in launches if record.target == "sagemaker" for group in record.groups
    ]
    described = [(name, training_job(session, name, region)) for name, region in reversed(named)]
    return [_job(name, job) for name, job in described if job is not None]


def billed_usd(session: AwsSession, launches: Sequence[LaunchRecord]) -> float:
    """Return what SageMaker bills for the jobs of these launches: from their start, and agents count from theirs."""
    prices = {group.name: group.nodes * group.usd_per_hour for record in launches for group in record.groups}
    return sum((job.facts["billed_seconds"] or 0.0) * prices[job.name] / 3600 for job in jobs_of(session, launches))


def _job(name: str, described: dict[str, Any]) -> SchedulerJob:
    """Return a training job; managed spot bills fewer seconds than it ran, at the price on demand."""
    state = described["TrainingJobStatus"]
    resources = described["ResourceConfig"]
    spot = bool(described.get("EnableManagedSpotTraining"))
    facts = {
        "name": name,
        "state": state,
        "phase": described["SecondaryStatus"],  # Starting, Downloading, Training, Interrupted, ...
        "instance_type": resources.get("InstanceType", ""),
        "nodes": resources.get("InstanceCount", 0),
        "spot": spot,
        "began_at": described.get("TrainingStartTime"),
        "seconds": described.get("TrainingTimeInSeconds"),
        "billed_seconds": described.get("BillableTimeInSeconds"),  # of each machine
        "reason": described.get("FailureReason") or None,
    }
    return SchedulerJob(
        id=name,
        name=name,
        state=state,
        phase=_phase(state, began=facts["began_at"] is not None),
        hosts=f"{facts['nodes']} x {facts['instance_type']}",
        reason=facts["reason"],
        began_at=facts["began_at"],
        ended_at=described.get("TrainingEndTime"),
        seconds=facts["seconds"],
        log=f"{name}/",
        facts=facts,
    )


def _phase(state: str, *, began: bool) -> Phase:
    if state not in ACTIVE:
        return "ended"
    if not began:
        return "waiting"
    return "ending" if state == "Stopping" else "running"


def _billed(job: SchedulerJob) -> str:
    seconds = job.facts["billed_seconds"]
    return "-" if seconds is None else format_seconds(seconds)


COLUMNS: Columns = {
    "JOB": lambda job: job.name,
    "STATE": lambda job: job.state,
    "PHASE": lambda job: str(job.facts["phase"]),
    "MACHINES": lambda job: job.hosts,
    "MARKET": lambda job: "spot" if job.facts["spot"] else "on demand",
    "RAN": ran,
    "BILLED": _billed,
    "REASON": lambda job: job.reason or "-",
}


def stop_job(name: str) -> Call:
    """Return the request that ends a job."""
    return Call("sagemaker", "StopTrainingJob", {"TrainingJobName": name})


def used_instances(session: AwsSession, instance_type: str, spot: bool) -> int:
    """Return how many machines of this type (ml.*) the account's training jobs use now."""
    running = Call("sagemaker", "ListTrainingJobs", {"StatusEquals": "InProgress"})
    names = [one["TrainingJobName"] for one in session.items(running, "TrainingJobSummaries")]
    jobs = [_job(name, described) for name in names if (described := training_job(session, name)) is not None]
    return sum(
        job.facts["nodes"]
        for job in jobs
        if not job.has_ended and (job.facts["instance_type"], job.facts["spot"]) == (instance_type, spot)
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
    quotas: dict[str, int] = {}
    for operation in ("ListAWSDefaultServiceQuotas", "ListServiceQuotas"):
        for one in session.items(Call("service-quotas", operation, {"ServiceCode": "sagemaker"}), "Quotas"):
            quotas[one["QuotaName"]] = int(one["Value"])
    return quotas


STANDS_IN = "EC2's on demand"  # the source of a price that is not SageMaker's own
PRICES = ServicePrices(
    name="sagemaker_prices",
    service="AmazonSageMaker",
    wanted={"component": "Training"},
    type_field="instanceName",
    prefix="ml.",
)


def training_price(catalog: Catalog, type: str, region: str, market: Market) -> Price | None:
    """Return SageMaker's price of training on ml.<type>, or None if it is not known.

    Managed spot has no published price: the price on demand, which is the most that it costs, is used instead.
    Where no price of SageMaker has been fetched, EC2's on demand stands in: no spot price of EC2 is near it.
    """
    if catalog.of_services.get(PRICES.name):
        price = catalog.service_price(PRICES.name, type, region)
        return None if price is None else replace(price, market=market)
    lower = catalog.price(type, region, "on-demand")
    return None if lower is None else replace(lower, market=market, source=f"{STANDS_IN}, {lower.source}")


def on_demand_usd(session: AwsSession, instance_type: str) -> float | None:
    """Return what an hour of a training machine (ml.*) costs on demand; None if the Pricing API names no price."""
    wanted = {PRICES.type_field: instance_type, "regionCode": session.region, **PRICES.wanted}
    filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted.items()]
    call = Call("pricing", "GetProducts", {"ServiceCode": PRICES.service, "Filters": filters})
    prices = [usd for item in session.items(call, "PriceList", PRICING_REGION) for usd in _hourly(json.loads(item))]
    return min(prices, default=None)


def _hourly(product: dict[str, Any]) -> Iterator[float]:
    for term in product["terms"].get("OnDemand", {}).values():
        for dimension in term["priceDimensions"].values():
            usd = float(dimension["pricePerUnit"]["USD"])
            if usd > 0 and dimension["unit"].lower() in ("hrs", "hour", "hours"):
                yield usd


def job_log_lines(session: AwsSession, job: SchedulerJob, lines: int | None) -> list[str]:
    """Return the last lines that the job's containers wrote to CloudWatch, each with its host."""
    assert job.log is not None
    return stream_lines(session, LOG_GROUP, job.log, lines)
