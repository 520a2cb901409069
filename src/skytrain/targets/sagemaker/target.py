"""Training jobs of SageMaker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...aws import AwsSession, open_session, render_calls
from ...config import EXIT_CODES, INTERRUPTED, UNCOMMITTED, Config, SkytrainError, format_seconds, plural
from ...planning import Target, load_catalog
from ...runs import Reporter, launches_of
from ...storage import open_store
from ..base import JobLog, LaunchRequest, LaunchTarget, ReadyJob, Rows, RunJobs
from ..checks import Preflight
from ..ec2.launch import PlannedJob
from ..launch_plans import planned_job
from ..run_status import find_status
from ..stopping import ActiveJob, PlannedStop, stop_with_jobs
from .host import read_host, write_failure
from .jobs import SageMakerJob, job_log_lines, jobs_of, stop_job
from .launch import SageMakerLaunch, prepare_sagemaker_launch, start_sagemaker_launch

if TYPE_CHECKING:
    from ...jobs import NodeRequest

NO_FAILURES = {EXIT_CODES[cause] for cause in ("done", INTERRUPTED, UNCOMMITTED)}
ONE_KIND = "a training job has one kind of machine: the plan's fallbacks are not used"


class SageMakerLauncher(LaunchTarget):
    """Creates a training job; SageMaker starts the containers, which run the node agent."""

    name = "sagemaker"
    priced: Target | None = "sagemaker"

    def prepare(self, request: LaunchRequest) -> ReadyJob:
        # Without SageMaker's prices EC2's stand in for them; the job is metered by the Pricing API's.
        composed, plan = planned_job(request, "sagemaker" if load_catalog().sagemaker_prices else "ec2")
        preflight = Preflight(composed.config, plan)
        launch = prepare_sagemaker_launch(PlannedJob(composed, plan), preflight, request.tell)

        def start(reporter: Reporter) -> list[str]:
            start_sagemaker_launch(launch, request.files(), reporter)
            return [
                f"launched {launch.run}: training job {launch.job.name}",
                "The job needs neither this terminal nor this computer.",
            ]

        return ReadyJob(
            name=launch.run,
            config=composed.config,
            requests=render_calls([launch.call]),
            summary=_summary(launch),
            start=start,
            session=launch.session,
            usd_per_hour=launch.usd_per_hour,
            notes=[ONE_KIND] if plan.offers[1:] else [],
            next_words=["cloud=sagemaker"],
        )

    def run_jobs(self, config: Config, run: str | None) -> RunJobs:
        jobs = _training_jobs(config, run) if run else []
        return RunJobs([_job_rows(jobs)] if jobs else [], [asdict(job) for job in jobs])

    def job_log(self, config: Config, run: str, lines: int | None) -> JobLog:
        """The end of what the containers of a run's newest job wrote, from CloudWatch."""
        session = _session(config)
        jobs = _training_jobs(config, run)
        if not jobs:
            raise SkytrainError(f"run {run} has neither a log in the store nor a training job in {session.region}")
        found = job_log_lines(session, jobs[0].name, lines)
        reason = f": {jobs[0].reason}" if jobs[0].reason else ""
        nothing = f"{jobs[0].name}: {jobs[0].state}, {jobs[0].phase}{reason}; its containers wrote nothing"
        return JobLog(found or [nothing], jobs[0].has_ended)

    def plan_stop(self, config: Config, run: str, tell: Callable[[str], None]) -> PlannedStop:
        active = _active_jobs(config, run)
        calls = [stop_job(job.name) for job in active]
        planned = stop_with_jobs(config, run, lambda: _active_jobs(config, run))
        planned = replace(planned, requests=lambda: render_calls(calls))
        if not active:
            return planned
        return replace(
            planned,
            question=f"Stop {run} and {plural(len(active), 'training job')}?",
            session=_session(config),
            usd_per_hour=_usd_per_hour(config, run),
        )

    def take_part(self, config: Config, request: NodeRequest, run: Callable[[Config, NodeRequest], int]) -> int:
        """As a host of a training job, which is told why if that fails."""
        root = Path(config.cloud.sagemaker.root)
        try:
            host = read_host(root)
            if len(host.hosts) != request.nodes:
                raise SkytrainError(
                    f"the training job has {len(host.hosts)} hosts, and the run is planned for {request.nodes}"
                )
            if host.gpus is not None and host.gpus < request.processes and config.trainer.device != "cpu":
                raise SkytrainError(f"this host has {host.gpus} GPUs, and --processes is {request.processes}")
            code = run(config, replace(request, name=host.name, address=request.address or host.address))
            if reason := _failure_reason(config, request.run, code):
                write_failure(root, reason)
        except SkytrainError as error:
            write_failure(root, str(error))
            raise
        return code


