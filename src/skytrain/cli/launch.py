"""`skytrain launch`: rent machines and let them run a job; the terminal may close."""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from .confirm import DryRun, Yes, ask_yes, confirm
from .node import Keep, KeepOnFailure
from .options import ConfigDirs, Trusted, compose_overrides, seconds_of
from .output import tell
from .plan import InstanceType, MarketOption, Nodes
from .screen import follow_launch, follow_run, print_next

if TYPE_CHECKING:
    from ..planning import JobKind
    from ..targets import Finding, ReadyJob, RunEnd, RunFollower

JOB = "skytrain.job"
JOBS: tuple[JobKind, ...] = ("train", "prepare", "tune", "finish")  # endpoints: `skytrain serve --target ec2`
PIPELINE = "pipeline"


def _split_job(arguments: list[str], commands: Collection[str]) -> tuple[str, list[str]]:
    """Return the job, whose name may be left out, and its settings."""
    from ..config import SkytrainError, choice_named

    if not arguments or "=" in arguments[0]:
        return "train", arguments
    if arguments[0] in (*JOBS, PIPELINE):
        return arguments[0], arguments[1:]
    hint = choice_named(arguments[0]) or f"one of {', '.join((*JOBS, PIPELINE))}"
    if arguments[0] in commands:
        hint += f"; skytrain {arguments[0]} is a command of its own"
    raise SkytrainError(f"launch {arguments[0]}: no such job\n  {hint}")


def _without_job(context: typer.Context, arguments: list[str] | None) -> list[str]:
    """Return the settings; the context keeps the job."""
    group = context.parent.command if context.parent is not None else None
    context.meta[JOB], settings = _split_job(arguments or [], getattr(group, "commands", ()))
    return settings


Job = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[train|prepare|tune|finish|pipeline] KEY=VALUE",
        callback=_without_job,
        help="The job, and its settings as for `skytrain train`, `prepare`, `tune` or `finish`; with --plan, those of "
        "the plan come first.",
        show_default=False,
    ),
]
PlanFile = Annotated[
    Path | None,
    typer.Option(
        "--plan", metavar="FILE", help="Follow this plan exactly. Default: plan first, then ask.", show_default=False
    ),
]
Replan = Annotated[
    bool, typer.Option("--replan", help="Make the plan of --plan again, with its settings and today's prices.")
]
Follow = Annotated[
    bool | None,
    typer.Option(
        "--follow/--no-follow",
        help="Watch the run until it ends, with its exit code; Ctrl-C detaches. Default: on a terminal.",
        show_default=False,
    ),
]
Smoke = Annotated[
    str | None,
    typer.Option(
        metavar="TOKENS",
        help="First run so many tokens (20M) on the same machines; the run starts only if that ends well.",
        show_default=False,
    ),
]


