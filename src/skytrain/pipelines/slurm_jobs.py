"""The Slurm jobs of a run: shown beside its status, ended after its stop, and their logs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..cloud import AUTO_RESUME, SlurmJob, cancel_jobs, slurm_jobs
from ..config import Config, SkytrainError
from ..runs import Reporter
from .status import find_status
from .stop import StoppedRun, stop


def active_jobs(run: str) -> list[SlurmJob]:
    return [job for job in slurm_jobs(run) if not job.has_ended]


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


def resiliency_lines(jobs: Sequence[SlurmJob], most: int = 5) -> list[str]:
    """The last lines that HyperPod's resiliency wrote into the log of the newest job: faulty nodes, replacements, restarts."""
    if not jobs or jobs[0].log is None or not (path := Path(jobs[0].log)).exists():
        return []
    return [line.strip() for line in path.read_text(errors="replace").splitlines() if AUTO_RESUME in line][-most:]


def stop_slurm_run(config: Config, run: str, wait_seconds: float, force: bool, reporter: Reporter) -> StoppedRun | None:
    """Let a run save and stop, then cancel its jobs. None: it had not begun to train."""
    from ..storage import open_store

    jobs = active_jobs(run)
    pending = bool(jobs) and all(job.state == "PENDING" for job in jobs)
    try:
        find_status(open_store(config.store), run)
    except SkytrainError:
        if not jobs:
            raise
        stopped = None
    else:
        stopped = None if pending else stop(config, run, wait_seconds, reporter)
    if stopped is None or force or not stopped.may_be_saving:
        left = active_jobs(run)
        cancel_jobs(left)
        for job in left:
            reporter.note(f"job {job.id} is cancelled")
    return stopped


def job_log(run: str, lines: int | None) -> str:
    """The end of what the newest job of a run wrote: its batch script, and its agents."""
    for job in slurm_jobs(run):
        if job.log is not None and (path := Path(job.log)).exists():
            text = path.read_text(errors="replace").splitlines()
            return "\n".join(text[-lines:] if lines else text)
    raise SkytrainError(f"run {run} has neither a log in the store nor a job of Slurm that has begun")
