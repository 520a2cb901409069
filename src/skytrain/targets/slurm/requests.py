"""The batch script of a run on a Slurm cluster: one node agent on each node, requeued until the run is over."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ...config import EXIT_CODES, UNCOMMITTED, SkytrainError, SlurmConfig

LEAVE_SECONDS = 120  # for the other agents after the first has ended
HYPERPOD = "/opt/sagemaker_cluster"  # a folder of every node of a SageMaker HyperPod cluster
AUTO_RESUME = "[Auto Resume]"  # begins what HyperPod's resiliency writes into the log of a job
JOB_NAME_PREFIX = "skytrain-"
NOT_IN_NAMES = re.compile(r"[,%\x00-\x1f]")  # squeue splits names at commas, --output takes % for a pattern
PLAIN = re.compile(r"[\w./:=@,%+-]+")  # what sbatch takes as it stands
# files of the job, in the folder of its script
OVER = "over"
FAILURES = "failures"
STARTS = "starts"
MOST_STARTS = 20  # of a job without a committed step in between, whoever requeues it

TEMPLATE = """\
#!/bin/bash
{options}
# Run {run}, written by `skytrain launch`. It resumes from the last commit whenever it starts.
folder={folder}
cd {work_folder} || exit 3
[ "${{SLURM_RESTART_COUNT:-0}}" -gt 0 ] || rm -f "$folder/{over}" "$folder/{failures}" "$folder/{starts}"
# Slurm itself requeues a job that was preempted or lost a node. The agents remove the count when a step is committed.
starts=$(($(cat "$folder/{starts}" 2> /dev/null || echo 0) + 1))
if [ "$starts" -gt {most_starts} ]; then
  echo "started {most_starts} times without a committed step: it ends here"
  exit {uncommitted}
fi
# A full disk, which may be why the job fails, must not make a count begin again.
count() {{ echo "$2" > "$folder/$1" && [ "$(cat "$folder/$1")" = "$2" ] || ! echo "$folder/$1 cannot be written: is the disk full?"; }}
count {starts} "$starts" || exit 3
{environment}
# Every node must see the files of the others, and write there.
for shared in {shared}; do
  mark="$shared/.slurm-$SLURM_JOB_ID"
  touch "$mark" || {{ echo "$shared is not writable: $(id -un) cannot write there on $(hostname)"; exit 3; }}
  srun --ntasks-per-node=1 bash -c '[ -e "$0" ] || exit 66; touch "$0" || exit 67' "$mark"
  seen=$?
  rm -f "$mark"
  case $seen in
    66) echo "$shared is not shared: not every node of $SLURM_JOB_NODELIST sees what the first one writes there" ;;
    67) echo "$shared is not writable: $(id -un) cannot write there on every node of $SLURM_JOB_NODELIST" ;;
    *) continue ;;
  esac
  exit 3
done

# One agent on each node. They meet through the store, train, and leave when the run is over.
agents=(srun --ntasks-per-node=1 --wait={leave}{container})
if [ -d {hyperpod} ]; then # HyperPod replaces faulty nodes; it writes [Auto Resume] lines into this log
  agents+=(--auto-resume=1)
fi
"${{agents[@]}}" bash -c {agent} &
running=$!

# {save_before} s before the time limit, or when the job is cancelled: the agents save and leave.
trap 'scancel --signal=TERM "$SLURM_JOB_ID"' USR1
trap : TERM
while kill -0 "$running" 2> /dev/null; do # a trap ends `wait` early
  wait "$running"
done
wait "$running" # its status is kept
code=$?

if [ -e "$folder/{over}" ]; then # done, budget, `skytrain stop`, or an error that another try does not mend
  exit "$code"
fi
case $(squeue --noheader --jobs="$SLURM_JOB_ID" --format="%T %r") in
  "COMPLETING TimeLimit") ;;
  COMPLETING*) exit "$code" ;; # cancelled, which must hold; or requeued by Slurm itself
esac
case $code in
  2 | 8 | 9 | 11) exit "$code" ;; # a mistake in the settings, another attempt, damage, credentials
  7) failures=0 ;;                # interrupted after a commit
  *) failures=$(($(cat "$folder/{failures}" 2> /dev/null || echo 0) + 1)) ;;
esac
if [ "$failures" -gt {max_failures} ]; then
  echo "failed $failures times in a row without a commit: not requeued"
  exit "$code"
fi
if [ "$failures" -eq 0 ]; then
  rm -f "$folder/{failures}"
else
  count {failures} "$failures" || exit "$code"