def launch(
    context: typer.Context,
    overrides: Job = None,
    config_dir: ConfigDirs = None,
    plan: PlanFile = None,
    replan: Replan = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    follow: Follow = None,
    smoke: Smoke = None,
    keep_on_failure: KeepOnFailure = "0s",
    keep: Keep = False,
    instance: InstanceType = None,
    nodes: Nodes = None,
    market: MarketOption = None,
    trusted: Trusted = None,
) -> None:
    """Train, prepare data, or tune on rented machines.

    Rents the plan's machines, which survive interruptions and give themselves back. `launch prepare` rents one without
    GPUs; its source must be in S3 or on the internet. `launch tune` rents tune.machines of type tune.instance, which
    share a sweep. `launch finish run=NAME` evaluates, exports and reports a trained run on one small machine.

    `launch pipeline` does the whole job under one budget: it prepares the data unless that is done, trains, then
    evaluates (HellaSwag), exports and writes the run's page. Each stage has machines that fit it, and starts the next
    one. The same command continues a pipeline that was interrupted.

    cloud=sagemaker creates a training job, cloud=eks a Kubernetes job, cloud=slurm a batch job, cloud=emr a Spark job.

    Everything that can be checked is checked first. The machines then need neither this terminal nor this computer.
    They end when the run is done, at the budget, after a failure, and at the latest at the kill time, which AWS
    enforces.

    \b
    Examples:
      skytrain launch train --plan plan.json cloud=ec2
      skytrain launch train recipe=gpt2-124m-pile cloud=ec2 budget.usd=150
      skytrain launch pipeline recipe=gpt2-124m-pile budget.usd=150 cloud=ec2 --dry-run
      skytrain launch train --plan plan.json cloud=ec2 --smoke 20M --keep-on-failure 30m
      skytrain launch prepare data=fineweb data.target_tokens=10B cloud=ec2 budget.usd=20
      skytrain launch tune recipe=tune-hw5 cloud=ec2 tune.machines=2 --dry-run
      skytrain launch prepare data=parquet data.source.paths='s3://bucket/crawl/*' cloud=emr-serverless --dry-run
      skytrain launch train recipe=gpt2-124m-pile cloud=slurm cloud.slurm.nodes=2 parallel=hsdp --dry-run
      skytrain launch train --plan plan.json cloud=sagemaker cloud.sagemaker.image=$IMAGE
      skytrain launch train recipe=llama-3.1-8b-p4d cloud=sagemaker --instance p4d.24xlarge --nodes 1
      skytrain launch train --plan plan.json cloud=eks cloud.eks.cluster=training cloud.eks.image=$IMAGE --dry-run
    """
    from ..aws import account_folders
    from ..config import trust
    from ..planning import read_plan
    from ..targets import LaunchRequest, prepare_job, prepare_pipeline

    trust(trusted or [])
    planned_in = read_plan(plan).choice.region if dry_run and plan is not None and not replan else None
    folders = account_folders(config_dir or [], overrides or [], planned_in) if dry_run else config_dir or []
    watch = sys.stdout.isatty() if follow is None else follow
    only = {"instance": instance, "nodes": nodes, "market": market}
    whole = context.meta[JOB] == PIPELINE
    job = (prepare_pipeline if whole else prepare_job)(
        LaunchRequest(
            job="train" if whole else context.meta[JOB],
            overrides=overrides or [],
            folders=folders,
            compose=lambda settings: compose_overrides(
                list(settings), folders, recipe_weights="if-stored" if dry_run else "read"
            ),
            tell=show_finding,
            plan=plan,
            replan=replan,
            only=only,
            smoke=smoke,
            keep_seconds=seconds_of("--keep-on-failure", keep_on_failure),
            keep=keep,
            dry_run=dry_run,
        )
    )
    if dry_run:
        _describe(job, sys.stderr)
        return print(job.requests)
    _start(job, yes)
    if watch and job.follows:
        raise typer.Exit(_follow(job))
    if follow:
        print("--follow: this job cannot be watched from here; the commands below show it", file=sys.stderr)
    print("Next:")
    print_next(job.name, job.next_arguments, options=job.next_options)


def _describe(job: ReadyJob, out: TextIO) -> None:
    """Print the job in a few lines, before the question."""
    from ..config import visible

    for name, text in job.summary:
        print(visible(f"  {name:<10} {text}"), file=out)  # a plan may be somebody else's
    for note in job.notes:
        tell(f"  – {note}")


def _start(job: ReadyJob, yes: bool) -> None:
    from .console import reporter

    _describe(job, sys.stdout)
    if job.session is not None:
        confirm(job.session, job.question, job.usd_per_hour, yes)
    elif not yes:
        ask_yes(job.question)
    with reporter() as console:
        said = job.start(console)
    print("\n".join(said))


def _follow(job: ReadyJob) -> int:
    """Follow the run, and what comes before it; return the exit code."""
    from ..report import text_table
    from ..targets import RunFollower
    from .console import reporter

    if job.before is not None:
        with reporter() as console:
            code = job.before(_show_run, console.note)
        if code is not None:
            return code
    record = job.records[-1] if job.records else None
    follower = RunFollower(job.config, job.name, job.session, launched=True, record=record)
    code = follow_launch(follower, job.next_arguments)
    if code == 0 and job.conclude is not None:
        rows, line = job.conclude()
        print(f"{text_table(rows)}\n{line}")
    return code


def _show_run(follower: RunFollower, detached: str) -> RunEnd | None:
    end = follow_run(follower, detached=detached)
    if end is not None:
        print(f"{follower.run}: {end.reason} (exit code {end.exit_code})")
    return end


def show_finding(finding: Finding) -> None:
    if finding.verdict == "failed":
        return  # it becomes the command's error
    tell(f"  {'✔' if finding.verdict == 'ok' else '–'} {finding.name:<15} {finding.text}")
