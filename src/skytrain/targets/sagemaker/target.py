"""Training jobs of SageMaker."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...aws import AwsSession, open_session, render_calls
from ...config import EXIT_CODES, INTERRUPTED, UNCOMMITTED, Config, SkytrainError, format_seconds, plural, variable
from ...jobs import address_of
from ...planning import Seller, load_catalog
from ...runs import LaunchRecord, Reporter, launches_of
from ...storage import open_store
from ..base import JobLog, LaunchRequest, LaunchTarget, ReadyJob, RunJobs, SchedulerJob
from ..checks import CHECKS, Check, Preflight
from ..jobs import own_launches
from ..plans import PlannedJob, planned_job
from ..run_status import find_status
from ..stopping import PlannedStop, stop_with_jobs
from .checks import training_job_checks
from .jobs import COLUMNS, PRICES, STANDS_IN, job_log_lines, jobs_of, stop_job, training_price
from .launch import (
    SageMakerLaunch,
    in_private_subnets,
    prepare_sagemaker_launch,
    start_sagemaker_launch,
    with_recorded_image,
)

if TYPE_CHECKING:
    from ...jobs import NodeRequest

REASON_LENGTH = 1024  # of which SageMaker makes the job's FailureReason


@dataclass(frozen=True)
class SageMakerHost:
    """This container among those of its job."""

    name: str  # algo-1
    hosts: tuple[str, ...]
    address: str | None  # on the network of the job
    gpus: int | None  # as SageMaker counts them, where it says so


def read_host(root: Path) -> SageMakerHost:
    """Return this host: input/config/resourceconfig.json under `root`, or the SM_* variables of AWS's containers."""
    path = root / "input/config/resourceconfig.json"
    source = str(path)
    hosts = variable("SM_HOSTS")
    current = variable("SM_CURRENT_HOST")
    try:
        described: dict[str, Any]
        if path.exists():
            described = json.loads(path.read_text())
        elif hosts is not None and current is not None:
            source = "SM_HOSTS"
            described = {"hosts": json.loads(hosts), "current_host": current}
        else:
            raise SkytrainError(
                f"{path} does not exist, and SM_HOSTS is not set: this is not a container of a SageMaker training job"
            )
        name = str(described["current_host"])
        names = tuple(sorted(map(str, described["hosts"])))
        interface = described.get("network_interface_name") or variable("SM_NETWORK_INTERFACE_NAME")
        if name not in names:
            raise SkytrainError(f"{source}: this host, {name}, is not among the hosts {', '.join(names)}")
    except SkytrainError:  # a ValueError too
        raise
    except KeyError as error:
        raise SkytrainError(f"{source} is not what SageMaker writes: {error} is missing") from None
    except (AttributeError, TypeError, ValueError) as error:
        raise SkytrainError(f"{source} is not what SageMaker writes: {error}") from None
    gpus = variable("SM_NUM_GPUS") or ""
    return SageMakerHost(
        name, names, address_of(interface) if interface else None, int(gpus) if gpus.isdigit() else None
    )


def write_failure(root: Path, reason: str) -> None:
    """Tell SageMaker why this container fails, in one line. A user without privileges may not be allowed to."""
    path = root / "output/failure"
    with contextlib.suppress(PermissionError):  # the reason is in the log too
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(" ".join(reason.split())[:REASON_LENGTH])


NO_FAILURES = {EXIT_CODES[cause] for cause in ("done", INTERRUPTED, UNCOMMITTED)}
EC2_PRICE = "the price is EC2's on demand; SageMaker's is higher, and a launch asks for it: skytrain catalog refresh"
ONE_KIND = "a training job has one kind of machine: the plan's fallbacks are not used"


SELLER = Seller(
    name="sagemaker",
    title="SageMaker",
    price=training_price,
    has_prices=lambda catalog: bool(catalog.of_services.get(PRICES.name)),
    spot_priced=False,
    machine_prefix="ml.",
    quota="{nodes} of SageMaker's own",
    unsold="SageMaker's prices are not known here; fetch them: skytrain catalog refresh",
)


