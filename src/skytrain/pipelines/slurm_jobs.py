"""The Slurm jobs of a run: shown beside its status, ended after its stop, and their logs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..cloud import AUTO_RESUME, SlurmJob, cancel_jobs, slurm_jobs
from ..config import Config, SkytrainError
from ..storage import open_store
from .launch_targets.base import JobLog
from .status import find_status
from .stop import ActiveJob


def job_rows(jobs: Sequence[SlurmJob]) -> list[tuple[str, ...]]:
    """Jobs as a table, header first."""
    rows: list[tuple[str, ...]] = [("JOB", "STATE", "NODES", "TIME", "LIMIT", "RESTARTS", "REASON")]
    for job in jobs:
        restarts = "-" if job.restarts is None else str(job.restarts)
        rows.append(
            (
                job.id,
                job.state.lower(),
                job.nodes,
                job.elapsed,
                job.limit,
                restarts,
                job.reason.replace("None", "") or "-",
            )
        )
    return rows


def preemption_lines(run: str, jobs: Sequence[SlurmJob]) -> list[str]:
    """What to do after the newest job was preempted, and not requeued."""
    if not jobs or not jobs[0].state.startswith("PREEMPTED"):
        return []
    return [
        f"job {jobs[0].id} was preempted and cancelled by its partition: launch {run} again, and it resumes from its "
        "last commit"
    ]


def resiliency_lines(jobs: Sequence[SlurmJob], most: int = 5) -> list[str]:
    """The last lines that HyperPod's resiliency wrote into the log of the newest job: faulty nodes, replacements, restarts."""
    if not jobs or jobs[0].log is None or not (path := Path(jobs[0].log)).exists():
        return []
    return [line.strip() for line in path.read_text(errors="replace").splitlines() if AUTO_RESUME in line][-most:]


def active_slurm_jobs(config: Config, run: str) -> list[ActiveJob]:
    """The jobs of a run that `stop` cancels. One that the store does not know has nothing to save."""
    jobs = [job for job in slurm_jobs(run) if not job.has_ended]
    try:
        find_status(open_store(config.store), run)
    except SkytrainError:
        if not jobs:
            raise
        known = False
    else:
        known = True

    def active(job: SlurmJob) -> ActiveJob:
        return ActiveJob(job.id, known and job.state != "PENDING", lambda: cancel_jobs([job]), "cancelled")

    return [active(job) for job in jobs]


def job_log(run: str, lines: int | None) -> JobLog:
    """The end of what the newest job of a run wrote: its batch script, and its agents."""
    for job in slurm_jobs(run):
        if job.log is not None and (path := Path(job.log)).exists():
            text = path.read_text(errors="replace").splitlines()
            return JobLog(text[-lines:] if lines else text, job.has_ended)
    raise SkytrainError(f"run {run} has neither a log in the store nor a job of Slurm that has begun")
