"""Launch on a Slurm cluster: check what can be checked, write the batch script of the run, submit it."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from ...config import Composed, Config, SkytrainError, SlurmConfig, format_seconds
from ...models import check_mesh
from ...runs import (
    LaunchedGroup,
    LaunchId,
    LaunchRecord,
    Reporter,
    ended_launch,
    launches_of,
    next_launch,
    run_name,
    user_name,
)
from ...storage import Store, open_store
from ..jobs import launch_record
from ..lifecycle import Advance, LaunchSteps, run_launch
from ..limits import check_alone, seconds_affordable
from .jobs import (
    SlurmError,
    cancel_jobs,
    check_slurm_version,
    preempt_mode,
    slurm_jobs,
    slurm_partitions,
    submit_job,
)
from .requests import SlurmScript, slurm_job_name

PRIVATE = ("ramfs", "tmpfs")  # in the memory of one machine
LOCAL = ("btrfs", "ext2", "ext3", "ext4", "overlay", "xfs", "zfs")  # shared only if this machine exports it


@dataclass(frozen=True)
class SlurmLaunch:
    """A script that has passed every check, before it is written and submitted."""

    script: SlurmScript
    notes: tuple[str, ...]
    record: LaunchRecord
    store: Store

    @property
    def path(self) -> Path:
        return self.script.folder / "job.sh"


def prepare_slurm_launch(composed: Composed, options: Sequence[str] = (), *, ask: bool = True) -> SlurmLaunch:
    """Make the batch script and check it. With `ask` off, the cluster is not asked: for a look at the script."""
    config = composed.config
    wanted = composed.config.cloud.slurm
    _check_times(config)
    if wanted.processes is not None:
        check_mesh(config, wanted.processes * wanted.nodes, wanted.nodes)
    run = run_name(config)
    folder = Path(wanted.folder).absolute()
    store = open_store(config.store)
    earlier = launches_of(store, run) if ask else []
    number = next_launch(earlier, ended_launch(store, run) if ask else 0)
    script = SlurmScript(
        run=run,
        launch=number,
        arguments=(*composed.overrides, *options, f"run={run}"),
        settings=wanted,
        folder=folder / run,
        work_folder=Path.cwd(),
        store=store_root(config),
        python=job_python(wanted),
        max_failures=config.trainer.max_restarts,
    )
    notes = [note for path in script.shared_folders for note in _check_shared(path, wanted)]
    if ask:
        _check_store(script.store)
        check_slurm_version()
        partition = _check_partition(wanted)
        if "CANCEL" in preempt_mode(partition):
            notes.append(
                f"partition {partition} cancels jobs that it preempts: then launch the run again, and it resumes from "
                "its last commit"
            )
        active = [job for job in slurm_jobs(run) if not job.has_ended]
        if active:
            raise SkytrainError(
                f"run {run} is job {active[0].id} already, {active[0].state.lower()}\n"
                f"  watch it: skytrain status {shlex.quote(run)} cloud=slurm; end it: skytrain stop {shlex.quote(run)} cloud=slurm"
            )
        # Of its own jobs the scheduler has told; of others the store does.
        elsewhere = [record for record in earlier if record.target != config.cloud.target]
        check_alone(elsewhere, store, datetime.now(UTC), lambda _: None)
        price = config.budget.usd_per_hour
        most = seconds_affordable(config, store, run, price * wanted.nodes if price is not None else None)
        # The run stops by itself before its budget is spent. Slurm ends one that hangs, not much later.
        wanted = replace(wanted, time=min(wanted.time, most + wanted.save_before))
        script = replace(script, settings=wanted)
        submit_job(script.render(), test_only=True)
    return SlurmLaunch(script, tuple(notes), _record(composed, LaunchId(run, number)), store)


def _record(composed: Composed, launch: LaunchId) -> LaunchRecord:
    wanted = composed.config.cloud.slurm
    usd = composed.config.budget.usd_per_hour or 0.0
    group = LaunchedGroup(
        name=slurm_job_name(launch.run),
        zone="",
        instance_type="node",
        market="slurm",
        nodes=wanted.nodes,
        usd_per_hour=usd,
        kill_at="",
        placement_group=False,
    )
    record = launch_record(composed, launch, datetime.now(UTC), [group])
    return replace(record, launched_by=composed.config.cloud.owner or user_name())


def job_python(wanted: SlurmConfig) -> str:
    """Return the Python that runs a job: this one, or that of its container."""
    return wanted.python or ("python3" if wanted.container else sys.executable)


def start_slurm_launch(launch: SlurmLaunch, reporter: Reporter) -> str:
    """Write the record and the script, submit it, and return the number of the job."""

    def submit(advance: Advance) -> str:
        launch.path.parent.mkdir(parents=True, exist_ok=True)
        launch.path.write_text(launch.script.render())
        launch.path.chmod(0o755)
        return submit_job(launch.script.render())

    def cancel(error: BaseException) -> None:
        """Cancel the job if it was submitted after all: the answer may have been lost. No other job has its name."""
        cancel_jobs([job for job in slurm_jobs(launch.script.run) if not job.has_ended])

    steps = LaunchSteps(store=launch.store, record=launch.record, create=submit, remove=cancel)
    return run_launch(steps, reporter)


def store_root(config: Config) -> str:
    """Return the root of the store as every node of the cluster may name it."""
    root = config.store.root.removeprefix("file://")
    return root if "://" in root else str(Path(root).expanduser().absolute())


def _check_store(root: str) -> None:
    """Raise for a folder that is missing: the job would find no data there, after its time in the queue."""
    if "://" not in root and not Path(root).is_dir():
        raise SkytrainError(
            f"store.root={root} does not exist\n  prepare data there first, where all nodes see it: skytrain prepare"
        )


def _check_times(config: Config) -> None:
    wanted = config.cloud.slurm
    stop = config.trainer.stop_within
    if wanted.save_before < stop:
        raise SkytrainError(
            f"cloud.slurm.save_before={format_seconds(wanted.save_before)}: a save may take "
            f"trainer.stop_within={format_seconds(stop)}\n  raise the first or lower the second"
        )
    if wanted.time <= wanted.save_before:
        raise SkytrainError(
            f"cloud.slurm.time={format_seconds(wanted.time)}: the job would be asked to save "
            f"{format_seconds(wanted.save_before)} before its limit, when it starts\n"
            "  raise the time limit, or lower cloud.slurm.save_before"
        )


def _check_partition(wanted: SlurmConfig) -> str:
    """Return the partition's name. Raise for one that is missing, too small or too short."""
    partitions = slurm_partitions()
    names = {each.name.rstrip("*"): each for each in partitions}
    default = next((each.name.rstrip("*") for each in partitions if each.name.endswith("*")), None)
    chosen = wanted.partition or default
    if chosen is None:
        raise SkytrainError(f"the cluster has no default partition\n  set cloud.slurm.partition: {', '.join(names)}")
    if chosen not in names:
        raise SkytrainError(f"cloud.slurm.partition={chosen}: no such partition\n  one of {', '.join(names)}")
    partition = names[chosen]
    if wanted.nodes > partition.nodes:
        raise SlurmError(
            f"cloud.slurm.nodes={wanted.nodes}: partition {chosen} has {partition.nodes}\n  ask for fewer, or another",
            "quota",
        )
    if partition.seconds is not None and wanted.time > partition.seconds:
        raise SkytrainError(
            f"cloud.slurm.time={format_seconds(wanted.time)}: partition {chosen} allows "
            f"{format_seconds(partition.seconds)}\n  set cloud.slurm.time; the run continues in the next job"
        )
    return chosen


def _check_shared(path: str, wanted: SlurmConfig) -> list[str]:
    """Raise if other nodes cannot see the folder; return what is doubtful."""
    kind = filesystem_of(Path(path))
    if kind in PRIVATE and wanted.nodes > 1:
        raise SlurmError(
            f"{path} is in the memory of this machine ({kind}): other nodes cannot see it\n"
            "  choose a folder that all nodes share, or a store in S3"
        )
    if kind in LOCAL and wanted.nodes > 1:
        return [f"{path} is on a disk of this machine ({kind}); every node must mount it: the job checks that"]
    return []


def filesystem_of(path: Path, mounts: Callable[[], str] = lambda: Path("/proc/self/mounts").read_text()) -> str:
    """Return the kind of the file system on which a path is, or will be."""
    place = os.path.realpath(path)
    best = ""
    kind = ""
    for line in mounts().splitlines():
        _, point, mounted = line.split()[:3]
        point = point.replace("\\040", " ")
        if (place == point or place.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
            best = point
            kind = mounted
    return kind
