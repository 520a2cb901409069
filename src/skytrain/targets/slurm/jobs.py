"""What a Slurm cluster says, through its own commands: partitions, jobs, and whether a script would be taken."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...config import EXIT_CODES
from ..base import Columns, SchedulerError, SchedulerJob
from .requests import JOB_NAME_PREFIX, OVER, STARTS, slurm_job_name

OLDEST = (22, 5)
QUERY_SECONDS = 60.0
UNLIMITED = ("infinite", "UNLIMITED", "")
ENDED = (
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "TIMEOUT",
)


class SlurmError(SchedulerError):
    """The cluster cannot be asked, or refuses."""

    def __init__(self, text: str, cause: str = "preflight") -> None:
        super().__init__(text)
        self.exit_code = EXIT_CODES[cause]


def slurm_job(
    id: str,
    state: str,
    nodes: str,
    elapsed: str = "-",
    limit: str = "-",
    restarts: int | None = None,
    reason: str = "",
    log: str | None = None,
    exit_code: int | None = None,
    run: str | None = None,
) -> SchedulerJob:
    """Return a job as squeue, scontrol or sacct tell of it. A state may have more words: `CANCELLED by 0`."""
    word = state.split()[0]
    facts = {
        "id": id,
        "state": state,
        "nodes": nodes,  # names, or how many it waits for
        "elapsed": elapsed,
        "limit": limit,
        "restarts": restarts,
        "reason": reason,
        "log": log,
        **({"run": run} if run else {}),
    }
    return SchedulerJob(
        id=id,
        name=run or id,
        state=state,
        phase="ended" if word in ENDED else "waiting" if word == "PENDING" else "running",
        hosts=nodes,
        reason=reason if reason not in ("", "None") else None,
        exit_code=exit_code,
        seconds=seconds_of(elapsed) if elapsed[:1].isdigit() else None,
        log=log,
        facts=facts,
    )


COLUMNS: Columns = {
    "JOB": lambda job: job.id,
    "STATE": lambda job: job.state.lower(),
    "NODES": lambda job: job.hosts,
    "TIME": lambda job: str(job.facts["elapsed"]),
    "LIMIT": lambda job: str(job.facts["limit"]),
    "RESTARTS": lambda job: "-" if job.facts["restarts"] is None else str(job.facts["restarts"]),
    "REASON": lambda job: str(job.facts["reason"]).replace("None", "") or "-",
}


COLUMNS_OF_ALL_RUNS: Columns = {"RUN": lambda job: job.name, **COLUMNS}


@dataclass(frozen=True)
class Partition:
    """What the scheduler says about a partition."""

    name: str
    nodes: int
    seconds: float | None  # longest time limit; None: unlimited


def ask_slurm(command: Sequence[str], *, stdin: str | None = None) -> str:
    """Run one of Slurm's commands and return its output."""
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=QUERY_SECONDS, check=False)
    except FileNotFoundError:
        raise SlurmError(
            f"{command[0]} is not installed here\n  run this on a login node of the Slurm cluster"
        ) from None
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{command[0]} did not answer within {QUERY_SECONDS:.0f} s\n  is slurmctld up?") from None
    if done.returncode != 0:
        raise SlurmError(
            f"{command[0]}: {done.stderr.strip() or done.stdout.strip() or f'exit code {done.returncode}'}"
        )
    return done.stdout


def check_slurm_version() -> None:
    """Raise for a Slurm that is too old."""
    version = re.search(r"(\d+)\.(\d+)", text := ask_slurm(["sbatch", "--version"]))
    if version is None or (int(version[1]), int(version[2])) < OLDEST:
        raise SlurmError(f"{text.strip()}: Skytrain needs Slurm {OLDEST[0]}.{OLDEST[1]:02} or later")


def slurm_partitions() -> list[Partition]:
    """Return the partitions of the cluster; the default one's name ends with a star."""
    rows = ask_slurm(["sinfo", "--noheader", "--summarize", "--format=%P|%D|%l"]).splitlines()
    partitions = []
    for row in rows:
        name, nodes, limit = row.strip().split("|")
        partitions.append(Partition(name, int(nodes), None if limit in UNLIMITED else seconds_of(limit)))
    return partitions


def preempt_mode(partition: str) -> str:
    """Return what happens to a job of the partition that is preempted: OFF, CANCEL, REQUEUE or SUSPEND."""
    whole = dict(re.findall(r"^(\w+) *= (\S+)", ask_slurm(["scontrol", "show", "config"]), re.MULTILINE))
    if whole.get("PreemptType", "preempt/none").endswith("none"):
        return "OFF"
    own = dict(re.findall(r"(\w+)=(\S*)", ask_slurm(["scontrol", "show", "partition", partition])))
    return own.get("PreemptMode") or whole.get("PreemptMode", "OFF")


