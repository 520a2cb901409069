"""Training jobs of SageMaker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...cloud import Preflight, open_session, read_host, render_calls, stop_job, write_failure
from ...config import Config, SkytrainError, format_seconds, plural
from ...planning import Target, load_catalog
from ...runs import Reporter
from ..launch import PlannedJob
from ..launch_plan import planned_job
from ..launch_sagemaker import SageMakerLaunch, prepare_sagemaker_launch, start_sagemaker_launch
from ..sagemaker_jobs import (
    active_training_jobs,
    active_usd_per_hour,
    failure_reason,
    run_jobs,
    sagemaker_log,
    training_job_rows,
)
from ..stop import PlannedStop, stop_with_jobs
from .base import JobLog, LaunchRequest, LaunchTarget, ReadyJob, RunJobs

if TYPE_CHECKING:
    from ...jobs import NodeRequest

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
            launch.run,
            composed.config,
            render_calls([launch.call]),
            _summary(launch),
            start,
            session=launch.session,
            usd_per_hour=launch.usd_per_hour,
            notes=[ONE_KIND] if plan.offers[1:] else [],
            next_words=["cloud=sagemaker"],
        )

    def run_jobs(self, config: Config, run: str | None) -> RunJobs:
        jobs = run_jobs(config, run) if run else []
        return RunJobs([training_job_rows(jobs)] if jobs else [], [asdict(job) for job in jobs])

    def job_log(self, config: Config, run: str, lines: int | None) -> JobLog:
        return sagemaker_log(config, run, lines)

    def plan_stop(self, config: Config, run: str, tell: Callable[[str], None]) -> PlannedStop:
        active = active_training_jobs(config, run)
        calls = [stop_job(job.name) for job in active]
        planned = stop_with_jobs(config, run, lambda: active_training_jobs(config, run))
        planned = replace(planned, requests=lambda: render_calls(calls))
        if not active:
            return planned
        return replace(
            planned,
            question=f"Stop {run} and {plural(len(active), 'training job')}?",
            session=open_session(config.cloud.region, config.cloud.account),
            usd_per_hour=active_usd_per_hour(config, run),
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
            if reason := failure_reason(config, request.run, code):
                write_failure(root, reason)
        except SkytrainError as error:
            write_failure(root, str(error))
            raise
        return code


TARGET = SageMakerLauncher()


def _summary(launch: SageMakerLaunch) -> list[tuple[str, str]]:
    job, offer = launch.job, launch.job.offer
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