fi
echo "exit code $code: the job is requeued"
scontrol requeue "$SLURM_JOB_ID"
"""


def slurm_job_name(run: str) -> str:
    """Return the name by which status and stop find the job of a run."""
    if NOT_IN_NAMES.search(run):
        raise SkytrainError(f"run {run!r} cannot name a job of Slurm: no commas, percent signs and line breaks")
    return f"{JOB_NAME_PREFIX}{run}"


@dataclass(frozen=True)
class SlurmScript:
    """All that a batch script is made of."""

    run: str
    launch: str  # the number of its record in the store
    arguments: tuple[str, ...]  # of `skytrain node`
    settings: SlurmConfig
    folder: Path  # of the script and its log
    work_folder: Path
    store: str  # its root; a path, unless it is a URL
    python: str
    max_failures: int

    @property
    def log(self) -> str:
        """The log of the job, with Slurm's %j for its number."""
        return str(self.folder / "slurm-%j.log")

    @property
    def shared_folders(self) -> tuple[str, ...]:
        """Folders that every node must see: the job's own, and a store that is not a bucket."""
        return (str(self.folder), *(self._store_folder if self.settings.nodes > 1 else ()))

    @property
    def _store_folder(self) -> tuple[str, ...]:
        return () if "://" in self.store else (self.store,)

    def options(self) -> list[str]:
        """Return the options of sbatch, as they stand in the script."""
        given = {
            "--job-name": slurm_job_name(self.run),
            "--output": self.log,
            "--comment": f"skytrain store.root={self.store}",
        }
        return [*sbatch_options(self.settings, given), "--exclusive"]

    def render(self) -> str:
        """Return the batch script."""
        wanted = self.settings
        processes = ("--processes", str(wanted.processes)) if wanted.processes else ()
        agent = shlex.join(
            [self.python, "-m", "skytrain", "node", *self.arguments, "--nodes", str(wanted.nodes), *processes]
        )
        return TEMPLATE.format(
            run=self.run,
            options="\n".join(f"#SBATCH {option}" for option in self.options()),
            folder=shlex.quote(str(self.folder)),
            work_folder=shlex.quote(str(self.work_folder)),
            environment=environment_lines(wanted),
            shared=shlex.join(self.shared_folders),
            leave=LEAVE_SECONDS,
            container=container_options(self.settings, self.work_folder, (*self.shared_folders, *self._store_folder)),
            agent=shlex.quote(f'exec {agent} --name "$SLURMD_NODENAME" --launch {self.launch}'),
            save_before=f"{wanted.save_before:.0f}",
            hyperpod=shlex.quote(HYPERPOD),
            over=OVER,
            failures=FAILURES,
            starts=STARTS,
            most_starts=MOST_STARTS,
            uncommitted=EXIT_CODES[UNCOMMITTED],
            max_failures=self.max_failures,
        )


def container_options(wanted: SlurmConfig, work_folder: Path, folders: Iterable[str]) -> str:
    """Return the options of Pyxis. A container sees only what is mounted: its commands need these folders."""
    if not wanted.container:
        return ""
    seen = dict.fromkeys((str(work_folder), *folders))
    mounts = ",".join([*(f"{folder}:{folder}" for folder in seen), *wanted.container_mounts])
    options = {"image": wanted.container, "mounts": mounts, "workdir": str(work_folder)}
    return "".join(f" --container-{name}={shlex.quote(value)}" for name, value in options.items())


def sbatch_options(wanted: SlurmConfig, given: Mapping[str, str]) -> list[str]:
    """Return options of sbatch: `given`, what the settings ask for, and their further options."""
    asked = {
        **given,
        "--partition": wanted.partition,
        "--account": wanted.account,
        "--qos": wanted.qos,
        "--nodes": wanted.nodes,
        "--ntasks-per-node": 1,
        "--gpus-per-node": wanted.gpus,
        "--time": slurm_time(wanted.time),
        "--signal": f"B:USR1@{wanted.save_before:.0f}",
        "--open-mode": "append",
    }
    options = [f"{name}={_quoted(str(value))}" for name, value in asked.items() if value is not None]
    further = [f"--{name}={_quoted(value)}" if value else f"--{name}" for name, value in wanted.options.items()]
    return [*options, "--requeue", *further]


def environment_lines(wanted: SlurmConfig) -> str:
    """Return the lines of a script that load modules, set variables and run the user's set-up."""
    lines = [f"module load {shlex.quote(name)}" for name in wanted.modules]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in sorted(wanted.environment.items())]
    lines += wanted.setup
    return "\n".join(lines) + ("\n" if lines else "")


def _quoted(value: str) -> str:
    """Quote as sbatch reads its own lines: elsewhere a space ends a value, and # begins a comment."""
    if not value.isprintable():  # what follows a line break would be a line of the script
        raise SkytrainError(f"{value!r:.80} cannot be an option of sbatch: it has a line break or a control character")
    return value if PLAIN.fullmatch(value) else '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'


def slurm_time(seconds: float) -> str:
    """Return a duration as Slurm writes it: days-hours:minutes:seconds."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"{days}-{hour:02}:{minute:02}:{second:02}"
