"""Independent commands as one job array of Slurm: each task saves before its time limit and is requeued on its own."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...config import Composed, ConfigError, SkytrainError, SlurmConfig
from ...tuning import sweep_name
from ..base import SchedulerJob
from ..jobs import machine_run
from .jobs import SlurmError, ask_slurm, slurm_job, submit_job
from .launch import job_python, store_root
from .requests import LEAVE_SECONDS, container_options, environment_lines, sbatch_options

# files of a task: its exit code, failures in a row, told to stop
CODE = "code"
FAILURES = "failures"
STOP = "stop"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

TEMPLATE = """\
#!/bin/bash
{options}
# {count} independent tasks, written by Skytrain. Each resumes from its last commit whenever it starts.
folder={folder}
task=$SLURM_ARRAY_TASK_ID
job="${{SLURM_ARRAY_JOB_ID}}_$task" # the number alone of an array's last task would mean all of its tasks
cd {work_folder} || exit 3
[ "${{SLURM_RESTART_COUNT:-0}}" -gt 0 ] || rm -f "$folder/$task."{{failures,code,stop}}
{environment}
commands=(
{commands}
)
srun --ntasks-per-node=1 --wait={leave}{container} bash -c "exec ${{commands[$task]}}" &
command=$!

# {save_before} s before the time limit, or when the task is cancelled: the command saves and leaves.
trap 'scancel --signal=TERM "$job"' USR1
trap : TERM
while kill -0 "$command" 2> /dev/null; do # a trap ends `wait` early
  wait "$command"
done
wait "$command" # its status is kept
code=$?

state=$(squeue --noheader --jobs="$job" --format="%T %r")
if [ ! -e "$folder/$task.stop" ] && [[ $state == COMPLETING* && $state != *TimeLimit ]]; then
  exit "$code" # cancelled, which must hold; or requeued by Slurm itself
fi
failures=$(($(cat "$folder/$task.failures" 2> /dev/null || echo 0) + 1))
case $code in
  0 | 2 | 6 | 8 | 9 | 11) failures=-1 ;; # done, or what another try does not mend
  7) failures=0 ;;                       # interrupted after a commit
esac
if [ -e "$folder/$task.stop" ] || [ "$failures" -lt 0 ] || [ "$failures" -gt {max_failures} ]; then
  echo "$code" > "$folder/$task.code"
  exit "$code"
fi
rm -f "$folder/$task.failures"
if [ "$failures" -gt 0 ]; then # a full disk, which may be why the task fails, must not make the count begin again
  echo "$failures" > "$folder/$task.failures"
  if [ "$(cat "$folder/$task.failures")" != "$failures" ]; then
    echo "$folder/$task.failures cannot be written: is the disk full? Task $task is not requeued"
    exit "$code"
  fi
fi
echo "exit code $code: task $task is requeued"
scontrol requeue "$job"
"""


@dataclass(frozen=True)
class SlurmArray:
    """Commands that do not depend on each other, each a task of one job array; its number is its place in `commands`.

    A command runs on `settings.nodes` nodes, once on each. Without `settings.gpus` a task has whole nodes; with it, tasks
    share them. Exit code 7 (interrupted after a commit) and other failures, up to `max_failures` in a row, requeue the
    task; 0, 2, 6, 8, 9 and 11 end it.
    """

    name: str
    commands: tuple[tuple[str, ...], ...]
    settings: SlurmConfig
    folder: Path  # shared by all nodes: the script, logs and results
    work_folder: Path
    folders: tuple[str, ...] = ()  # that the commands use too: mounted where they run in a container
    at_once: int | None = None  # most tasks that run together; None: as many as the cluster has room for
    max_failures: int = 3

    def render(self) -> str:
        """Return the batch script."""
        if not self.commands:
            raise SkytrainError("a job array needs at least one command")
        wanted = self.settings
        limit = f"%{self.at_once}" if self.at_once else ""
        given = {
            "--job-name": array_name(self.name),
            "--array": f"0-{len(self.commands) - 1}{limit}",
            "--output": str(self.folder / "%A_%a.log"),
        }
        options = sbatch_options(wanted, given) + ([] if wanted.gpus else ["--exclusive"])
        return TEMPLATE.format(
            options="\n".join(f"#SBATCH {option}" for option in options),
            count=len(self.commands),
            folder=shlex.quote(str(self.folder)),
            work_folder=shlex.quote(str(self.work_folder)),
            environment=environment_lines(wanted),
            commands="\n".join(f"  {shlex.quote(shlex.join(command))}" for command in self.commands),
            leave=LEAVE_SECONDS,
            container=container_options(wanted, self.work_folder, (str(self.folder), *self.folders)),
            save_before=f"{wanted.save_before:.0f}",
            max_failures=self.max_failures,
        )


@dataclass(frozen=True)
class ArrayTask:
    """One task of an array: what the scheduler says, or, where it has forgotten the task, what the task left."""

    number: int  # of its command
    job: SchedulerJob
    exit_code: int | None  # None: not over

    @property
    def is_over(self) -> bool:
        return self.exit_code is not None or self.job.has_ended


def array_name(name: str) -> str:
    """Return the job name of an array, which no run's job has."""
    if not NAME.fullmatch(name):
        raise SkytrainError(f"{name!r} cannot name a job array\n  letters, digits and . _ - only")
    return f"skytrain@{name}"


