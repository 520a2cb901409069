"""Runs: list, rename and delete the runs of a store."""

from __future__ import annotations

import dataclasses
import shlex
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from ..checkpoints import committed_steps
from ..config import Config, SkytrainError
from ..runs import (
    RunRecord,
    RunStatus,
    check_run_name,
    copy_launches,
    forget_rename,
    launches_of,
    list_runs,
    load_run,
    note_rename,
    read_pipeline,
    run_names,
    save_run,
    write_pipeline,
)
from ..storage import Stat, Store, is_of_store, open_store
from ..targets import active_launch, status_of

LIVE = ("running", "starting")


@dataclass(frozen=True)
class RunEntry:
    """A run in a list. If it is damaged, `problem` says what is wrong, and only its size is known."""

    run: str
    state: str
    step: int = 0
    total_steps: int = 0
    val_loss: float | None = None
    checkpoints: int = 0
    bytes: int = 0
    started_at: str | None = None
    started_from: str | None = None
    problem: str | None = None


@dataclass(frozen=True)
class Deletion:
    """The objects that deleting a run removes."""

    run: str
    bytes: int
    objects: int
    checkpoints: list[int]
    needed_by: list[str]  # runs that start from it and have no checkpoint of their own yet


def list_entries(config: Config) -> list[RunEntry]:
    """List every run of the store, the newest first, damaged ones last."""
    store = open_store(config.store)
    entries = [_entry(store, name) for name in run_names(store)]
    return sorted(entries, key=lambda entry: entry.started_at or "", reverse=True)


def _entry(store: Store, name: str) -> RunEntry:
    size = sum(stat.size for stat in store.list(f"runs/{name}"))
    try:
        return _whole_entry(store, load_run(store, name), size)
    except SkytrainError as error:
        if is_of_store(error):
            raise
        return RunEntry(name, "damaged", bytes=size, problem=str(error))


def _whole_entry(store: Store, record: RunRecord, size: int) -> RunEntry:
    status = status_of(store, record)
    return RunEntry(
        run=record.name,
        state=status.state,
        step=status.step,
        total_steps=status.total_steps,
        val_loss=status.val_loss,
        checkpoints=len(committed_steps(store, record.name)),
        bytes=size,
        started_at=record.started_at,
        started_from=record.started_from or " + ".join(record.merged_from) or None,
    )


def plan_deletion(config: Config, run: str) -> Deletion:
    """Return what deleting the run would remove. Raise SkytrainError for a live run."""
    store = open_store(config.store)
    record = load_run(store, run)
    _refuse_live(store, status_of(store, record), "deleted")
    stats = store.list(f"runs/{run}")
    children = [child.name for child in _children(store, run) if not committed_steps(store, child.name)]
    return Deletion(
        run=run,
        bytes=sum(stat.size for stat in stats),
        objects=len(stats),
        checkpoints=committed_steps(store, run),
        needed_by=children,
    )


def delete_run(config: Config, run: str) -> None:
    """Remove every object of the run. If it is killed half-way, the same call removes the rest."""
    store = open_store(config.store)
    _refuse_live(store, status_of(store, load_run(store, run)), "deleted")
    for stat in _markers(store.list(f"runs/{run}/checkpoints")):
        store.delete(stat.key)
    for folder in store.folders(f"runs/{run}"):
        store.delete_all(f"runs/{run}/{folder}")
    store.delete_all(f"runs/{run}")
    store.delete_all(f"launches/{run}")


def rename_run(config: Config, run: str, name: str) -> list[str]:
    """Move the run's folder; return the runs that started from it, whose records get the new name.

    The record is written last: without it the new folder is not a run, and the same command completes the move.
    """
    store = open_store(config.store)
    check_run_name(name)
    record = load_run(store, run)
    if store.exists(f"runs/{name}/run.json"):
        raise SkytrainError(f"there is a run {name!r} already in {store.root}\n  choose another name")
    own = launches_of(store, run)
    if any(dataclasses.replace(each, run=run) not in own for each in launches_of(store, name)):
        raise SkytrainError(f"a run {name!r} was launched, and may have machines\n  choose another name")
    _refuse_live(store, status_of(store, record), "renamed")
    children = _children(store, run)
    for child in children:
        _refuse_live(store, status_of(store, child), f"updated with the new name of {run}")
    _copy(store, run, name)
    former = [*record.former_names, run]
    settings = {**record.config, "run": name}
    save_run(store, dataclasses.replace(record, name=name, config=settings, former_names=former))
    for child in children:
        save_run(store, _with_new_name(child, run, name))
    delete_run(config, run)
    note_rename(store, run, name)
    forget_rename(store, name)
    return [child.name for child in children]


def _copy(store: Store, run: str, name: str) -> None:
    """Copy all but the record; commit markers come after the checkpoints they mark, and what was launched last."""
    stats = [stat for stat in store.list(f"runs/{run}") if stat.key != f"runs/{run}/run.json"]
    markers = _markers(stats)
    with tempfile.TemporaryDirectory(prefix="skytrain-rename-") as scratch:
        for stat in [*(stat for stat in stats if stat not in markers), *markers]:
            path = Path(scratch) / "object"
            store.download(stat.key, path)
            store.upload(path, f"runs/{name}/{stat.key.removeprefix(f'runs/{run}/')}")
    copy_launches(store, run, name)
    if (pipeline := read_pipeline(store, run)) is not None:
        stages = [dataclasses.replace(stage, run=name) if stage.run == run else stage for stage in pipeline.stages]
        write_pipeline(store, dataclasses.replace(pipeline, run=name, stages=stages))


def _markers(stats: Iterable[Stat]) -> list[Stat]:
    return [stat for stat in stats if "/COMMITTED." in stat.key]


def _children(store: Store, run: str) -> list[RunRecord]:
    """Return the runs that were started or merged from this run's checkpoints."""
    return [record for record in list_runs(store) if _with_new_name(record, run, "") != record]


def _with_new_name(child: RunRecord, run: str, name: str) -> RunRecord:
    """Return the child's record after `run`, which it was started or merged from, is renamed to `name`."""

    def renamed(source: str | None) -> str | None:
        here = source is not None and source.partition(",")[0].partition("@")[0] == run
        return name + str(source).removeprefix(run) if here else source

    merged = [str(renamed(source)) for source in child.merged_from]
    return dataclasses.replace(
        child, started_from=renamed(child.started_from), parent=renamed(child.parent), merged_from=merged
    )


def _refuse_live(store: Store, status: RunStatus, what: str) -> None:
    """Raise if processes write to the run, or machines of a launch may do so again: they may wait for another one."""
    if status.state not in LIVE and (record := active_launch(store, status, datetime.now(UTC))) is not None:
        raise SkytrainError(
            f"run {status.run!r} was launched at {record.launched_at} by {record.launched_by}, and that is not over, so it "
            f"cannot be {what}: its machines may wait for others\n"
            f"  end it first: skytrain stop {shlex.quote(status.run)} {record.target_word}"
        )
    if status.state in LIVE:
        raise SkytrainError(
            f"run {status.run!r} is {status.state} on {status.host}, so it cannot be {what}\n"
            "  stop it first (Ctrl-C or SIGTERM, which save), then try again"
        )
