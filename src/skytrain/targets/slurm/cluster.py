"""What a Slurm cluster says, through its own commands: partitions, jobs, and whether a script would be taken."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from ...config import EXIT_CODES, SkytrainError
from .requests import slurm_job_name

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


class SlurmError(SkytrainError):
    """The cluster cannot be asked, or refuses."""

    def __init__(self, text: str, cause: str = "preflight") -> None:
        super().__init__(text)
        self.exit_code = EXIT_CODES[cause]


def has_ended(state: str) -> bool:
    """Whether a job in this state (`CANCELLED by 0`) is over."""
    return state.split()[0] in ENDED


@dataclass(frozen=True)
class SlurmJob:
    """One job of the scheduler."""

    id: str
    state: str  # PENDING, RUNNING, REQUEUED, ...
    nodes: str  # names, or how many it waits for
    elapsed: str
    limit: str
    restarts: int | None
    reason: str
    log: str | None = None

    @property
    def has_ended(self) -> bool:
        return has_ended(self.state)


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
    found = re.search(r"(\d+)\.(\d+)", text := ask_slurm(["sbatch", "--version"]))
    if found is None or (int(found[1]), int(found[2])) < OLDEST:
        raise SlurmError(f"{text.strip()}: Skytrain needs Slurm {OLDEST[0]}.{OLDEST[1]:02} or later")


def slurm_partitions() -> list[Partition]:
    rows = ask_slurm(["sinfo", "--noheader", "--summarize", "--format=%P|%D|%l"]).splitlines()
    found = []
    for row in rows:
        name, nodes, limit = row.strip().split("|")
        found.append(Partition(name, int(nodes), None if limit in UNLIMITED else seconds_of(limit)))
    return found


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


def slurm_jobs(run: str) -> list[SlurmJob]:
    """Return the jobs of a run that the scheduler still knows, newest first."""
    form = "%i|%T|%N|%D|%M|%l|%r"
    rows = ask_slurm(
        ["squeue", "--noheader", "--me", "--states=all", f"--name={slurm_job_name(run)}", f"--format={form}"]
    ).splitlines()
    found = []
    for row in rows:
        number, state, names, count, elapsed, limit, reason = row.strip().split("|")
        details = job_details(number)
        restarts = details.get("Restarts")
        nodes = names or f"{count} wanted"
        found.append(
            SlurmJob(
                id=number,
                state=state,
                nodes=nodes,
                elapsed=elapsed,
                limit=limit,
                restarts=int(restarts) if restarts else None,
                reason=reason,
                log=details.get("StdOut"),
            )
        )
    known = {each.id for each in found}
    found += [each for each in _accounted(run) if each.id not in known]
    return sorted(found, key=lambda each: int(re.match(r"\d+", each.id)[0]), reverse=True)  # type: ignore[index]


def job_details(number: str) -> dict[str, str]:
    """Return what the scheduler knows about a job; empty if it has forgotten it."""
    try:
        text = ask_slurm(["scontrol", "show", "job", number])
    except SlurmError:  # it has just been forgotten
        return {}
    found = dict(re.findall(r"(\w+)=(\S*)", text))
    return {**found, **dict(re.findall(r"^ *(StdOut)=(.*)$", text, re.MULTILINE))}  # a path may have spaces


def _accounted(run: str) -> list[SlurmJob]:
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
        SlurmJob(
            id=number,
            state=state,
            nodes=nodes,
            elapsed=elapsed,
            limit=limit,
            restarts=int(restarts) if restarts.isdigit() else None,
            reason="",
        )
        for number, state, nodes, elapsed, limit, restarts in rows
    ]


def cancel_jobs(jobs: Sequence[SlurmJob]) -> None:
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
