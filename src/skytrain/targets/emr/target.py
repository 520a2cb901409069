"""Spark jobs on a cluster of EMR, and on EMR Serverless: they prepare data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from ...aws import AwsSession, render_calls
from ...config import Config, format_seconds
from ...planning import Catalog, CorpusWork, JobKind, PreparationOption
from ...runs import LaunchRecord, Reporter
from ..base import JobLog, LaunchRequest, LaunchTarget, ReadyJob, RunJobs, SchedulerJob
from ..checks import CHECKS, Check, Preflight
from ..plans import compose_without_plan
from ..stopping import PlannedStop
from . import NAMES
from .checks import spark_job_checks
from .costs import FEES, cluster_options, fee_note, serverless_note, serverless_options
from .jobs import COLUMNS, SERVERLESS, emr_costs, emr_jobs_of, emr_log, plan_emr_stop, run_emr_jobs
from .launch import EmrLaunch, prepare_emr_launch, start_emr_launch


class EmrLauncher(LaunchTarget):
    """Starts the Spark job. What it has finished is in the store: the same command resumes it."""

    title = "EMR"
    jobs: tuple[JobKind, ...] = ("prepare",)
    bills_jobs = True

    def __init__(self, name: str) -> None:
        self.name = name
        self.service_prices = None if name == SERVERLESS else FEES

    def prepare(self, request: LaunchRequest) -> ReadyJob:
        composed = compose_without_plan(request)
        launch = prepare_emr_launch(composed, Preflight(composed.config), None, request.tell)

        def start(reporter: Reporter) -> list[str]:
            start_emr_launch(launch, request.files(), reporter)
            return [
                f"launched {launch.run}: {launch.job.name}",
                f"the tokens will be in {launch.store.url(f'tokens/{composed.config.data.name}')}",
                "The job needs neither this terminal nor this computer. If it fails, the same command resumes it.",
            ]

        return ReadyJob(
            name=launch.run,
            config=composed.config,
            requests=render_calls(launch.calls(request.files())),
            summary=_summary(launch),
            start=start,
            session=launch.session,
            usd_per_hour=launch.usd_per_hour,
            follows=False,
            next_arguments=[f"cloud={self.name}"],
            next_options=False,
        )

    def preparation_options(
        self, config: Config, work: CorpusWork, catalog: Catalog, region: str, deadline_hours: float
    ) -> tuple[list[PreparationOption], list[str]]:
        wanted = config.cloud.emr
        if self.name == SERVERLESS:
            return serverless_options(work, wanted, region, deadline_hours), [serverless_note(region)]
        return cluster_options(work, wanted, catalog, region, deadline_hours), [fee_note(catalog, region)]

    def doctor_checks(self, preflight: Preflight) -> tuple[Sequence[Check], Preflight]:
        if preflight.config.cloud.project is None:
            return super().doctor_checks(preflight)
        here = [one for one in CHECKS if one.group != "AWS" and one.name != "store"]
        return [*here, *spark_job_checks()], preflight

    def run_jobs(self, config: Config, run: str | None) -> RunJobs:
        return RunJobs(run_emr_jobs(config, run) if run else [], COLUMNS)

    def is_live(self, session: AwsSession, record: LaunchRecord) -> bool:
        return any(not job.has_ended for job in emr_jobs_of(session, [record]))

    def job_costs(self, session: AwsSession, launches: Sequence[LaunchRecord], now: datetime) -> list[SchedulerJob]:
        return emr_costs(session, launches, now)

    def job_log(self, config: Config, run: str, lines: int | None) -> JobLog:
        return emr_log(config, run, lines)

    def plan_stop(self, config: Config, run: str, tell: Callable[[str], None]) -> PlannedStop:
        return plan_emr_stop(config, run)


TARGETS = {name: EmrLauncher(name) for name in NAMES}


def _summary(launch: EmrLaunch) -> list[tuple[str, str]]:
    job = launch.job
    cost = launch.estimate
    assumed = ", 3000 bytes a document assumed" if launch.documents_assumed else ""
    fee = f", of which ${cost.fee_usd:.2f} are EMR's" if not launch.serverless else ""
    limit = f"{format_seconds(job.timeout_seconds)} each of {job.attempts} attempts"
    return [
        ("run", launch.run),
        ("job", f"{job.name}, {job.settings.release}"),
        ("machines", cost.machines),
        ("price", f"${launch.usd_per_hour:.2f} an hour{'' if launch.serverless else ', spot at its mean price'}"),
        ("takes", f"{cost.hours:.1f} h (p90 {cost.hours_p90:.1f} h{assumed})"),
        ("costs", f"${cost.usd:.2f} (p90 ${cost.usd_p90:.2f}){fee}"),
        ("limit", f"{limit}, at most ${launch.most_usd:.2f}"),
        ("store", launch.store.root),
    ]