TARGETS = {"sagemaker": SageMakerLauncher()}


def _summary(launch: SageMakerLaunch) -> list[tuple[str, str]]:
    job = launch.job
    offer = launch.job.offer
    spot = offer.market == "spot"
    most = "at most; managed spot is billed below the price on demand" if spot else "on demand"
    hours = offer.cost.hours
    whose = f"the plan's ${offer.cost.usd:.2f} is {'SageMaker' if offer.target == 'sagemaker' else 'EC2'}'s"
    return [
        ("run", launch.run),
        ("job", job.name),
        ("machines", f"{offer.nodes} x ml.{offer.instance_type} ({offer.market})"),
        ("price", f"${launch.usd_per_hour:.2f} an hour {most}"),
        ("takes", f"{hours:.1f} h (p90 {offer.cost.hours_p90:.1f} h)"),
        ("costs", f"${hours * launch.usd_per_hour:.2f} at that price; {whose}"),
        ("limit", f"{format_seconds(job.run_seconds)} of training, at most ${launch.most_usd:.2f} by then"),
        ("waits", f"up to {format_seconds(job.wait_seconds)} for machines, which costs nothing"),
        ("store", launch.store.root),
    ]


def _training_jobs(config: Config, run: str) -> list[SageMakerJob]:
    """The training jobs of a run, newest first."""
    launches = launches_of(open_store(config.store), run)
    return jobs_of(_session(config), launches) if launches else []


def _session(config: Config) -> AwsSession:
    return open_session(config.cloud.region, config.cloud.account)


def _job_rows(jobs: Sequence[SageMakerJob]) -> Rows:
    rows: Rows = [("JOB", "STATE", "PHASE", "MACHINES", "MARKET", "RAN", "BILLED", "REASON")]
    for job in jobs:
        ran, billed = (
            "-" if seconds is None else format_seconds(seconds) for seconds in (job.seconds, job.billed_seconds)
        )
        market = "spot" if job.spot else "on demand"
        machines = f"{job.nodes} x {job.instance_type}"
        rows.append((job.name, job.state, job.phase, machines, market, ran, billed, job.reason or "-"))
    return rows


def _usd_per_hour(config: Config, run: str) -> float:
    """What the newest launch of a run costs while its job runs."""
    groups = launches_of(open_store(config.store), run)[-1].groups
    return sum(group.nodes * group.usd_per_hour for group in groups)


def _active_jobs(config: Config, run: str) -> list[ActiveJob]:
    session = _session(config)

    def active(job: SageMakerJob) -> ActiveJob:
        return ActiveJob(job.name, job.began_at is not None, lambda: session.perform(stop_job(job.name)), "stopped")

    return [active(job) for job in _training_jobs(config, run) if not job.has_ended]


def _failure_reason(config: Config, run: str, exit_code: int) -> str | None:
    """Why this host's agent has failed, as the run recorded it; None if it has not, or the run recorded nothing."""
    if exit_code in NO_FAILURES:
        return None
    try:
        found = find_status(open_store(config.store), run)
    except SkytrainError:  # the run never began, or the store does not answer
        return None
    reason = found.reason or found.cause
    return f"{reason} (exit code {exit_code})" if reason else None
