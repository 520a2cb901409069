"""`skytrain stop`: ends a run after a checkpoint, and gives back its machines."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from .launch_emr import EMR_TARGETS
from .options import ConfigDirs, Json, RunName, StoreOverrides, compose_overrides, seconds_of

if TYPE_CHECKING:
    from ..cloud import AwsSession, CloudResource
    from ..config import Config

Wait = Annotated[
    str, typer.Option("--wait", metavar="TIME", help="How long to wait for its end: 90s, 10m; 0s only asks.")
]
Force = Annotated[
    bool, typer.Option("--force", help="Terminate its machines after --wait even if it has not saved by then.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before machines are terminated.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the exact requests as JSON, and send none.")]


def stop(
    run: RunName,
    overrides: StoreOverrides = None,
    wait: Wait = "5m",
    force: Force = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    config_dir: ConfigDirs = None,
    as_json: Json = False,
) -> None:
    """Stop a run after its current step and a checkpoint.

    Writes one object into the run's folder, which the run reads every few seconds, so it works from any machine that
    reaches the store. The run ends as `stopped` with exit code 0, and the same `skytrain train` resumes it.

    With cloud=aws, the run's Auto Scaling groups are then set to zero and its instances terminated. This asks first.
    With cloud=slurm or eks, its jobs are cancelled; with cloud=sagemaker or cloud=emr, its job is stopped.

    \b
    Examples:
      skytrain stop my-run
      skytrain stop my-run store.root=s3://bucket/project --wait 0s
      skytrain stop my-run cloud=aws --dry-run
    """
    from ..pipelines.stop import describe_stop, end_machines, require_run, stop as pipeline
    from .console import reporter

    config, seconds = compose_overrides(overrides, config_dir).config, seconds_of("--wait", wait)
    if config.cloud.target in EMR_TARGETS:
        return _stop_emr(config, run, yes, dry_run, as_json)
    if config.cloud.target == "eks" and not _may_delete_jobs(config, run, yes, dry_run):
        return
    if _stop_sweep(config, run, yes, dry_run):
        return
    if config.cloud.target == "sagemaker":
        if dry_run:
            return _print_job_requests(config, run)
        _ask_jobs(config, run, yes)
    if config.cloud.target in ("eks", "slurm", "sagemaker"):
        return _stop_jobs(config, run, seconds, force, as_json)
    session, machines = _machines(config, run)
    if dry_run:
        return _print_requests(config, run, machines)
    if session is not None and machines:
        require_run(config, run, machines)
        _ask(session, run, machines, yes)
    with reporter() as console:
        stopped = pipeline(config, run, seconds, console)
        left = stopped.may_be_saving and not force
        if session is not None and machines and not left:
            # Those of now: a group may have replaced some during the wait, and others have ended by themselves.
            end_machines(session, _machines(config, run)[1] if stopped.asked else machines, console)
    print(json.dumps(dataclasses.asdict(stopped), indent=1) if as_json else describe_stop(stopped))
    if machines and left:
        print(
            f"its machines still run: they end by themselves when it has saved; run this again, or add --force\n"
            f"  skytrain status {run} cloud=aws",
            file=sys.stderr,
        )
        raise typer.Exit(3)


def _stop_sweep(config: Config, name: str, yes: bool, dry_run: bool) -> bool:
    """Whether the name is a sweep's: then its processes are asked to stop, and its machines' groups set to zero."""
    from ..pipelines.stop import end_machines, stop_calls
    from ..pipelines.sweep_state import find_sweep_status, stop_sweep
    from .console import reporter

    found = find_sweep_status(config, name)
    if found is None:
        return False
    machines = [each for run in found.machines for each in _machines(config, run)[1]]
    if dry_run:
        requests = [{"region": region, **call.render()} for region, call in stop_calls(machines)]
        print(json.dumps({"sessions": found.sessions, "requests": requests}, indent=1))
        return True
    session = _machines(config, name)[0] if machines else None
    if session is not None:
        _ask(session, name, machines, yes)
    with reporter() as console:
        asked = stop_sweep(config, name, console)
        if session is not None:
            end_machines(session, machines, console)
    if config.cloud.target == "slurm":
        _stop_array(config, name)
    from ..config import plural

    count = plural(len(asked), "process", "processes")
    print(f"{name}: {count} asked to stop; the same command continues it" if asked else f"{name}: nothing to stop")
    return True


def _stop_array(config: Config, name: str) -> None:
    from pathlib import Path

    from ..cloud import array_tasks, stop_tasks

    stop_tasks(array_tasks(name, Path(config.cloud.slurm.folder).absolute() / name))


def _stop_emr(config: Config, run: str, yes: bool, dry_run: bool, as_json: bool) -> None:
    """End the run's Spark jobs on EMR. Finished stages are in the store: there is nothing to save first."""
    from ..cloud import open_session, render_calls
    from ..pipelines.emr_jobs import emr_stop_requests, stop_emr_run
    from .confirm import confirm
    from .console import reporter

    requests = emr_stop_requests(config, run)
    if dry_run:
        print(render_calls(requests))
        return
    if requests:
        confirm(open_session(config.cloud.region, config.cloud.account), f"Stop {run}?", 0.0, yes)
    with reporter() as console:
        count = stop_emr_run(config, run, console)
    if as_json:
        print(json.dumps({"run": run, "stopped_jobs": count}, indent=1))
    elif count:
        print(f"{run}: what it has prepared is used when it is launched again")
    else:
        print(f"{run}: nothing to stop, it has no job on EMR that runs")


