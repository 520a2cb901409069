"""Status: the state of runs, read from the store only."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import TypeVar

from ..checkpoints import CheckpointError, committed, read_marker
from ..config import Config, SkytrainError, recorded_steps
from ..jobs import generation_key, list_meeting
from ..runs import (
    LaunchRecord,
    NoRuns,
    RunRecord,
    RunStatus,
    ended_reason,
    hosts_usd,
    launch_starts,
    launched_runs,
    launches_of,
    load_run,
    run_names,
    run_status,
    stopped_key,
)
from ..storage import (
    DamagedRecord,
    Store,
    StoreError,
    is_of_store,
    open_store,
    read_object,
    record_of,
)

T = TypeVar("T")
LAUNCHED = "launched"  # machines were asked for, and none has begun to train
LAUNCH_FAILED = "launch failed"  # its requests were refused, and what it had created is removed
PREPARING = "preparing"  # a rented machine prepares data
TUNING = "tuning"  # a rented machine runs trials of a sweep
FINISHING = "finishing"  # a rented machine evaluates, exports and reports a run
SERVING = "serving"  # a rented machine serves a model, or starts to
JOBS_WITHOUT_ATTEMPTS = {  # while it runs, and after
    "prepare": (PREPARING, "prepared"),
    "tune": (TUNING, "tuned"),
    "serve": (SERVING, "served"),
    "finish": (FINISHING, "finished"),
}


def status(config: Config, run: str | None) -> list[RunStatus]:
    """Return the status of one run, or of all runs in the store."""
    store = open_store(config.store)
    if run is not None:
        return [find_status(store, run)]
    launched = [_status_or_damage(store, name) for name in launched_runs(store)]
    try:
        names = sorted(run_names(store))
    except NoRuns:
        if not launched:
            raise
        names = []
    return sorted([*launched, *(_status_or_damage(store, name) for name in names)], key=lambda each: each.run)


def find_status(store: Store, run: str) -> RunStatus:
    """Return the status of one run, which may have been launched and not begun to train."""
    try:
        record = load_run(store, run)
    except (DamagedRecord, StoreError):
        raise
    except SkytrainError:
        launches = launches_of(store, run)
        if not launches:
            raise
        with record_of(store, f"runs/{run}/launches/{launches[-1].id}.json"):
            return _launched_status(store, launches[-1])
    return status_of(store, record)


def _launched_status(store: Store, record: LaunchRecord) -> RunStatus:
    group = record.groups[0]
    machines = group.text
    if record.after is not None and launch_starts(store, record) is None:
        machines += f", after {record.after.run}"
    state = LAUNCH_FAILED if record.failed else LAUNCHED
    reason = None
    if record.verb in JOBS_WITHOUT_ATTEMPTS and not record.failed:
        state, reason = _state_of_job(store, record)
    elif store.exists(stopped_key(record)):
        state = "stopped"
    elif (reason := ended_reason(store, record)) is not None:
        state = "failed"
    usd, metered = hosts_usd(store, record.run)
    return RunStatus(record.run, state, reason, since=record.launched_at, host=machines, usd=usd, metered_usd=metered)


def _state_of_job(store: Store, record: LaunchRecord) -> tuple[str, str | None]:
    """Return the state of a launch that has no attempts: what its machine says of itself."""
    works, done = JOBS_WITHOUT_ATTEMPTS[record.verb]
    meeting = list_meeting(store, record.run)
    if record.verb == "serve" and (record.over_at <= datetime.now(UTC) or store.exists(stopped_key(record))):
        return done, None
    if meeting.last_over:
        end = read_object(store, generation_key(record.run, meeting.last_over, "over"))
        if end.get("launch") == record.id:
            return (done, None) if end["exit_code"] == 0 else ("failed", str(end["reason"]))
    return (works if meeting.newest and not meeting.ended and not meeting.over else LAUNCHED), None


def _status_or_damage(store: Store, name: str) -> RunStatus:
    """Return the status of one of several runs: one that is damaged must not hide the others."""
    try:
        return find_status(store, name)
    except SkytrainError as error:
        if is_of_store(error):
            raise
        return RunStatus(name, "damaged", str(error))


def status_of(store: Store, record: RunRecord) -> RunStatus:
    """Return the status of a run. What its records say that makes no sense is damage, which hides no other run."""
    with record_of(store, f"runs/{record.name}/run.json"):
        total = recorded_steps(record.config["trainer"])
        return run_status(store, record.name, total, _newest_checkpoint(store, record.name))


def _newest_checkpoint(store: Store, run: str) -> tuple[int, str] | None:
    """Return the newest whose marker can be read: a damaged one must not hide the status of the run."""
    for commit in reversed(committed(store, run)):
        with contextlib.suppress(CheckpointError):
            return commit.step, read_marker(store, commit).committed_at
    return None
