"""`skytrain launch cloud=eks`: the objects, the question, the job."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from .confirm import ask_yes

if TYPE_CHECKING:
    from ..cloud import AwsSession
    from ..config import Config
    from ..pipelines.launch_eks import EksLaunch, EksRequest


def launch_on_eks(request: EksRequest, yes: bool, dry_run: bool, follow: bool) -> None:
    """Create the job of a plan, or print its objects as YAML. With `follow`, watch the run until it ends."""
    from ..cloud import open_session, to_yaml
    from ..pipelines.follow import RunFollower
    from ..pipelines.launch_eks import prepare_eks_launch, start_eks_launch, wait_for_pods
    from .console import reporter
    from .screen import follow_launch, print_next

    config = request.composed.config

    def session() -> AwsSession:
        return open_session(config.cloud.region, config.cloud.account)

    launch = prepare_eks_launch(request, session, ask=not dry_run)
    if dry_run:
        print(to_yaml(launch.objects), end="")
        return
    _describe(launch, config)
    if not yes:
        ask_yes("Launch?")
    with reporter() as console:
        start_eks_launch(launch, console)
    print(f"launched {launch.run}: {launch.job.cloud.kind} {launch.job.name} in {config.cloud.eks.namespace}")
    print("The job needs neither this terminal nor this computer.")
    if follow:
        with reporter() as console:
            wait_for_pods(launch, console.note)
        follower = RunFollower(config, launch.run, None, launched=True)
        raise typer.Exit(follow_launch(follower, "cloud=eks"))
    print("Next:")
    print_next(launch.run, "cloud=eks")


def _describe(launch: EksLaunch, config: Config) -> None:
    """Print the job in a few lines, before the question."""
    from ..config import format_seconds

    job, size = launch.job, launch.job.size
    assert launch.cluster is not None
    hours = job.limit_seconds / 3600
    machines = f"{size.nodes} x {size.instance_type} ({size.market})" if size.instance_type else f"{size.nodes} pods"
    price = f"${launch.usd_per_hour:.2f} an hour" if launch.usd_per_hour_each is not None else "unknown"
    most = f", at most ${launch.usd_per_hour * hours:.2f} by then" if launch.usd_per_hour_each is not None else ""
    lines = [
        ("run", launch.run),
        ("cluster", f"{launch.cluster.name}, namespace {config.cloud.eks.namespace}"),
        ("account", f"{launch.record.account or 'by kubeconfig'} in {launch.record.region or 'any region'}"),
        ("job", f"{config.cloud.kind} {job.name}"),
        ("machines", machines),
        ("each pod", f"{size.gpus} GPUs, {size.efa} EFA, {size.cpus} CPUs, {size.memory_gib} GiB"),
        ("price", price),
        ("limit", f"{format_seconds(job.limit_seconds)}, waiting for nodes included{most}"),
        ("store", launch.store.root),
    ]
    if launch.plan is not None:
        cost = launch.plan.choice.cost
        lines.insert(-2, ("takes", f"{cost.hours:.1f} h (p90 {cost.hours_p90:.1f} h), ${cost.usd:.2f}"))
    for name, text in lines:
        print(f"  {name:<10} {text}")
    if launch.plan is not None and launch.plan.offers[1:]:
        print("  – a job has one kind of machine: the plan's fallbacks are not used", file=sys.stderr)


def user_files(folders: list[Path]) -> dict[str, bytes]:
    """The user's own groups of settings, which go to the pods."""
    from ..pipelines.launch import config_files

    return config_files([*folders, Path()])
