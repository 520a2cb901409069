"""Jobs on EMR as AWS describes them, job runs of EMR Serverless and steps of clusters: their logs, costs and end."""

from __future__ import annotations

import gzip
import io
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from ...aws import AwsSession, Call, job_runs_of, open_session, read_tags, render_calls
from ...config import Config, SkytrainError
from ...planning import Market, load_catalog
from ...runs import LaunchRecord, Reporter, launch_folder, launches_of
from ...storage import Store, open_store, read_whole
from ..base import Columns, JobLog, Phase, SchedulerJob, ran
from ..jobs import own_launches
from ..stopping import PlannedStop, StopResult
from . import NAMES
from .costs import node_price, serverless_price

SERVERLESS = "emr-serverless"
CLUSTER = "emr"
ENDED = ("SUCCESS", "FAILED", "CANCELLED", "COMPLETED", "INTERRUPTED", "TERMINATED", "TERMINATED_WITH_ERRORS")
WELL = ("SUCCESS", "COMPLETED")
ENDING = ("CANCELLING", "CANCEL_PENDING", "TERMINATING")  # stopped already, and not over yet
WAITING = ("SUBMITTED", "PENDING", "SCHEDULED", "QUEUED", "STARTING", "BOOTSTRAPPING")
LOG_NAMES = ("stderr", "stdout")  # progress, then the result
CHUNK_BYTES = 1 << 20
LOG_CHUNKS = 64  # that are kept of a log
HOW_LONG = "EMR copies logs to the store every few minutes"
COLUMNS: Columns = {
    "JOB": lambda job: job.name,
    "WHERE": lambda job: where(job),
    "ID": lambda job: job.id or "-",
    "STATE": lambda job: job.state,
    "RAN": ran,
    "DOLLARS": lambda job: "-" if job.usd is None else f"{job.usd:.2f}",
    "REASON": lambda job: job.reason or "-",
}


def where(job: SchedulerJob) -> str:
    """Return the kind of EMR, and its application or cluster."""
    return f"{job.facts['kind']} {job.place}"


def emr_jobs_of(session: AwsSession, launches: Sequence[LaunchRecord]) -> list[SchedulerJob]:
    """Return the jobs of these launches, newest first. They are found by name, whatever answer was lost."""
    jobs: list[SchedulerJob] = []
    for record in reversed(launches):
        if record.target in NAMES:
            jobs += (_job_runs if record.target == SERVERLESS else _steps)(session, record)
    return jobs


def run_emr_jobs(config: Config, run: str, session: AwsSession | None = None) -> list[SchedulerJob]:
    """Return the jobs of a run on EMR, newest first."""
    launches = emr_launches(config, run)
    if not launches:
        return []
    return emr_jobs_of(session or open_session(config.cloud.region, config.cloud.account), launches)


def emr_launches(config: Config, run: str) -> list[LaunchRecord]:
    """Return the launches of a run on EMR, oldest first."""
    launches = [record for record in launches_of(open_store(config.store), run) if record.target in NAMES]
    return own_launches(launches, config.cloud.project)


def stop_emr_job(job: SchedulerJob) -> Call:
    """Return the request that ends a job; a cluster ends with it."""
    if job.facts["kind"] == SERVERLESS:
        return Call("emr-serverless", "CancelJobRun", {"applicationId": job.place, "jobRunId": job.id})
    return Call("emr", "TerminateJobFlows", {"JobFlowIds": [job.place]})


def _job_runs(session: AwsSession, record: LaunchRecord) -> Iterator[SchedulerJob]:
    name = record.groups[0].name
    region = record.region
    for application in session.items(Call("emr-serverless", "ListApplications"), "applications", region):
        if application.get("name") != name or application["state"] == "TERMINATED":
            continue
        for run in job_runs_of(session, application["id"], region):
            named = {"applicationId": application["id"], "jobRunId": run["id"]}
            described = session.perform(Call("emr-serverless", "GetJobRun", named), region)["jobRun"]
            tags = read_tags(described.get("tags"))
            if tags is None or tags.run != record.run:  # the name of an application is not only ours to choose
                continue
            billed = described.get("billedResourceUtilization") or {}
            said = _Said(
                kind=SERVERLESS,
                place=application["id"],
                id=run["id"],
                state=described["state"],
                reason=described.get("stateDetails") or None,
                began_at=described.get("startedAt") or described.get("createdAt"),
                seconds=described.get("totalExecutionDurationSeconds"),
                vcpu_hours=billed.get("vCPUHour"),
                gb_hours=billed.get("memoryGBHour"),
                disk_gb_hours=billed.get("storageGBHour") or 0.0,
            )
            job = _job(record, said)
            yield replace(job, usd=_billed_usd(job))


