"""Batch jobs of a Slurm cluster, and job arrays for sweeps."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...aws import is_preview_folder
from ...config import Composed, Config, SkytrainError, format_seconds
from ...planning import JobKind
from ...runs import Reporter
from ..base import JobLog, LaunchRequest, LaunchTarget, ReadyJob, RunJobs, SchedulerJob
from ..plans import plan_words, training_plan
from ..stopping import PlannedStop, stop_with_jobs
from .array import array_tasks, prepare_sweep_array, stop_tasks, submit_array
from .jobs import (
    COLUMNS,
    COLUMNS_OF_ALL_RUNS,
    SlurmError,
    SlurmMachines,
    cancel_jobs,
    jobs_of_all_runs,
    slurm_jobs,
)
from .launch import SlurmLaunch, prepare_slurm_launch, start_slurm_launch
from .requests import AUTO_RESUME

if TYPE_CHECKING:
    from ...jobs import NodeRequest, RentedMachines


class SlurmLauncher(LaunchTarget):
    """Submits a batch script, which starts one node agent on each node and requeues itself until the run is over."""

    name = "slurm"
    title = "Slurm"
    jobs: tuple[JobKind, ...] = ("train", "tune")
    size_setting = "cloud.slurm.nodes"
    shares_files = True

    def prepare(self, request: LaunchRequest) -> ReadyJob:
        if request.job == "tune":
            return _sweep(request)
        composed = _compose(request)
        launch = prepare_slurm_launch(composed, _options(request), ask=not request.dry_run)

        def start(reporter: Reporter) -> list[str]:
            return [f"submitted job {start_slurm_launch(launch, reporter)}: run {launch.script.run}"]

        return ReadyJob(
            name=launch.script.run,
            config=composed.config,
            requests=launch.script.render().rstrip("\n"),
            summary=_summary(launch),
            start=start,
            question="Submit?",
            notes=launch.notes,
            follows=False,
            next_arguments=_next_arguments(composed, request),
        )

    def run_jobs(self, config: Config, run: str | None) -> RunJobs:
        if run is None:
            try:
                return RunJobs(jobs_of_all_runs(), COLUMNS_OF_ALL_RUNS)
            except SlurmError as error:  # the runs of the store can be listed anywhere
                return RunJobs(lines=[f"jobs are not listed: {error}"])
        jobs = slurm_jobs(run)
        return RunJobs(jobs, COLUMNS, lines=[*_preemption_lines(run, jobs), *resiliency_lines(jobs)])

    def has_job(self, config: Config, run: str) -> bool:
        return bool(_active_jobs(run))

    def job_log(self, config: Config, run: str, lines: int | None) -> JobLog:
        """Return the end of what the newest job of a run wrote: its batch script, and its agents."""
        jobs = slurm_jobs(run)
        if not jobs:
            raise SkytrainError(f"run {run} has neither a log in the store nor a job of Slurm")
        job = jobs[0]
        reason = f" ({job.reason})" if job.reason else ""
        text = [f"job {job.id}: {job.state.lower()}{reason}; it has written nothing"]
        if job.log is not None and (path := Path(job.log)).exists():
            text = path.read_text(errors="replace").splitlines()
        return JobLog(text[-lines:] if lines else text, job.has_ended)

    def plan_stop(self, config: Config, run: str, tell: Callable[[str], None]) -> PlannedStop:
        planned = stop_with_jobs(
            config, run, lambda: _active_jobs(run), end=lambda job: cancel_jobs([job]), ended="cancelled"
        )
        commands = [["scancel", job.id] for job in _active_jobs(run)]
        return replace(planned, requests=lambda: json.dumps(commands))

    def end_sweep(self, config: Config, name: str) -> None:
        stop_tasks(array_tasks(name, Path(config.cloud.slurm.folder).absolute() / name))

    def machines(
        self, config: Config, request: NodeRequest, instance: str | None, tell: Callable[[str], None]
    ) -> RentedMachines | None:
        if not request.launch:
            return None
        return SlurmMachines(Path(config.cloud.slurm.folder).absolute() / request.run, str(request.name), tell)


TARGETS = {"slurm": SlurmLauncher()}


def _preemption_lines(run: str, jobs: Sequence[SchedulerJob]) -> list[str]:
    """Say what to do after the newest job was preempted, and not requeued."""
    if not jobs or not jobs[0].state.startswith("PREEMPTED"):
        return []
    return [
        f"job {jobs[0].id} was preempted and cancelled by its partition: launch {run} again, and it resumes from its "
        "last commit"
    ]


def resiliency_lines(jobs: Sequence[SchedulerJob], most: int = 5) -> list[str]:
    """Return the last lines that HyperPod's resiliency wrote into the log of the newest job: faulty nodes,
    replacements, restarts.
    """
    if not jobs or jobs[0].log is None or not (path := Path(jobs[0].log)).exists():
        return []
    return [line.strip() for line in path.read_text(errors="replace").splitlines() if AUTO_RESUME in line][-most:]


def _active_jobs(run: str) -> list[SchedulerJob]:
    return [job for job in slurm_jobs(run) if not job.has_ended]


def _options(request: LaunchRequest) -> list[str]:
    return [word for folder in _folders(request) for word in ("--config-dir", str(folder.absolute()))]


def _folders(request: LaunchRequest) -> list[Path]:
    """Return the user's folders: the placeholders of an AWS account are of no use on a cluster."""
    return [folder for folder in request.folders if not is_preview_folder(folder)]


def _next_arguments(composed: Composed, request: LaunchRequest) -> list[str]:
    """Return what makes the next commands find the same store."""
    store = [word for word in composed.overrides if word.startswith("store")]
    return ["cloud=slurm", *store, *(word for folder in _folders(request) for word in ("--config-dir", str(folder)))]


def _compose(request: LaunchRequest) -> Composed:
    """Return the configuration: a plan gives its settings, mesh, nodes and processes."""
    overrides = list(request.overrides)
    if request.plan is not None:
        plan = training_plan(request.plan)
        choice = plan.choice
        size = [f"cloud.slurm.nodes={choice.nodes}", f"cloud.slurm.processes={choice.gpus_per_node}"]
        clouds = [word for word in overrides if word.startswith("cloud=")]  # before the settings under it
        overrides = [
            *plan_words(request.plan, request.folders, request.overrides),
            *(choice.layout.overrides if choice.layout else []),
            *clouds,
            *size,
            *(word for word in overrides if word not in clouds),
        ]
    return request.compose(overrides)


def _summary(launch: SlurmLaunch) -> list[tuple[str, str]]:
    script = launch.script
    wanted = launch.script.settings
    limit = f"up to {format_seconds(wanted.time)}; it saves before that and is requeued until the run is over"
    return [
        ("run", script.run),
        ("nodes", f"{wanted.nodes} of partition {wanted.partition or '(default)'}"),
        ("each job", limit),
        ("script", str(launch.path)),
        ("store", script.store),
    ]


def _sweep(request: LaunchRequest) -> ReadyJob:
    """Prepare a job array whose tasks share a sweep."""
    composed = request.compose(request.overrides)
    name, array = prepare_sweep_array(composed, _options(request))
    return ReadyJob(
        name=name,
        config=composed.config,
        requests=array.render().rstrip("\n"),
        summary=[("sweep", name), ("tasks", str(len(array.commands))), ("folder", str(array.folder))],
        start=lambda reporter: [f"submitted job array {submit_array(array)}: sweep {name}"],
        question="Submit?",
        follows=False,
        next_arguments=_next_arguments(composed, request),
    )