def seconds_of(text: str) -> float:
    """Return the seconds of a time as Slurm writes it: days-hours:minutes:seconds, or minutes:seconds."""
    days, _, rest = text.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    hours, minutes, seconds = [0, *parts] if len(parts) == 2 else (parts if len(parts) == 3 else [0, parts[0], 0])
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def submit_job(script: str, *, test_only: bool = False) -> str:
    """Submit the script and return the number of its job; with `test_only`, only ask whether it would be taken."""
    command = ["sbatch", "--parsable", *(["--test-only"] if test_only else [])]
    return ask_slurm(command, stdin=script).strip().partition(";")[0]


def slurm_jobs(run: str) -> list[SchedulerJob]:
    """Return the jobs of a run that the scheduler still knows, newest first."""
    jobs = _queued(f"--name={slurm_job_name(run)}")
    known = {each.id for each in jobs}
    jobs += [each for each in _accounted(run) if each.id not in known]
    return _newest_first(jobs)


def jobs_of_all_runs() -> list[SchedulerJob]:
    """Return the user's jobs that the queue has, of every run, newest first; `name` is the run's."""
    return _newest_first(_queued())


def _queued(*options: str) -> list[SchedulerJob]:
    rows = ask_slurm(["squeue", "--noheader", "--me", "--states=all", *options, "--format=%i|%T|%N|%D|%M|%l|%r|%j"])
    jobs = []
    for row in rows.splitlines():
        number, state, names, count, elapsed, limit, reason, name = row.strip().split("|", 7)
        if not name.startswith(JOB_NAME_PREFIX):
            continue
        details = job_details(number)
        restarts = details.get("Restarts")
        jobs.append(
            slurm_job(
                id=number,
                run=name.removeprefix(JOB_NAME_PREFIX),
                state=state,
                nodes=names or f"{count} wanted",
                elapsed=elapsed,
                limit=limit,
                restarts=int(restarts) if restarts else None,
                reason=reason,
                log=details.get("StdOut"),
            )
        )
    return jobs


def _newest_first(jobs: Sequence[SchedulerJob]) -> list[SchedulerJob]:
    return sorted(jobs, key=lambda each: int(re.match(r"\d+", each.id)[0]), reverse=True)  # type: ignore[index]


def job_details(number: str) -> dict[str, str]:
    """Return what the scheduler knows about a job; empty if it has forgotten it."""
    try:
        text = ask_slurm(["scontrol", "show", "job", number])
    except SlurmError:  # it has just been forgotten
        return {}
    details = dict(re.findall(r"(\w+)=(\S*)", text))
    return {**details, **dict(re.findall(r"^ *(StdOut)=(.*)$", text, re.MULTILINE))}  # a path may have spaces


def _accounted(run: str) -> list[SchedulerJob]:
    """Return the run's jobs of the accounting; none where the cluster keeps no accounts."""
    try:
        text = ask_slurm(
            ["sacct", "--noheader", "--parsable2", "--allocations", f"--name={slurm_job_name(run)}", "--starttime=now-30days",
             "--format=JobID,State,NodeList,Elapsed,Timelimit,Restarts"]
        )  # fmt: skip
    except SlurmError:
        return []
    rows = [row.split("|") for row in text.splitlines() if row.count("|") == 5]
    return [
        slurm_job(
            id=number,
            run=run,
            state=state,
            nodes=nodes,
            elapsed=elapsed,
            limit=limit,
            restarts=int(restarts) if restarts.isdigit() else None,
            reason="",
        )
        for number, state, nodes, elapsed, limit, restarts in rows
    ]


def cancel_jobs(jobs: Sequence[SchedulerJob]) -> None:
    """Cancel the jobs. They are not requeued."""
    if jobs:
        ask_slurm(["scancel", *(each.id for each in jobs)])


def drain_node(node: str, reason: str) -> bool:
    """Take a node out of service; False where this user may not."""
    try:
        ask_slurm(["scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason=skytrain: {reason[:200]}"])
    except SlurmError:
        return False
    return True


class SlurmMachines:
    """The scheduler owns the nodes: the agent only says whether the job is to be requeued."""

    def __init__(self, folder: Path, node: str, tell: Callable[[str], None]) -> None:
        self._folder = folder
        self._node = node
        self._tell = tell

    def end_run(self, exit_code: int) -> bool:
        return True

    def set_desired(self, count: int) -> bool:
        """Mark the run as over: the batch script then does not requeue the job."""
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / OVER).touch()
        return True

    def keep_waiting(self) -> bool:
        return True

    def prove(self, progress: int) -> None:
        """Let the job be started again as often as before: it has made progress since its last start."""
        (self._folder / STARTS).unlink(missing_ok=True)

    def lack_nodes(self, ready: int, wanted: int, seconds: float) -> str | None:
        return None

    def delete_groups(self) -> None:
        return

    def replace_me(self, reason: str) -> None:
        """Drain the node, so that the requeued job gets another. A user who may not drain nodes must see to it."""
        if drain_node(self._node, reason):
            self._tell(f"node {self._node} is drained, and the job requeued: {reason}")
        else:
            self._tell(f"node {self._node} is unfit, and only an administrator may drain it: {reason}")
            self.set_desired(0)

    def terminate_me(self) -> None:
        return