def _steps(session: AwsSession, record: LaunchRecord) -> Iterator[SchedulerJob]:
    group = record.groups[0]
    region = record.region
    for cluster in session.items(Call("emr", "ListClusters"), "Clusters", region):
        if cluster["Name"] != group.name:
            continue
        status = cluster["Status"]
        steps = session.items(Call("emr", "ListSteps", {"ClusterId": cluster["Id"]}), "Steps", region)
        step = next(iter(steps), None)
        said = step["Status"] if step else status
        # A cluster that could not start has a step that waits for ever, and one that ended has a last word.
        if status["State"] in (*ENDED, *ENDING) and said["State"] not in ENDED:
            said = status
        times: dict[str, Any] = status.get("Timeline", {})
        began = times.get("CreationDateTime")
        ended = times.get("EndDateTime")
        seconds = round((ended - began).total_seconds()) if began and ended else None
        job = _job(
            record,
            _Said(
                kind=CLUSTER,
                place=cluster["Id"],
                id=step["Id"] if step else "",
                state=said["State"],
                reason=_reason(said) or _reason(status),
                began_at=began,
                seconds=seconds,
            ),
        )
        # Its time, and all its nodes; `costs` counts each node.
        usd = None if seconds is None else group.nodes * group.usd_per_hour * seconds / 3600
        yield replace(job, ended_at=ended, usd=usd)


@dataclass(frozen=True)
class _Said:
    """What EMR says of a job, as `status --json` shows it."""

    kind: str
    place: str  # the application or the cluster
    id: str  # the job run or the step
    state: str
    reason: str | None
    began_at: datetime | None
    seconds: int | None
    vcpu_hours: float | None = None  # billed by EMR Serverless
    gb_hours: float | None = None
    disk_gb_hours: float = 0.0  # beyond the free 20 GB of each worker


def _job(record: LaunchRecord, said: _Said) -> SchedulerJob:
    group = record.groups[0]
    folder = emr_log_folder(record)
    log = f"applications/{said.place}/jobs/{said.id}/" if said.kind == SERVERLESS else f"{said.place}/steps/{said.id}/"
    return SchedulerJob(
        id=said.id,
        name=group.name,
        state=said.state,
        phase=_phase(said.state),
        hosts=group.text,
        place=said.place,
        reason=said.reason,
        exit_code=0 if said.state in WELL else None,
        began_at=said.began_at,
        seconds=said.seconds,
        log=f"{folder}/{log}",
        facts={"name": group.name, **asdict(said), "region": record.region},
    )


def _phase(state: str) -> Phase:
    if state in ENDED:
        return "ended"
    if state in ENDING:
        return "ending"
    return "waiting" if state in WAITING else "running"


def _billed_usd(job: SchedulerJob) -> float | None:
    """Return what EMR Serverless has billed for a job, by its own count of hours; None before it says so."""
    facts = job.facts
    if facts["vcpu_hours"] is None or facts["gb_hours"] is None or not facts["region"]:
        return None
    price = serverless_price(facts["region"])
    disk = facts["disk_gb_hours"] * price.usd_per_disk_gb_hour
    return float(facts["vcpu_hours"] * price.usd_per_vcpu_hour + facts["gb_hours"] * price.usd_per_gb_hour + disk)


def emr_costs(session: AwsSession, launches: Sequence[LaunchRecord], now: datetime) -> list[SchedulerJob]:
    """Return jobs with their costs: hours that EMR Serverless billed, or hours of each node of a cluster and EMR's fee."""
    return [_measured(session, job, now) for job in emr_jobs_of(session, launches)]


def _measured(session: AwsSession, job: SchedulerJob, now: datetime) -> SchedulerJob:
    facts = job.facts
    if facts["kind"] == SERVERLESS:
        basis = "EMR Serverless tells what it billed when the job is over"
        if job.usd is not None:
            basis = f"billed: {facts['vcpu_hours']:.2f} vCPU-hours, {facts['gb_hours']:.2f} GB-hours"
        return replace(job, usd_basis=basis)
    catalog = load_catalog()
    usd = 0.0
    fee = 0.0
    hours = 0.0
    for kind, market, seconds in _node_times(session, job, now):
        price = node_price(kind, str(facts["region"]), market, catalog)
        if price is None:
            basis = f"the catalogue has no price for {kind} ({market}) in {facts['region']}"
            return replace(job, usd=None, usd_basis=basis)
        usd += price.usd * seconds / 3600
        fee += price.fee * seconds / 3600
        hours += seconds / 3600
    basis = f"{hours:.2f} node-hours at the catalogue's prices, without disks; ${fee:.2f} are EMR's"
    return replace(job, usd=usd, usd_basis=basis)


