"""The EMR jobs of a run: beside its status, their logs, their end and what they cost."""

from __future__ import annotations

from collections.abc import Sequence

from ..cloud import (
    AwsSession,
    Call,
    EmrJob,
    LaunchRecord,
    emr_jobs_of,
    emr_log_lines,
    launches_of,
    open_session,
    render_calls,
    stop_emr_job,
)
from ..config import Config, SkytrainError, format_seconds
from ..planning import serverless_price
from ..runs import Reporter
from ..storage import open_store
from .launch_targets.base import JobLog
from .stop import PlannedStop, StopResult

EMR_TARGETS = ("emr-serverless", "emr")
HOW_LONG = "EMR copies logs to the store every few minutes"


def run_emr_jobs(config: Config, run: str, session: AwsSession | None = None) -> list[EmrJob]:
    """The jobs of a run on EMR, newest first."""
    launches = _launches(config, run)
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


def job_usd(config: Config, run: str, job: EmrJob) -> float | None:
    """What a job cost: of EMR Serverless by the billed hours, of a cluster by its time and all its nodes."""
    if job.vcpu_hours is not None and job.gb_hours is not None and job.region:
        price = serverless_price(job.region)
        return job.vcpu_hours * price.usd_per_vcpu_hour + job.gb_hours * price.usd_per_gb_hour
    if job.seconds is None or job.kind != "emr":
        return None
    for record in _launches(config, run):
        for group in record.groups:
            if group.name == job.name:
                return group.nodes * group.usd_per_hour * job.seconds / 3600
    return None


def emr_stop_requests(config: Config, run: str, session: AwsSession | None = None) -> list[Call]:
    """The requests that end the jobs of a run which have not ended. Raises SkytrainError for a run that was never launched there."""
    if not _launches(config, run):
        raise SkytrainError(
            f"run {run} was not launched on EMR, so nothing was stopped\n  see: skytrain status cloud=aws"
        )
    return [stop_emr_job(job) for job in run_emr_jobs(config, run, session) if not job.has_ended]


def plan_emr_stop(config: Config, run: str) -> PlannedStop:
    """End the run's Spark jobs. Finished stages are in the store: there is nothing to save first."""
    session, calls = open_session(config.cloud.region, config.cloud.account), emr_stop_requests(config, run)

    def end(wait_seconds: float, force: bool, reporter: Reporter) -> StopResult:
        active = [job for job in run_emr_jobs(config, run, session) if not job.has_ended]
        for job in active:
            session.perform(stop_emr_job(job), job.region)
            reporter.note(f"{job.kind} job {job.name} ({job.id or job.place}) is stopped")
        text = "what it has prepared is used when it is launched again"
        if not active:
            text = "nothing to stop, it has no job on EMR that runs"
        return StopResult(f"{run}: {text}", {"run": run, "stopped_jobs": len(active)})

    return PlannedStop(lambda: render_calls(calls), end, f"Stop {run}?" if calls else None, session)


def emr_log(config: Config, run: str, lines: int | None) -> JobLog:
    """The end of what the driver of a run's newest job wrote."""
    launches, session = _launches(config, run), open_session(config.cloud.region, config.cloud.account)
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


def _launches(config: Config, run: str) -> list[LaunchRecord]:
    return [record for record in launches_of(open_store(config.store), run) if record.target in EMR_TARGETS]
