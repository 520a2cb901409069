"""Status: the state of runs, read from the store alone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

from ..checkpoints import CheckpointError, committed, read_marker
from ..config import Config, SkytrainError, format_count, format_seconds
from ..jobs import generation_key, list_meeting
from ..runs import (
    DamagedRecord,
    LaunchRecord,
    NoRuns,
    RunRecord,
    RunStatus,
    hosts_usd,
    launch_starts,
    launched_runs,
    launches_of,
    load_run,
    read_object,
    run_names,
    run_status,
    stopped_key,
)
from ..storage import Store, open_store

T = TypeVar("T")
LAUNCHED = "launched"  # machines were asked for, and none has begun to train
LAUNCH_FAILED = "launch failed"  # its requests were refused, and what it had created is removed
PREPARING = "preparing"  # a rented machine prepares data
TUNING = "tuning"  # a rented machine runs trials of a sweep
SERVING = "serving"  # a rented machine serves a model, or starts to
JOBS_WITHOUT_ATTEMPTS = {  # while it runs, and after
    "prepare": (PREPARING, "prepared"),
    "tune": (TUNING, "tuned"),
    "serve": (SERVING, "served"),
}


def status(config: Config, run: str | None) -> list[RunStatus]:
    """The status of one run, or of all runs in the store."""
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
    return sorted([*launched, *(_status_or_damage(store, name) for name in names)], key=lambda found: found.run)


def find_status(store: Store, run: str) -> RunStatus:
    """The status of one run, which may have been launched and not begun to train."""
    try:
        return status_of(store, load_run(store, run))
    except DamagedRecord:
        raise
    except SkytrainError:
        launches = launches_of(store, run)
        if not launches:
            raise
        return _launched_status(store, launches[-1])


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
    usd = hosts_usd(store, record.run)
    return RunStatus(record.run, state, reason, since=record.launched_at, host=machines, usd=usd)


def _state_of_job(store: Store, record: LaunchRecord) -> tuple[str, str | None]:
    """The state of a launch that has no attempts: what its machine says of itself."""
    works, done = JOBS_WITHOUT_ATTEMPTS[record.verb]
    found = list_meeting(store, record.run)
    if record.verb == "serve" and (record.over_at <= datetime.now(UTC) or store.exists(stopped_key(record))):
        return done, None
    if found.over:
        end = read_object(store, generation_key(record.run, found.newest, "over"))
        if end.get("launch") == record.id:
            return (done, None) if end["exit_code"] == 0 else ("failed", str(end["reason"]))
    return (works if found.newest and not found.ended and not found.over else LAUNCHED), None


def _status_or_damage(store: Store, name: str) -> RunStatus:
    """The status of one of several runs: one that is damaged must not hide the others."""
    try:
        return find_status(store, name)
    except DamagedRecord as error:
        return RunStatus(name, "damaged", str(error))


def status_of(store: Store, record: RunRecord) -> RunStatus:
    trainer = record.config["trainer"]
    total = trainer["steps"] or trainer["tokens"] // trainer["batch_tokens"]
    return run_status(store, record.name, total, _newest_checkpoint(store, record.name))


def _newest_checkpoint(store: Store, run: str) -> tuple[int, str] | None:
    """The newest whose marker can be read: a damaged one must not hide the status of the run."""
    for commit in reversed(committed(store, run)):
        with contextlib.suppress(CheckpointError):
            return commit.step, read_marker(store, commit).committed_at
    return None


def describe_status(found: RunStatus) -> list[tuple[str, str]]:
    """The status of one run as rows; unknown values have no row."""
    heard = {
        "running": "",
        "starting": "",
        "stale": f", no sign of life since {found.since}",
        "failed": f" at {found.since}",
    }
    state = found.state + heard.get(found.state, f" since {found.since}" if found.since else "")
    speed = _text(found.tokens_per_s, lambda value: f"{format_count(value)} tokens/s")
    lines = {
        "state": state + (f" on {found.host}" if found.host else ""),
        "reason": found.reason or found.cause or "",
        "step": f"{found.step}/{found.total_steps}"
        + _text(found.eta_seconds, lambda s: f", {format_seconds(s)} to go"),
        "loss": _text(found.loss, "{:.4f}".format) + _text(found.val_loss, ", validation {:.4f}".format),
        "speed": speed + _text(found.mfu, ", MFU {:.1%}".format),
        "cost": cost(found),
        "checkpoint": _text(found.checkpoint_step, "step {}".format)
        + _text(found.checkpoint_age_seconds, lambda s: f", {format_seconds(max(s, 0.0))} ago"),
        "attempts": f"{found.attempts}, of which {found.interruptions} were interrupted or failed",
        "slowest rank": _text(found.slowest_rank, str)
        + _text(found.straggler_ratio, ", {:.2f} times the median".format),
    }
    return [(name, text) for name, text in lines.items() if text]


def cost(found: RunStatus) -> str:
    if found.usd is None:
        return ""
    return (
        f"${found.usd:.2f}"
        + _text(found.projected_usd, ", ${:.2f} when it is done".format)
        + _text(found.budget_usd, ", budget ${:g}".format)
    )


def status_rows(found: list[RunStatus]) -> list[tuple[str, ...]]:
    """Runs as a table, header first."""
    rows: list[tuple[str, ...]] = [
        ("RUN", "STATE", "STEP", "LOSS", "TOKENS/S", "SPENT", "PROJECTED", "TO GO", "CHECKPOINT", "ATTEMPTS")
    ]
    for each in found:
        rows.append(
            (
                each.run,
                each.state,
                f"{each.step}/{each.total_steps}",
                _text(each.loss, "{:.4f}".format) or "-",
                _text(each.tokens_per_s, format_count) or "-",
                _text(each.usd, "${:.2f}".format) or "-",
                _text(each.projected_usd, "${:.2f}".format) or "-",
                _text(each.eta_seconds, format_seconds) or "-",
                _text(each.checkpoint_age_seconds, lambda s: f"{format_seconds(max(s, 0.0))} ago") or "-",
                str(each.attempts),
            )
        )
    return rows


def failure_lines(found: list[RunStatus]) -> list[str]:
    """Lines below the table: why runs have failed, and what is damaged."""
    return [
        f"{each.run}: {each.reason}" if each.state == "damaged" else f"{each.run} failed: {each.reason.splitlines()[0]}"
        for each in found
        if each.reason
    ]


def _text(value: T | None, form: Callable[[T], str]) -> str:
    return "" if value is None else form(value)