def _node_times(session: AwsSession, job: SchedulerJob, now: datetime) -> Iterator[tuple[str, Market, float]]:
    """Yield type, market and seconds of each node that a job's cluster has had, those that were replaced included."""
    asked = Call("emr", "ListInstances", {"ClusterId": job.place})
    for node in session.items(asked, "Instances", job.facts["region"]):
        times = node.get("Status", {}).get("Timeline", {})
        began = times.get("CreationDateTime")
        if began:
            market: Market = "spot" if node.get("Market") == "SPOT" else "on-demand"
            yield node["InstanceType"], market, ((times.get("EndDateTime") or now) - began).total_seconds()


def _reason(status: dict[str, Any]) -> str | None:
    """Return AWS's own text, of a failure above all."""
    failure = status.get("FailureDetails") or {}
    change = status.get("StateChangeReason") or {}
    parts = [failure.get("Reason"), failure.get("Message"), change.get("Message"), failure.get("LogFile")]
    return ": ".join(dict.fromkeys(str(part) for part in parts if part)) or None


def emr_stop_requests(config: Config, run: str, session: AwsSession | None = None) -> list[Call]:
    """Return the requests that end the jobs of a run which have not ended.

    Raises SkytrainError for a run that was never launched there.
    """
    if not emr_launches(config, run):
        raise SkytrainError(
            f"run {run} was not launched on EMR, so nothing was stopped\n  see: skytrain status cloud=aws"
        )
    return [stop_emr_job(job) for job in run_emr_jobs(config, run, session) if job.is_active]


def plan_emr_stop(config: Config, run: str) -> PlannedStop:
    """End the run's Spark jobs. Finished stages are in the store: there is nothing to save first."""
    session = open_session(config.cloud.region, config.cloud.account)
    calls = emr_stop_requests(config, run)

    def end(wait_seconds: float, force: bool, reporter: Reporter) -> StopResult:
        jobs = run_emr_jobs(config, run, session)
        ending = [job for job in jobs if job.phase == "ending"]
        active = [job for job in jobs if job.is_active]
        for job in ending:
            reporter.note(f"{_called(job)} is being stopped already: {job.state}")
        for job in active:
            session.perform(stop_emr_job(job), job.facts["region"])
            reporter.note(f"{_called(job)} is stopped")
        text = "what it has prepared is used when it is launched again"
        if not (active or ending):
            text = "nothing to stop, it has no job on EMR that runs"
        return StopResult(f"{run}: {text}", {"run": run, "stopped_jobs": len(active), "ending_jobs": len(ending)})

    return PlannedStop(lambda: render_calls(calls), end, f"Stop {run}?" if calls else None, session)


def _called(job: SchedulerJob) -> str:
    return f"{job.facts['kind']} job {job.name} ({job.id or job.place})"


def emr_log(config: Config, run: str, lines: int | None) -> JobLog:
    """Return the end of what the driver of a run's newest job wrote."""
    launches = emr_launches(config, run)
    session = open_session(config.cloud.region, config.cloud.account)
    jobs = emr_jobs_of(session, launches)
    if not jobs:
        raise SkytrainError(f"run {run} has no job on EMR in {session.region}\n  see: skytrain status cloud=aws")
    job = jobs[0]
    written = _log_lines(open_store(config.store), job)
    said = f"{job.name}: {job.state}{f': {job.reason}' if job.reason else ''}"
    if not written:
        return JobLog([f"{said}; its driver has written nothing yet ({HOW_LONG})"], job.has_ended)
    return JobLog([*(written[-lines:] if lines else written), said], job.has_ended)


def emr_log_folder(record: LaunchRecord) -> str:
    """Return the folder of the store in which EMR keeps the logs of a launch."""
    return f"{launch_folder(record)}/logs"


def _log_lines(store: Store, job: SchedulerJob) -> list[str]:
    """Return what the driver wrote, as far as EMR has copied it to the store."""
    assert job.log is not None
    folder = "SPARK_DRIVER/" if job.facts["kind"] == SERVERLESS else ""
    keys = sorted(stat.key for stat in store.list(job.log))
    lines: list[str] = []
    for name in LOG_NAMES:  # attempts lie in folders of their own, in order
        for key in keys:
            if key.endswith(f"/{folder}{name}.gz"):
                lines += _end_of_log(read_whole(store, key)).decode(errors="replace").splitlines()
    return lines


def _end_of_log(packed: bytes) -> bytes:
    """Return the end of a compressed log: whoever wrote it decides how much it unpacks to, and whether it is damaged."""
    end: deque[bytes] = deque(maxlen=LOG_CHUNKS)
    try:
        with gzip.open(io.BytesIO(packed)) as file:
            while chunk := file.read(CHUNK_BYTES):
                end.append(chunk)
    except (OSError, EOFError, zlib.error) as error:
        end.append(f"\nthe log is damaged from here on: {error}\n".encode())
    return b"".join(end)
