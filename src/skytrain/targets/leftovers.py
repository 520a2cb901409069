"""gc: what of ours is in the AWS account, what it costs, and the deletion of what nobody needs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from ..aws import (
    KINDS,
    AccountScan,
    AwsSession,
    CloudResource,
    FailedDeletion,
    GcSelection,
    Verdict,
    delete_resources,
    deletion_calls,
    judge,
    open_session,
    render_calls,
    scan_account,
)
from ..config import DONE, STOPPED, Config, SkytrainError, format_bytes, format_seconds, plural
from ..planning import unit_prices
from ..runs import (
    LaunchRecord,
    NoRuns,
    Reporter,
    RunStatus,
    attempt_key,
    attempt_numbers,
    launches_of,
    outcome_key,
    read_outcome,
    recorded_at,
    run_folders,
)
from ..storage import DamagedRecord, ObjectError, Store, open_store
from .account import named_groups, owners_of_groups
from .limits import ended_in_store
from .run_status import status as run_statuses

LIVE = ("running", "starting")  # it wrote to the store a moment ago
ENDED_LONG_AGO = timedelta(days=2)  # after the kill time of a launch, whose groups are then no longer looked for
OVER = (DONE, STOPPED)  # no host waits for another after these
OLD_LOGS = timedelta(days=30)


@dataclass(frozen=True)
class OldLogs:
    """The logs of an attempt that is neither the newest of its run nor recent."""

    run: str
    attempt: int
    bytes: int
    ended_at: str

    @property
    def usd_per_month(self) -> float:
        return unit_prices()["s3"].usd * self.bytes / 1e9


@dataclass(frozen=True)
class Garbage:
    """Everything of ours, with the decision about each."""

    scan: AccountScan
    verdicts: tuple[Verdict, ...]
    logs: tuple[OldLogs, ...]
    selection: GcSelection

    @property
    def doomed(self) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if verdict.delete]

    @property
    def count(self) -> int:
        return len(self.doomed) + len(self.logs)

    @property
    def usd_per_hour(self) -> float:
        """What the deletion saves: a group that is deleted ends its instances, whatever is decided about them."""
        doomed = {(verdict.resource.kind, verdict.resource.id) for verdict in self.doomed}
        ended = [
            each
            for each in self.scan.resources
            if (each.kind, each.id) in doomed or ("Auto Scaling group", each.facts.get("group")) in doomed
        ]
        return sum(each.usd_per_hour or 0.0 for each in ended)


Rows = list[tuple[str, ...]]  # of a table, header first


@dataclass(frozen=True)
class GcRequest:
    """What `gc` searches."""

    selection: GcSelection
    regions: Sequence[str] | None = None  # None: all that are enabled
    all_projects: bool = False
    project: str | None = None  # None: cloud.project


@dataclass(frozen=True)
class Leftovers:
    """What a target still has of ours, and how it is deleted."""

    rows: Rows  # without rows after the header there is nothing
    nothing: str  # what is said then
    facts: object  # the same, for --json
    requests: str  # of the deletion, for --dry-run
    count: int  # of what is to be deleted
    delete: Callable[[Reporter], Sequence[str]]  # returns what was not deleted, and why
    unit: str = "resource"
    place: str = ""  # where they are, in the question
    session: AwsSession | None = None  # whose account the question names
    usd_per_hour: float = 0.0  # that the deletion saves
    besides: str = ""  # what the deletion removes without a request
    unknown: Sequence[str] = ()  # what could not be asked


def account_leftovers(config: Config, request: GcRequest, reporter: Reporter) -> Leftovers:
    """Find what carries our tags in the AWS account, and old logs in the store."""
    session = open_session(config.cloud.region, config.cloud.account)
    project = None if request.all_projects else request.project or config.cloud.project
    garbage = find_garbage(config, session, request.selection, reporter, regions=request.regions, project=project)

    def delete(reporter: Reporter) -> list[str]:
        return [
            f"{each.resource.kind} {each.resource.id} in {each.resource.region}: {each.problem}"
            for each in delete_garbage(config, session, garbage, reporter)
        ]

    logs = f"and in the store: the logs of {plural(len(garbage.logs), 'old attempt')}\n" if garbage.logs else ""
    return Leftovers(
        rows=garbage_rows(garbage),
        nothing=f"nothing of Skytrain's in {plural(len(garbage.scan.regions), 'region')}",
        facts=garbage_json(garbage),
        requests=requests(garbage),
        count=garbage.count,
        delete=delete,
        session=session,
        usd_per_hour=garbage.usd_per_hour,
        besides=logs,
        unknown=[f"{problem.kind} in {problem.region}: {problem.problem}" for problem in garbage.scan.problems],
    )


def find_garbage(
    config: Config,
    session: AwsSession,
    selection: GcSelection,
    reporter: Reporter,
    *,
    regions: Sequence[str] | None = None,
    project: str | None = None,
) -> Garbage:
    """Search all enabled regions, or `regions`, for what carries our tags, of all projects or of one."""
    active = _active_runs(config, reporter)
    tell = lambda done, total: reporter.progress("search", done, total, "questions to AWS")  # noqa: E731
    scan = scan_account(session, regions, project=project, progress=tell)
    if project in (None, config.cloud.project):
        scan = _with_launches(config, session, scan, reporter)
    verdicts = tuple(_judge(config, resource, active, selection) for resource in scan.resources)
    plain = selection == GcSelection()
    return Garbage(scan, verdicts, tuple(old_logs(config, active)) if plain and active else (), selection)


def _with_launches(config: Config, session: AwsSession, scan: AccountScan, reporter: Reporter) -> AccountScan:
    """Add the groups and machines that the store's launches name, whose run and end are those of the launch.

    People may have removed their tags, or edited the one that says when they expire.
    """
    try:
        store = open_store(config.store)
        launches = [record for run in run_folders(store) for record in _launches(store, run)]
    except SkytrainError as error:
        reporter.note(f"the store says nothing about launches: {str(error).partition(chr(10))[0]}")
        return scan
    since = datetime.now(UTC) - ENDED_LONG_AGO
    owners = owners_of_groups((each for each in launches if each.over_at > since), config.cloud.project or "")
    here = {region: groups for region, groups in owners.items() if region in scan.regions}
    found = {(each.kind, each.id): each for each in named_groups(session, here, reporter.note)}
    resources = [found.pop((each.kind, each.id), each) for each in scan.resources]
    resources = sorted([*resources, *found.values()], key=lambda each: KINDS[each.kind].order)
    return replace(scan, resources=tuple(resources))


def _launches(store: Store, run: str) -> list[LaunchRecord]:
    """Return the launches of a run; none where a record is damaged, whose run counts as active."""
    try:
        return launches_of(store, run)
    except (DamagedRecord, ObjectError):
        return []


def delete_garbage(config: Config, session: AwsSession, garbage: Garbage, reporter: Reporter) -> list[FailedDeletion]:
    """Delete what was decided to be deleted, in the order of dependencies.

    A question may stand on a screen for hours: what a run has come back to meanwhile is kept and returned as failed.
    """
    active = _active_runs(config, reporter)
    verdicts = [_judge(config, verdict.resource, active, garbage.selection) for verdict in garbage.doomed]
    kept = [FailedDeletion(verdict.resource, f"{verdict.reason} now") for verdict in verdicts if not verdict.delete]
    doomed = [verdict.resource for verdict in verdicts if verdict.delete]
    done = itertools.count(1)

    def tell(resource: CloudResource) -> None:
        reporter.progress("delete", next(done), len(doomed), f"{resource.kind} {resource.id}")

    try:
        failed = kept + delete_resources(session, doomed, tell)
    except KeyboardInterrupt:
        reporter.note("interrupted: what was not deleted yet is left\n  the same command deletes the rest")
        raise
    for logs in garbage.logs:
        open_store(config.store).delete_all(f"{attempt_key(logs.run, logs.attempt)}/logs")
    return failed


def requests(garbage: Garbage) -> str:
    """Return the exact requests of the deletion, as JSON."""
    return render_calls(call for _, call in deletion_calls(verdict.resource for verdict in garbage.doomed))


def _judge(config: Config, resource: CloudResource, active: dict[str, bool] | None, selection: GcSelection) -> Verdict:
    """Decide about a resource. The store holds the runs of one project: it says nothing about a run of the same name in another.

    What belongs to a run is kept where the store could not be asked: its tags may be edited, and it may train.
    """
    own = resource.tags.project == config.cloud.project
    verdict = judge(resource, (active or {}) if own else {}, selection)
    run = resource.tags.run
    if verdict.delete and own and active is None and run is not None and selection.run is None:
        return Verdict(resource, False, f"the store does not say whether its run is active: gc --run {run}")
    return verdict


def _active_runs(config: Config, reporter: Reporter) -> dict[str, bool] | None:
    """Return whether each run of the store is active; empty if the store has none, None if it could not be asked."""
    try:
        store = open_store(config.store)
        now = datetime.now(UTC)
        return {status.run: _is_active(store, status, now) for status in run_statuses(config, None)}
    except NoRuns:
        return {}
    except SkytrainError as error:
        reporter.note(f"the store says nothing about runs: {str(error).partition(chr(10))[0]}")
        return None


def _is_active(store: Store, status: RunStatus, now: datetime) -> bool:
    """Return whether machines may work on the run: it writes to the store, or a launch of it is not over."""
    if status.state in (*LIVE, "damaged"):
        return True
    try:
        if status.state == "stale" and not launches_of(store, status.run):
            return True  # its machine may only be cut off
        return active_launch(store, status, now) is not None
    except (DamagedRecord, ObjectError):
        return True  # as far as anyone can tell


def active_launch(store: Store, status: RunStatus, now: datetime) -> LaunchRecord | None:
    """Return the launch of a run that is not over, by what the store says.

    The outcome of the last attempt does not tell: after an interruption the hosts that are left wait for another one.
    A launch is over when its hosts have recorded it, a person has stopped it, or its kill time has passed; that of the
    record counts, since tags can be edited. Whether a run was launched after its end is decided by the store's clock:
    those of machines may be wrong.
    """
    live = [each for each in launches_of(store, status.run) if not each.failed and each.over_at > now]
    ended_at = _ended_at(store, status.run) if status.state in OVER else 0.0
    for record in live:
        if recorded_at(store, record) > ended_at and not ended_in_store(record, store):
            return record
    return None


def _ended_at(store: Store, run: str) -> float:
    """Return when the outcome of the run's last attempt was written, by the store's clock; 0.0 without one."""
    numbers = attempt_numbers(store, run)
    stat = store.stat(outcome_key(run, numbers[-1])) if numbers else None
    return stat.modified if stat is not None else 0.0


def old_logs(config: Config, active: dict[str, bool]) -> Iterable[OldLogs]:
    """Yield the logs of former attempts of runs that have ended, a month after the attempt."""
    store = open_store(config.store)
    for run, is_active in active.items():
        if not is_active:
            for attempt in attempt_numbers(store, run)[:-1]:
                yield from _logs_of(store, run, attempt)


def _logs_of(store: Store, run: str, attempt: int) -> Iterable[OldLogs]:
    outcome = read_outcome(store, run, attempt)
    if outcome is None or datetime.now(UTC) - datetime.fromisoformat(outcome["ended_at"]) < OLD_LOGS:
        return
    size = sum(stat.size for stat in store.list(f"{attempt_key(run, attempt)}/logs"))
    if size:
        yield OldLogs(run, attempt, size, outcome["ended_at"])


def garbage_rows(garbage: Garbage, now: datetime | None = None) -> list[tuple[str, ...]]:
    """Return the decisions as a table for people, header first."""
    rows: list[tuple[str, ...]] = [("", "KIND", "ID", "REGION", "RUN", "OWNER", "AGE", "$/MONTH", "WHY")]
    for verdict in garbage.verdicts:
        each = verdict.resource
        rows.append(
            (
                "delete" if verdict.delete else "keep",
                each.kind,
                each.id,
                each.region,
                each.tags.run or "-",
                each.tags.owner,
                _age(each.created_at, now),
                "?" if each.usd_per_month is None else f"{each.usd_per_month:.2f}",
                verdict.reason,
            )
        )
    for logs in garbage.logs:
        age = _age(datetime.fromisoformat(logs.ended_at), now)
        cost = f"{logs.usd_per_month:.2f}"
        where = f"attempt {logs.attempt}, {format_bytes(logs.bytes)}"
        rows.append(("delete", "logs", where, "store", logs.run, "-", age, cost, "of an old attempt"))
    return rows


def _age(created_at: datetime | None, now: datetime | None) -> str:
    if created_at is None:
        return "?"
    seconds = max(0.0, ((now or datetime.now(UTC)) - created_at).total_seconds())
    return f"{seconds / 86400:.0f}d" if seconds >= 2 * 86400 else format_seconds(round(seconds))


def garbage_json(garbage: Garbage) -> dict[str, object]:
    """Return what `--json` prints."""
    return {
        "regions": list(garbage.scan.regions),
        "resources": [
            {
                "kind": each.kind,
                "id": each.id,
                "region": each.region,
                "state": each.state,
                "created_at": each.created_at.isoformat() if each.created_at else None,
                "usd_per_month": each.usd_per_month,
                "tags": each.tags.mapping(),
                "delete": verdict.delete,
                "reason": verdict.reason,
            }
            for verdict in garbage.verdicts
            for each in (verdict.resource,)
        ],
        "logs": [logs.__dict__ for logs in garbage.logs],
        "problems": [problem.__dict__ for problem in garbage.scan.problems],
    }