class SageMakerLauncher(LaunchTarget):
    """Creates a training job; SageMaker starts the containers, which run the node agent."""

    name = "sagemaker"
    title = SELLER.title
    seller = SELLER
    service_prices = PRICES
    priced: str | None = SELLER.name

    def prepare(self, request: LaunchRequest) -> ReadyJob:
        composed, plan = planned_job(request, SELLER.name)  # the job is metered by the Pricing API's price
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
            requests=render_calls(launch.given(request.files()).calls),
            summary=_summary(launch),
            start=start,
            session=launch.session,
            usd_per_hour=launch.usd_per_hour,
            notes=[*([ONE_KIND] if plan.offers[1:] else []), *_price_notes(preflight, launch)],
            next_arguments=["cloud=sagemaker"],
        )

    def doctor_checks(self, preflight: Preflight) -> tuple[list[Check], Preflight]:
        here = [one for one in CHECKS if one.group != "AWS" and one.name != "store"]
        try:
            config = with_recorded_image(preflight.config)
        except SkytrainError:  # the check of the store says why
            config = preflight.config
        checks = [*here, *training_job_checks(planned=preflight.plan is not None)]
        return checks, replace(preflight, config=in_private_subnets(config))

    def run_jobs(self, config: Config, run: str | None) -> RunJobs:
        return RunJobs(_training_jobs(config, run) if run else [], COLUMNS)

    def is_live(self, session: AwsSession, record: LaunchRecord) -> bool:
        return any(not job.has_ended for job in jobs_of(session, [record]))

    def job_log(self, config: Config, run: str, lines: int | None) -> JobLog:
        """Return the end of what the containers of a run's newest job wrote, from CloudWatch."""
        session = _session(config)
        jobs = _training_jobs(config, run)
        if not jobs:
            raise SkytrainError(f"run {run} has neither a log in the store nor a training job in {session.region}")
        job = jobs[0]
        reason = f": {job.reason}" if job.reason else ""
        nothing = f"{job.name}: {job.state}, {job.facts['phase']}{reason}; its containers wrote nothing"
        return JobLog(job_log_lines(session, job, lines) or [nothing], job.has_ended)

    def plan_stop(self, config: Config, run: str, tell: Callable[[str], None]) -> PlannedStop:
        session = _session(config)
        active = _active_jobs(config, run)
        calls = [stop_job(job.name) for job in active]
        planned = stop_with_jobs(
            config,
            run,
            lambda: _active_jobs(config, run),
            end=lambda job: session.perform(stop_job(job.name)),
            ended="stopped",
        )
        planned = replace(planned, requests=lambda: render_calls(calls))
        if not active:
            return planned
        return replace(
            planned,
            question=f"Stop {run} and {plural(len(active), 'training job')}?",
            session=session,
            usd_per_hour=_usd_per_hour(config, run),
        )

    def take_part(self, config: Config, request: NodeRequest, run: Callable[[Config, NodeRequest], int]) -> int:
        """Take part as a host of a training job, which is told why if that fails."""
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
    own = offer.target == SELLER.name and STANDS_IN not in offer.price_source
    whose = f"the plan's ${offer.cost.usd:.2f} is {'SageMaker' if own else 'EC2'}'s"
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


def _price_notes(preflight: Preflight, launch: SageMakerLaunch) -> list[str]:
    """Return what a preview says of a price that is not SageMaker's: a launch asks the Pricing API."""
    asked = launch.job.cloud.sagemaker.usd_per_hour is not None or SELLER.has_prices(load_catalog())
    return [] if asked or not preflight.preview else [EC2_PRICE]


def _training_jobs(config: Config, run: str) -> list[SchedulerJob]:
    """Return the training jobs of a run, newest first."""
    launches = [record for record in launches_of(open_store(config.store), run) if record.target == "sagemaker"]
    launches = own_launches(launches, config.cloud.project)
    return jobs_of(_session(config), launches) if launches else []


def _session(config: Config) -> AwsSession:
    return open_session(config.cloud.region, config.cloud.account)


def _usd_per_hour(config: Config, run: str) -> float:
    """Return what the newest launch of a run costs while its job runs."""
    groups = launches_of(open_store(config.store), run)[-1].groups
    return sum(group.nodes * group.usd_per_hour for group in groups)


def _active_jobs(config: Config, run: str) -> list[SchedulerJob]:
    return [job for job in _training_jobs(config, run) if not job.has_ended]


def _failure_reason(config: Config, run: str, exit_code: int) -> str | None:
    """Return why this host's agent has failed, as the run recorded it; None if it has not, or nothing was recorded."""
    if exit_code in NO_FAILURES:
        return None
    try:
        status = find_status(open_store(config.store), run)
    except SkytrainError:  # the run never began, or the store does not answer
        return None
    reason = status.reason or status.cause
    return f"{reason} (exit code {exit_code})" if reason else None