def submit_array(array: SlurmArray) -> str:
    """Write the script and submit it; returns the number of the job. One array of a name runs at a time."""
    script = array.render()
    active = {task.job.id.partition("_")[0] for task in array_tasks(array.name, array.folder) if not task.is_over}
    if active:
        raise SlurmError(f"the array {array.name} is job {min(active)} already\n  end it: scancel {min(active)}")
    submit_job(script, test_only=True)
    array.folder.mkdir(parents=True, exist_ok=True)
    for kind in (CODE, FAILURES, STOP):  # of an earlier array of this name
        for left in array.folder.glob(f"*.{kind}"):
            left.unlink()
    path = array.folder / "array.sh"
    path.write_text(script)
    path.chmod(0o755)
    return submit_job(script)


def array_tasks(name: str, folder: Path) -> list[ArrayTask]:
    """Return the tasks of the newest array of this name, by number: from squeue, and from results in its folder."""
    rows = ask_slurm(
        [
            "squeue",
            "--noheader",
            "--array",
            "--states=all",
            f"--name={array_name(name)}",
            "--format=%F|%K|%T|%N|%D|%M|%l|%r",
        ]
    ).splitlines()
    listed = [row.strip().split("|") for row in rows if row.count("|") == 7]
    newest = max((int(row[0]) for row in listed), default=None)
    tasks: dict[int, ArrayTask] = {}
    restarts = _restarts(newest) if newest is not None else {}
    for array, number, state, names, count, elapsed, limit, reason in listed:
        if int(array) != newest or not number.isdigit():
            continue
        job = f"{array}_{number}"
        task = int(number)
        nodes = names or f"{count} wanted"
        shown = slurm_job(
            id=job,
            state=state,
            nodes=nodes,
            elapsed=elapsed,
            limit=limit,
            restarts=restarts.get(task),
            reason=reason,
            log=str(task_log(folder, job)),
        )
        tasks[task] = ArrayTask(task, shown, _exit_code(folder, task) if shown.has_ended else None)
    for path in folder.glob(f"*.{CODE}"):
        number = path.stem
        if number.isdigit() and int(number) not in tasks:
            code = int(path.read_text())
            logs = sorted(folder.glob(f"*_{number}.log"), key=lambda log: int(log.stem.partition("_")[0]))
            state = "FAILED" if code else "COMPLETED"
            job = logs[-1].stem if logs else number
            over = slurm_job(id=job, state=state, nodes="-", log=str(logs[-1]) if logs else None, exit_code=code)
            tasks[int(number)] = ArrayTask(int(number), over, code)
    return [tasks[number] for number in sorted(tasks)]


def _restarts(array: int) -> dict[int, int]:
    """Return how often each task was requeued: one question, however many tasks there are."""
    try:
        text = ask_slurm(["scontrol", "--oneliner", "show", "job", str(array)])
    except SlurmError:  # it has just been forgotten
        return {}
    restarts = re.findall(r"\bArrayTaskId=(\d+) .*?\bRestarts=(\d+)", text)
    return {int(task): int(count) for task, count in restarts}


def task_log(folder: Path, job: str) -> Path:
    """Return the file of what a task (`12_3`) has written, all of its tries."""
    return folder / f"{job}.log"


def stop_tasks(tasks: Iterable[ArrayTask]) -> None:
    """Let the commands of these tasks save and leave, and cancel those that wait. They are not requeued."""
    left = [task for task in tasks if not task.is_over]
    for task in left:
        _file(task, STOP).touch()
    if left:
        ask_slurm(["scancel", *(task.job.id for task in left)])


def _file(task: ArrayTask, kind: str) -> Path:
    assert task.job.log is not None, "the scheduler knows this task"
    return Path(task.job.log).parent / f"{task.number}.{kind}"


def _exit_code(folder: Path, number: int) -> int | None:
    path = folder / f"{number}.{CODE}"
    return int(path.read_text()) if path.exists() else None


def prepare_sweep_array(composed: Composed, options: Sequence[str]) -> tuple[str, SlurmArray]:
    """Return the name of the sweep, and an array with one task for each of `tune.machines`."""
    config = composed.config
    wanted = composed.config.cloud.slurm
    if config.tune.usd_per_hour is None and config.budget.usd_per_hour is None:
        raise ConfigError(
            "tune.usd_per_hour", "the cluster's nodes have no price", hint="set what an hour of one costs"
        )
    if config.budget.usd is None:
        raise ConfigError(
            "budget.usd", "is not set", hint="the dollars for search and final run, such as budget.usd=20"
        )
    name = sweep_name(config)
    folder = Path(wanted.folder).absolute()
    python = job_python(wanted)
    root = store_root(config)
    given = (f"tune.name={name}", f"store.root={root}")
    commands = tuple(
        (
            python,
            "-m",
            "skytrain",
            "tune",
            *composed.overrides,
            *options,
            *given,
            f"tune.host={machine_run(name, number)}",
        )
        for number in range(1, config.tune.machines + 1)
    )
    mounted = () if "://" in root else (root,)
    return name, SlurmArray(
        name=name,
        commands=commands,
        settings=replace(wanted, nodes=1),
        folder=folder / name,
        work_folder=Path.cwd(),
        folders=mounted,
    )
