"""The SageMaker jobs of a run: shown beside its status, ended after its stop, their logs and the reasons they failed."""

from __future__ import annotations

from collections.abc import Sequence

from ..cloud import AwsSession, SageMakerJob, job_log_lines, jobs_of, launches_of, open_session, stop_job
from ..config import Config, SkytrainError, format_seconds
from ..runs import EXIT_CODES, INTERRUPTED, UNCOMMITTED
from ..storage import open_store
from .launch_targets.base import JobLog
from .status import find_status
from .stop import ActiveJob

NO_FAILURES = {EXIT_CODES[cause] for cause in ("done", INTERRUPTED, UNCOMMITTED)}


def run_jobs(config: Config, run: str, session: AwsSession | None = None) -> list[SageMakerJob]:
    """The training jobs of a run, newest first."""
    launches = launches_of(open_store(config.store), run)
    if not launches:
        return []
    return jobs_of(session or open_session(config.cloud.region, config.cloud.account), launches)


def training_job_rows(jobs: Sequence[SageMakerJob]) -> list[tuple[str, ...]]:
    """Jobs as a table, header first."""
    rows: list[tuple[str, ...]] = [("JOB", "STATE", "PHASE", "MACHINES", "MARKET", "RAN", "BILLED", "REASON")]
    for job in jobs:
        ran, billed = (
            "-" if seconds is None else format_seconds(seconds) for seconds in (job.seconds, job.billed_seconds)
        )
        market = "spot" if job.spot else "on demand"
        machines = f"{job.nodes} x {job.instance_type}"
        rows.append((job.name, job.state, job.phase, machines, market, ran, billed, job.reason or "-"))
    return rows


def active_usd_per_hour(config: Config, run: str) -> float:
    """What the newest launch of a run costs while its job runs."""
    groups = launches_of(open_store(config.store), run)[-1].groups
    return sum(group.nodes * group.usd_per_hour for group in groups)


def active_training_jobs(config: Config, run: str) -> list[ActiveJob]:
    """The jobs of a run that `stop` stops."""
    session = open_session(config.cloud.region, config.cloud.account)

    def active(job: SageMakerJob) -> ActiveJob:
        return ActiveJob(job.name, job.began_at is not None, lambda: session.perform(stop_job(job.name)), "stopped")

    return [active(job) for job in run_jobs(config, run, session) if not job.has_ended]


def sagemaker_log(config: Config, run: str, lines: int | None) -> JobLog:
    """The end of what the containers of a run's newest job wrote, from CloudWatch."""
    session = open_session(config.cloud.region, config.cloud.account)
    jobs = run_jobs(config, run, session)
    if not jobs:
        raise SkytrainError(f"run {run} has neither a log in the store nor a training job in {session.region}")
    found = job_log_lines(session, jobs[0].name, lines)
    reason = f": {jobs[0].reason}" if jobs[0].reason else ""
    nothing = f"{jobs[0].name}: {jobs[0].state}, {jobs[0].phase}{reason}; its containers wrote nothing"
    return JobLog(found or [nothing], jobs[0].has_ended)


def failure_reason(config: Config, run: str, exit_code: int) -> str | None:
    """Why this host's agent has failed, as the run recorded it; None if it has not, or the run recorded nothing."""
    if exit_code in NO_FAILURES:
        return None
    try:
        found = find_status(open_store(config.store), run)
    except SkytrainError:  # the run never began, or the store does not answer
        return None
    reason = found.reason or found.cause
    return f"{reason} (exit code {exit_code})" if reason else None
