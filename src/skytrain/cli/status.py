"""`skytrain status`: the state of runs, from the store, and of the account's machines, from their tags."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ..config import SkytrainError
from ..runs import NoRuns
from .console import ended_by_reader, pause, table
from .launch_emr import EMR_TARGETS
from .options import ConfigDirs, Json, compose_overrides

if TYPE_CHECKING:
    from ..cloud import EksJob, EmrJob, SageMakerJob, SlurmJob
    from ..config import Config
    from ..pipelines.account import AccountState

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RUN|KEY=VALUE",
        help="A run or a sweep. Default: all runs of the store. store.root=s3://bucket/project chooses the store.",
        show_default=False,
    ),
]


Watch = Annotated[
    bool,
    typer.Option(
        "--watch",
        "--follow",
        "-f",
        help="Show it again every ten seconds: all runs until Ctrl-C, one run until it ends, with its exit code.",
    ),
]
WATCH_SECONDS = 10.0


def status(words: Words = None, watch: Watch = False, config_dir: ConfigDirs = None, as_json: Json = False) -> None:
    """Show runs: step, loss, speed, dollars, time to go.

    Reads the store, so it works from any machine. With cloud=aws it also shows the account's machines: which run each
    works for, since when, its price, what it has cost and when it is ended.

    --watch of one run is the view that `skytrain launch` shows: its nodes, generation, step, loss, tokens/s, MFU,
    dollars and kill time. Ctrl-C ends the view, not the run. With --json it prints one object a line.

    \b
    running, starting             wrote to the store within the last minute (starting: ten)
    stale                         silent for longer, without an outcome: its machine is gone
    failed                        ended with an error, which is shown
    damaged                       a record of it cannot be read, which is named
    stopped, budget, interrupted  ended on purpose; the same `skytrain train` resumes it

    \b
    Examples:
      skytrain status
      skytrain status my-run store.root=s3://bucket/project --json
      skytrain status cloud=aws --watch
      skytrain status my-run cloud=ec2 --watch
    """
    runs = [word for word in words or [] if "=" not in word]
    if len(runs) > 1:
        raise SkytrainError(f"give one run, not {len(runs)}: {', '.join(runs)}\n  without a name, all runs are shown")
    config = compose_overrides([word for word in words or [] if "=" in word], config_dir).config
    run = runs[0] if runs else None
    if config.cloud.target == "eks" and run == "vllm":
        return print(_serving(config, as_json))
    if watch and run and not _sweep(config, run, as_json):
        raise typer.Exit(_follow(config, run, as_json))
    if run and (sweep := _sweep(config, run, as_json)):
        print(sweep)
        return
    with ended_by_reader():
        while True:
            text = _status(config, run, as_json)
            if watch and sys.stdout.isatty():
                print("\x1b[2J\x1b[H", end="")  # clears the screen
            print(text, flush=True)
            if not watch:
                return
            pause(WATCH_SECONDS)


def _sweep(config: Config, name: str, as_json: bool) -> str | None:
    """A sweep of this name, with the machines that were launched for it."""
    from ..pipelines.status import status as pipeline, status_rows
    from ..pipelines.sweep_state import find_sweep_status, sweep_rows

    found = find_sweep_status(config, name)
    if found is None or as_json:
        return json.dumps(dataclasses.asdict(found), indent=1) if found else None
    machines = [each for run in found.machines for each in pipeline(config, run)]
    return "\n".join([table(sweep_rows(found)), *(["", table(status_rows(machines))] if machines else [])])


def _follow(config: Config, run: str, as_json: bool) -> int:
    """Follow one run; returns its exit code, or 0 after Ctrl-C."""
    from ..cloud import open_session
    from ..pipelines.follow import RunFollower
    from .screen import follow_run

    account = config.cloud.project is not None
    session = open_session(config.cloud.region, config.cloud.account) if account else None
    end = follow_run(RunFollower(config, run, session), as_json=as_json, detached=f"{run} goes on")
    if end is not None and not as_json:
        print(f"{run}: {end.reason} (exit code {end.exit_code})")
    return 0 if end is None else end.exit_code


def _status(config: Config, run: str | None, as_json: bool) -> str:
    from ..pipelines.status import describe_status, failure_lines, status as pipeline, status_rows

    slurm, training = _slurm_jobs(config, run), _training_jobs(config, run)
    on_emr, on_eks = _emr_jobs(config, run), _eks_jobs(config, run)
    jobs: list[SlurmJob | SageMakerJob | EmrJob | EksJob] = [*slurm, *training, *on_emr, *on_eks]
    try:
        found = pipeline(config, run)
    except SkytrainError as error:
        if not jobs and not (isinstance(error, NoRuns) and config.cloud.project is not None):
            raise
        found, missing = [], [str(error).partition("\n")[0]]
    else:
        missing = []
    account = _account(config, run, [each.run for each in found])
    if as_json:
        shown = [dataclasses.asdict(each) for each in found]
        runs = shown[0] if run and shown else shown
        if config.cloud.target in ("eks", "slurm", "sagemaker", *EMR_TARGETS):
            return json.dumps({"runs": runs, "jobs": [dataclasses.asdict(job) for job in jobs]}, indent=1, default=str)
        return json.dumps(runs if account is None else {"runs": runs, **dataclasses.asdict(account)}, indent=1)
    alone = run is not None and bool(found)
    lines = [table(describe_status(found[0]))] if alone else [*missing, *([table(status_rows(found))] if found else [])]
    if slurm:
        from ..pipelines.slurm_jobs import job_rows, resiliency_lines

        lines += ["", table(job_rows(slurm)), *resiliency_lines(slurm)]
    if training:
        from ..pipelines.sagemaker_jobs import training_job_rows

        lines += ["", table(training_job_rows(training))]
    if on_emr:
        from ..pipelines.emr_jobs import emr_job_rows

        lines += ["", table(emr_job_rows(config, str(run), on_emr))]
    if on_eks:
        from ..pipelines.eks_jobs import eks_job_tables

        lines += [line for rows in eks_job_tables(on_eks) for line in ("", table(rows))]
    lines += [] if run else failure_lines(found)
    if account is not None:
        from ..pipelines.account import machine_notes, machine_rows

        rows = [table(machine_rows(account))] if account.machines else ["no machine runs in this account"]
        lines += ["", *rows, *machine_notes(account, found)]
    return "\n".join(lines)


def _serving(config: Config, as_json: bool) -> str:
    """What the cluster serves: `vllm` is the name of its Deployment, and of no run."""
    from ..pipelines.serve_targets.eks import serving_state

    found = serving_state(config)
    return json.dumps(dataclasses.asdict(found), indent=1) if as_json else found.text


def _slurm_jobs(config: Config, run: str | None) -> list[SlurmJob]:
    """The scheduler's jobs of a run, where the configuration names a Slurm cluster."""
    if config.cloud.target != "slurm" or run is None:
        return []
    from ..cloud import slurm_jobs

    return slurm_jobs(run)


