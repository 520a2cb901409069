"""The EMR jobs of a run: beside its status, their logs, their end and what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from ...aws import AwsSession, Call, open_session, render_calls
from ...config import Config, SkytrainError, format_seconds
from ...planning import load_catalog, node_price, serverless_price
from ...runs import LaunchRecord, Reporter, launches_of
from ...storage import open_store
from ..base import JobLog
from ..stopping import PlannedStop, StopResult
from .jobs import EmrJob, emr_jobs_of, emr_log_lines, node_times, stop_emr_job

EMR_TARGETS = ("emr-serverless", "emr")
HOW_LONG = "EMR copies logs to the store every few minutes"


def run_emr_jobs(config: Config, run: str, session: AwsSession | None = None) -> list[EmrJob]:
    """The jobs of a run on EMR, newest first."""
    launches = emr_launches(config, run)
    if not launches:
        return []
    return emr_jobs_of(session or open_session(config.cloud.region, config.cloud.account), launches)


def emr_job_rows(config: Config, run: str, jobs: Sequence[EmrJob]) -> list[tuple[str, ...]]:
    """Jobs as a table, header first."""
    rows: list[tuple[str, ...]] = [("JOB", "WHERE", "ID", "STATE", "RAN", "DOLLARS", "REASON")]
    for job in jobs:
        ran = "-" if job.seconds is None else format_seconds(job.seconds)
        usd = job_usd(config, run, job)
        dollars = "-" if usd is None else f"{usd:.2f}"
        rows.append((job.name, f"{job.kind} {job.place}", job.id or "-", job.state, ran, dollars, job.reason or "-"))
    return rows


def billed_usd(job: EmrJob) -> float | None:
    """What EMR Serverless has billed for a job, by its own count of hours; None before it says so."""
    if job.vcpu_hours is None or job.gb_hours is None or not job.region:
        return None
    price = serverless_price(job.region)
    disk = job.disk_gb_hours * price.usd_per_disk_gb_hour
    return job.vcpu_hours * price.usd_per_vcpu_hour + job.gb_hours * price.usd_per_gb_hour + disk


@dataclass(frozen=True)
class JobCost:
    """What a job on EMR has cost, and what that figure rests on."""

    name: str
    where: str
    state: str
    seconds: int | None
    usd: float | None
    basis: str


def emr_costs(session: AwsSession, launches: list[LaunchRecord], now: datetime) -> list[JobCost]:
    """The costs of a run's jobs: hours that EMR Serverless billed, or hours of each node of a cluster and EMR's fee."""
    found = []
    for job in emr_jobs_of(session, launches):
        usd, basis = _measured(session, job, now)
        place = f"{job.kind} {job.place}"
        found.append(JobCost(name=job.name, where=place, state=job.state, seconds=job.seconds, usd=usd, basis=basis))
    return found


def _measured(session: AwsSession, job: EmrJob, now: datetime) -> tuple[float | None, str]:
    if job.kind != "emr":
        billed = billed_usd(job)
        if billed is None:
            return None, "EMR Serverless tells what it billed when the job is over"
        return billed, f"billed: {job.vcpu_hours:.2f} vCPU-hours, {job.gb_hours:.2f} GB-hours"
    catalog = load_catalog()
    usd = 0.0
    fee = 0.0
    hours = 0.0
    for node in node_times(session, job, now):
        price = node_price(node.type, str(job.region), node.market, catalog)
        if price is None:
            return None, f"the catalogue has no price for {node.type} ({node.market}) in {job.region}"
        usd, fee = usd + price.usd * node.seconds / 3600, fee + price.fee * node.seconds / 3600
        hours += node.seconds / 3600
    return usd, f"{hours:.2f} node-hours at the catalogue's prices, without disks; ${fee:.2f} are EMR's"


def job_usd(config: Config, run: str, job: EmrJob) -> float | None:
    """What a job cost: of EMR Serverless by the billed hours, of a cluster by its time and all its nodes."""
    billed = billed_usd(job)
    if billed is not None:
        return billed
    if job.seconds is None or job.kind != "emr":
        return None
    for record in emr_launches(config, run):
        for group in record.groups:
            if group.name == job.name:
                return group.nodes * group.usd_per_hour * job.seconds / 3600
    return None


def emr_stop_requests(config: Config, run: str, session: AwsSession | None = None) -> list[Call]:
    """The requests that end the jobs of a run which have not ended. Raises SkytrainError for a run that was never launched there."""
    if not emr_launches(config, run):
        raise SkytrainError(
            f"run {run} was not launched on EMR, so nothing was stopped\n  see: skytrain status cloud=aws"
        )
    jobs = run_emr_jobs(config, run, session)
    return [stop_emr_job(job) for job in jobs if not (job.has_ended or job.is_ending)]


def plan_emr_stop(config: Config, run: str) -> PlannedStop:
    """End the run's Spark jobs. Finished stages are in the store: there is nothing to save first."""
    session, calls = open_session(config.cloud.region, config.cloud.account), emr_stop_requests(config, run)

    def end(wait_seconds: float, force: bool, reporter: Reporter) -> StopResult:
        jobs = run_emr_jobs(config, run, session)
        ending = [job for job in jobs if job.is_ending]
        active = [job for job in jobs if not (job.has_ended or job.is_ending)]
        for job in ending:
            reporter.note(f"{job.kind} job {job.name} ({job.id or job.place}) is being stopped already: {job.state}")
        for job in active:
            session.perform(stop_emr_job(job), job.region)
            reporter.note(f"{job.kind} job {job.name} ({job.id or job.place}) is stopped")
        text = "what it has prepared is used when it is launched again"
        if not (active or ending):
            text = "nothing to stop, it has no job on EMR that runs"
        return StopResult(f"{run}: {text}", {"run": run, "stopped_jobs": len(active), "ending_jobs": len(ending)})

    return PlannedStop(lambda: render_calls(calls), end, f"Stop {run}?" if calls else None, session)


def emr_log(config: Config, run: str, lines: int | None) -> JobLog:
    """The end of what the driver of a run's newest job wrote."""
    launches = emr_launches(config, run)
    session = open_session(config.cloud.region, config.cloud.account)
    jobs = emr_jobs_of(session, launches)
    if not jobs:
        raise SkytrainError(f"run {run} has no job on EMR in {session.region}\n  see: skytrain status cloud=aws")
    job = jobs[0]
    record = next(one for one in reversed(launches) if one.groups[0].name == job.name)
    found = emr_log_lines(open_store(config.store), record, job)
    said = f"{job.name}: {job.state}{f': {job.reason}' if job.reason else ''}"
    if not found:
        return JobLog([f"{said}; its driver has written nothing yet ({HOW_LONG})"], job.has_ended)
    return JobLog([*(found[-lines:] if lines else found), said], job.has_ended)


def emr_launches(config: Config, run: str) -> list[LaunchRecord]:
    return [record for record in launches_of(open_store(config.store), run) if record.target in EMR_TARGETS]
