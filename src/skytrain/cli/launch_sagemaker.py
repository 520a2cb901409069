"""`skytrain launch cloud=sagemaker`: the checks, the question, the training job."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from .confirm import confirm

if TYPE_CHECKING:
    from ..pipelines.launch import PlannedJob
    from ..pipelines.launch_sagemaker import SageMakerLaunch


def launch_on_sagemaker(planned: PlannedJob, folders: list[Path], yes: bool, dry_run: bool, follow: bool) -> None:
    """Create the training job of a plan, or print the request. With `follow`, watch the run until it ends."""
    from ..cloud import Preflight, render_calls
    from ..pipelines.follow import RunFollower
    from ..pipelines.launch import config_files
    from ..pipelines.launch_sagemaker import prepare_sagemaker_launch, start_sagemaker_launch
    from .console import reporter
    from .launch import show_finding
    from .screen import follow_launch, print_next

    launch = prepare_sagemaker_launch(planned, Preflight(planned.composed.config, planned.plan), show_finding)
    if dry_run:
        print(render_calls([launch.call]))
        return
    _describe(launch)
    confirm(launch.session, "Launch?", launch.usd_per_hour, yes)
    with reporter() as console:
        start_sagemaker_launch(launch, config_files([*folders, Path()]), console)
    print(f"launched {launch.run}: training job {launch.job.name}")
    print("The job needs neither this terminal nor this computer.")
    if follow:
        follower = RunFollower(planned.composed.config, launch.run, launch.session, launched=True)
        raise typer.Exit(follow_launch(follower, "cloud=sagemaker"))
    print("Next:")
    print_next(launch.run, "cloud=sagemaker")


def _describe(launch: SageMakerLaunch) -> None:
    """Print the job in a few lines, before the question."""
    from ..config import format_seconds

    job, offer = launch.job, launch.job.offer
    spot = offer.market == "spot"
    most = "at most; managed spot is billed below the price on demand" if spot else "on demand"
    hours = offer.cost.hours
    whose = f"the plan's ${offer.cost.usd:.2f} is {'SageMaker' if offer.target == 'sagemaker' else 'EC2'}'s"
    lines = [
        ("run", launch.run),
        ("job", job.name),
        ("machines", f"{offer.nodes} x ml.{offer.instance_type} ({offer.market})"),
        ("price", f"${launch.usd_per_hour:.2f} an hour {most}"),
        ("takes", f"{hours:.1f} h (p90 {offer.cost.hours_p90:.1f} h)"),
        ("costs", f"${hours * launch.usd_per_hour:.2f} at that price; {whose}"),
        ("limit", f"{format_seconds(job.run_seconds)} of training, at most ${launch.most_usd:.2f} by then"),
        ("waits", f"up to {format_seconds(job.wait_seconds)} for machines, which costs nothing"),
        ("store", launch.store.root),
    ]
    for name, text in lines:
        print(f"  {name:<10} {text}")
    if launch.plan.offers[1:]:
        print("  – a training job has one kind of machine: the plan's fallbacks are not used", file=sys.stderr)