def _training_jobs(config: Config, run: str | None) -> list[SageMakerJob]:
    """SageMaker's jobs of a run, where the configuration launches there."""
    if config.cloud.target != "sagemaker" or run is None:
        return []
    from ..pipelines.sagemaker_jobs import run_jobs

    return run_jobs(config, run)


def _emr_jobs(config: Config, run: str | None) -> list[EmrJob]:
    """EMR's jobs of a run, where the configuration launches there."""
    if config.cloud.target not in EMR_TARGETS or run is None:
        return []
    from ..pipelines.emr_jobs import run_emr_jobs

    return run_emr_jobs(config, run)


def _eks_jobs(config: Config, run: str | None) -> list[EksJob]:
    """The cluster's jobs of a run, where the configuration launches there."""
    if config.cloud.target != "eks" or run is None:
        return []
    from ..pipelines.eks_jobs import run_pods

    return run_pods(config, run)


def _account(config: Config, run: str | None, runs: list[str]) -> AccountState | None:
    """The machines, if the configuration names an AWS account."""
    if config.cloud.project is None or (config.cloud.target in ("eks", "sagemaker", *EMR_TARGETS) and run is not None):
        return None
    from ..cloud import open_session
    from ..pipelines.account import account_state

    return account_state(config, open_session(config.cloud.region, config.cloud.account), runs, run)