def _stop_jobs(config: Config, run: str, seconds: float, force: bool, as_json: bool) -> None:
    from ..pipelines.eks_jobs import stop_eks_run
    from ..pipelines.sagemaker_jobs import stop_sagemaker_run
    from ..pipelines.slurm_jobs import stop_slurm_run
    from ..pipelines.stop import describe_stop
    from .console import reporter

    targets = {"eks": stop_eks_run, "sagemaker": stop_sagemaker_run, "slurm": stop_slurm_run}
    stop_run = targets[str(config.cloud.target)]
    with reporter() as console:
        stopped = stop_run(config, run, seconds, force, console)
    if as_json:
        print(json.dumps(dataclasses.asdict(stopped) if stopped else {"run": run, "asked": False}, indent=1))
    else:
        print(describe_stop(stopped) if stopped else f"{run}: it had not begun to train")
    if stopped is not None and stopped.may_be_saving and not force:
        raise typer.Exit(3)


def _print_job_requests(config: Config, run: str) -> None:
    from ..cloud import render_calls
    from ..pipelines.sagemaker_jobs import stop_requests

    print(render_calls(stop_requests(config, run)))


def _ask_jobs(config: Config, run: str, yes: bool) -> None:
    from ..cloud import open_session
    from ..config import plural
    from ..pipelines.sagemaker_jobs import active_usd_per_hour, stop_requests
    from .confirm import confirm

    session = open_session(config.cloud.region, config.cloud.account)
    if requests := stop_requests(config, run):
        saved = active_usd_per_hour(config, run)
        confirm(session, f"Stop {run} and {plural(len(requests), 'training job')}?", -saved, yes)


def _stop_serving(config: Config, yes: bool, dry_run: bool) -> None:
    """Scale the cluster's vLLM to zero."""
    from ..pipelines.serve_targets.eks import serving_state, stop_serving
    from .confirm import ask_yes

    if dry_run:
        return print(serving_state(config).text)
    if not yes:
        ask_yes(f"{serving_state(config).text}. Stop serving?")
    print("no pod serves any more: the GPU nodes are given back" if stop_serving(config) else "nothing was served")


def _may_delete_jobs(config: Config, run: str, yes: bool, dry_run: bool) -> bool:
    """Ask before jobs of the cluster are deleted; a dry run only names them. `vllm` is what it serves, and no run."""
    from ..config import plural
    from ..pipelines.eks_jobs import run_pods
    from .confirm import ask_yes

    if run == "vllm":
        _stop_serving(config, yes, dry_run)
        return False
    active = [job.name for job in run_pods(config, run) if not job.has_ended]
    if dry_run:
        print(json.dumps([{"delete": name, "namespace": config.cloud.eks.namespace} for name in active], indent=1))
    elif active and not yes:
        ask_yes(f"Stop {run} and delete {plural(len(active), 'job')} in {config.cloud.eks.namespace}?")
    return not dry_run


def _machines(config: Config, run: str) -> tuple[AwsSession | None, list[CloudResource]]:
    """The run's machines; none without an AWS account in the configuration."""
    if config.cloud.project is None:
        return None, []
    from ..cloud import open_session
    from ..pipelines.account import machines_of

    session = open_session(config.cloud.region, config.cloud.account)
    return session, machines_of(config, session, run, lambda text: print(text, file=sys.stderr))


def _ask(session: AwsSession, run: str, machines: list[CloudResource], yes: bool) -> None:
    from ..config import plural
    from .confirm import confirm

    count = len([each for each in machines if each.kind == "instance"])
    saved = sum(each.usd_per_hour or 0.0 for each in machines)
    confirm(session, f"Stop {run} and terminate {plural(count, 'machine')}?", -saved, yes)


def _print_requests(config: Config, run: str, machines: list[CloudResource]) -> None:
    from ..pipelines.stop import planned_stop

    print(json.dumps(planned_stop(config, run, machines), indent=1))
