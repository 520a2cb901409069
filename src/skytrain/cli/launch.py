"""`skytrain launch`: rent machines and let them run a job; the terminal may close."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .confirm import DryRun, Yes, confirm
from .launch_eks import launch_on_eks, user_files
from .launch_emr import EMR_TARGETS, launch_on_emr
from .launch_sagemaker import launch_on_sagemaker
from .launch_slurm import compose_planned, launch_on_slurm, target_of
from .launch_tune import launch_sweep, launch_sweep_on_slurm
from .node import KeepOnFailure
from .options import ConfigDirs, compose_overrides, seconds_of
from .plan import InstanceType, MarketOption, Nodes

if TYPE_CHECKING:
    from ..cloud import Finding
    from ..config import Composed, Config
    from ..pipelines.launch import PlannedJob, PreparedLaunch
    from ..pipelines.launch_eks import EksRequest
    from ..planning import JobKind, Plan

JOB = "skytrain.job"
JOBS: tuple[JobKind, ...] = ("train", "prepare", "tune")  # endpoints: `skytrain serve --target ec2`


def _split_job(words: list[str]) -> tuple[JobKind, list[str]]:
    """Return the job, whose name may be left out, and its settings."""
    from ..config import SkytrainError

    if not words or "=" in words[0]:
        return "train", words
    for job in JOBS:
        if words[0] == job:
            return job, words[1:]
    raise SkytrainError(f"launch {words[0]}: no such job\n  one of {', '.join(JOBS)}")


def _without_job(context: typer.Context, words: list[str] | None) -> list[str]:
    """Return the settings alone; the job is kept in the context."""
    context.meta[JOB], settings = _split_job(words or [])
    return settings


Job = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[train|prepare|tune] KEY=VALUE",
        callback=_without_job,
        help="The job, and its settings as for `skytrain train`, `prepare` or `tune`; with --plan, those of the plan "
        "come first.",
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
    instance: InstanceType = None,
    nodes: Nodes = None,
    market: MarketOption = None,
) -> None:
    """Train, prepare data, or tune on rented machines.

    Rents the plan's machines, which survive interruptions and give themselves back. `launch prepare` rents one without GPUs;
    its source must be in S3 or on the internet. `launch tune` rents tune.machines of type tune.instance, which share a sweep.

    cloud=sagemaker creates a training job, cloud=eks a Kubernetes job, cloud=slurm a batch job, cloud=emr a Spark job.

    Everything that can be checked is checked first. The machines then need neither this terminal nor this computer. They
    end when the run is done, at the budget, after a failure, and at the latest at the kill time, which AWS enforces.

    \b
    Examples:
      skytrain launch train --plan plan.json cloud=ec2
      skytrain launch train recipe=gpt2-124m-pile cloud=ec2 budget.usd=150
      skytrain launch train --plan plan.json cloud=ec2 --smoke 20M --keep-on-failure 30m
      skytrain launch prepare data=fineweb data.target_tokens=10B cloud=ec2 budget.usd=20
      skytrain launch tune recipe=tune-hw5 cloud=ec2 tune.machines=2 --dry-run
      skytrain launch prepare data=parquet data.source.paths='s3://bucket/crawl/*' cloud=emr-serverless --dry-run
      skytrain launch train recipe=gpt2-124m-pile cloud=slurm cloud.slurm.nodes=2 parallel=hsdp --dry-run
      skytrain launch train --plan plan.json cloud=sagemaker cloud.sagemaker.image=$IMAGE
      skytrain launch train recipe=llama-3.1-8b-p4d cloud=sagemaker --instance p4d.24xlarge --nodes 1
      skytrain launch train --plan plan.json cloud=eks cloud.eks.cluster=training cloud.eks.image=$IMAGE --dry-run
    """
    from ..pipelines.launch import PlannedJob

    folders, watch = list(config_dir or []), sys.stdout.isatty() if follow is None else follow
    words, keep = overrides or [], seconds_of("--keep-on-failure", keep_on_failure)
    target, only = target_of(words, folders), {"instance": instance, "nodes": nodes, "market": market}
    _check_job(context.meta[JOB], target, [plan, smoke, keep or None], any(only.values()))
    if context.meta[JOB] == "tune":
        return (launch_sweep_on_slurm if target == "slurm" else launch_sweep)(words, folders, yes, dry_run)
    if target in EMR_TARGETS:
        return launch_on_emr(compose_without_plan(words, folders, plan), folders, yes, dry_run)
    if target == "slurm":
        return launch_on_slurm(compose_planned(words, folders, plan), folders, yes, dry_run)
    source = _PlanSource(plan, replan, not dry_run, only)
    if target == "eks":
        return launch_on_eks(_eks_request(words, folders, source), yes, dry_run, watch)
    job = PlannedJob(*_planned(context.meta[JOB], words, folders, source), keep)
    if target == "sagemaker":
        return launch_on_sagemaker(job, folders, yes, dry_run, watch)
    _launch_on_ec2(job, folders, smoke, yes, dry_run, watch)


def _launch_on_ec2(
    job: PlannedJob, folders: list[Path], smoke: str | None, yes: bool, dry_run: bool, watch: bool
) -> None:
    from ..cloud import Preflight, render_calls
    from ..pipelines.launch import prepare_launch
    from .screen import print_next

    first = _smoke_job(job, smoke, folders) if smoke is not None else None
    prepared = prepare_launch(job, Preflight(job.composed.config, job.plan), show_finding, first)
    if dry_run:
        return print(render_calls(prepared.calls))
    _start(prepared, folders, yes)
    if watch:
        raise typer.Exit(_follow(job.composed.config, prepared))
    print("Next:")
    print_next(prepared.run)


def _eks_request(words: list[str], folders: list[Path], source: _PlanSource) -> EksRequest:
    """A planned job, or with cloud.eks.cpus a smoke test, which needs no plan."""
    from ..pipelines.launch_eks import EksRequest

    files = user_files(folders)
    if source.file is None:
        composed = compose_overrides(words, folders)
        if composed.config.cloud.eks.cpus is not None:
            return EksRequest(composed, None, files)
    return EksRequest(*_planned("train", words, folders, source), files)


def _smoke_job(job: PlannedJob, tokens: str, folders: list[Path]) -> PlannedJob:
    from ..pipelines.launch_smoke import smoke_job
    from ..pipelines.plan import compose_plan

    return smoke_job(job, tokens, lambda words: compose_plan(words, folders, None)[0])


def _start(prepared: PreparedLaunch, folders: list[Path], yes: bool) -> None:
    from ..pipelines.launch import config_files, start_launch
    from .console import reporter

    _describe(prepared)
    confirm(prepared.session, "Launch?", prepared.usd_per_hour, yes)
    with reporter() as console:
        start_launch(prepared, config_files([*folders, Path()]), console)
    first = prepared.record.groups[0]
    print(f"launched {prepared.run}: {first.nodes} x {first.instance_type} in {first.zone}")
    if prepared.record.verb == "prepare":
        print(f"the tokens will be in {prepared.store.url(prepared.plan.data.folder)}")
    print("The machines need neither this terminal nor this computer.")


def _check_job(job: JobKind, target: str | None, options: list[object], chosen: bool) -> None:
    """Refuse what a target does not run; `options` are --plan, --smoke and --keep-on-failure."""
    from ..config import SkytrainError

    _check_choice(job, target, chosen)
    if job != "tune" and target in ("eks", "slurm", "sagemaker", *EMR_TARGETS):
        _check_scheduler(str(target), job, any(option is not None for option in options[1:]))
    if job != "tune":
        return
    if target not in ("ec2", "slurm"):
        raise SkytrainError(f"launch tune cloud={target}: sweeps run on cloud=ec2 and cloud=slurm\n  or: skytrain tune")
    if any(option is not None for option in options):
        raise SkytrainError("launch tune plans its machines itself\n  leave out --plan, --smoke and --keep-on-failure")


def _check_scheduler(target: str, job: JobKind, rented_only: bool) -> None:
    from ..config import SkytrainError

    if target in EMR_TARGETS:
        if job != "prepare":
            raise SkytrainError(
                f"launch {job} cloud={target}: only data is prepared there\n  skytrain launch {job} cloud=ec2"
            )
    elif job != "train":
        where = f"run `skytrain {job}` there" if target == "slurm" else f"skytrain launch {job} cloud=ec2"
        raise SkytrainError(f"launch {job} cloud={target}: only training runs there\n  {where}")
    if rented_only:
        raise SkytrainError(f"--smoke and --keep-on-failure are for cloud=ec2\n  leave them out for cloud={target}")


def compose_without_plan(words: list[str], folders: list[Path], file: Path | None) -> Composed:
    """Return the configuration of `launch prepare`, which takes no plan."""
    from ..config import SkytrainError

    if file is not None:
        raise SkytrainError("launch prepare makes its plan itself\n  leave out --plan")
    return compose_overrides(words, folders)


def _check_choice(job: JobKind, target: str | None, chosen: bool) -> None:
    """Refuse --instance, --nodes and --market where they would choose nothing."""
    from ..config import SkytrainError

    if chosen and (job != "train" or target == "slurm"):
        instead = "cloud.slurm.nodes=N" if target == "slurm" else f"launch {job} chooses its machines by its settings"
        raise SkytrainError(f"--instance, --nodes and --market choose rented machines for training\n  {instead}")


def _follow(config: Config, prepared: PreparedLaunch) -> int:
    """Follow the run, and its smoke run before it; returns the exit code."""
    from ..pipelines.follow import RunFollower
    from ..pipelines.launch_smoke import wait_for_start
    from ..runs import EXIT_CODES, UNCOMMITTED
    from .screen import follow_launch, follow_run

    if prepared.smoke is not None:
        detached = f"detached: {prepared.smoke.run} goes on without this terminal, and {prepared.run} follows it"
        end = follow_run(RunFollower(config, prepared.smoke.run, prepared.session, launched=True), detached=detached)
        if end is None:
            return 0
        print(f"{prepared.smoke.run}: {end.reason} (exit code {end.exit_code})")
        if end.exit_code or not wait_for_start(prepared.store, prepared.record):
            print(f"{prepared.run} was not started")
            return end.exit_code or EXIT_CODES[UNCOMMITTED]
    return follow_launch(RunFollower(config, prepared.run, prepared.session, launched=True))


@dataclass(frozen=True)
class _PlanSource:
    """--plan and --replan; a dry run keeps no plan that it makes."""

    file: Path | None
    again: bool
    keeps: bool
    only: dict[str, Any] = field(default_factory=dict)  # --instance, --nodes, --market: for a new plan


def _planned(job: JobKind, words: list[str], folders: list[Path], source: _PlanSource) -> tuple[Composed, Plan]:
    """Return the configuration and the plan: the file's, or a new one."""
    import tempfile

    from ..config import SkytrainError
    from ..pipelines.launch_jobs import plan_preparation
    from ..pipelines.plan import Trials, compose_plan, plan_run
    from ..planning import PlanRequest, Target, load_catalog, read_plan

    file, replan = source.file, source.again
    if replan and file is None:
        raise SkytrainError("--replan needs --plan FILE: the plan to make again")
    if job == "prepare":
        composed = compose_without_plan(words, folders, file)
        return composed, plan_preparation(composed)
    if file is not None and any(source.only.values()):
        raise SkytrainError(
            "--instance, --nodes and --market choose machines for a new plan\n  leave them out with --plan"
        )
    given = read_plan(file) if file is not None else None
    words = [*(given.words if given is not None else []), *words]
    composed, open_mesh = compose_plan(words, folders, None)
    if given is not None and not replan:
        return composed, given
    config = composed.config
    if given is not None:
        request = PlanRequest(**given.request)
    else:
        # Without SageMaker's prices EC2's stand in for them; the job is metered by the Pricing API's.
        known = config.cloud.target == "sagemaker" and bool(load_catalog().sagemaker_prices)
        target: Target = "sagemaker" if known else "ec2"
        request = PlanRequest(config.budget.usd, region=config.cloud.region, target=target, **source.only)
    kept = file if source.keeps else None
    with tempfile.TemporaryDirectory() as folder:
        planned = plan_run(composed, open_mesh, request, Trials(0, 1), kept or Path(folder) / "plan.json")
    if planned.plan is None:
        raise planned.refusal or SkytrainError("no plan was found")
    return composed, planned.plan


def show_finding(finding: Finding) -> None:
    if finding.verdict == "failed":
        return  # it becomes the command's error
    print(f"  {'✔' if finding.verdict == 'ok' else '–'} {finding.name:<15} {finding.text}", file=sys.stderr)


def _budget_text(usd: float, cost: float) -> str:
    return f"${usd:.2f}{f', less than the ${cost:.2f} planned: the run will stop there, saved' if usd < cost else ''}"


def _describe(prepared: PreparedLaunch) -> None:
    """Print the plan in a few lines, before the question."""
    from ..pipelines.launch_smoke import smoke_text

    offer, record = prepared.plan.choice, prepared.record
    first, cost = record.groups[0], offer.cost
    highest = offer.nodes * offer.max_usd_per_hour_each
    waits = max(one.kill_after_seconds for one in prepared.smoke.plan.offers) if prepared.smoke else 0.0
    lines = [
        ("run", prepared.run),
        ("machines", f"{offer.nodes} x {offer.instance_type} ({offer.market}) in {first.zone}"),
        ("price", f"${prepared.usd_per_hour:.2f} an hour; at most ${highest:.2f}"),
        ("takes", f"{cost.hours:.1f} h (p90 {cost.hours_p90:.1f} h)"),
        ("costs", f"${cost.usd:.2f} (${cost.usd_p10:.2f} to ${cost.usd_p90:.2f})"),
        *([("budget", _budget_text(budget, cost.usd))] if (budget := prepared.budget_usd) is not None else []),
        ("kill time", f"{first.kill_at}; at most ${highest * (offer.kill_after_seconds - waits) / 3600:.2f} by then"),
        ("store", prepared.store.root),
        *([("smoke run", smoke_text(prepared))] if prepared.smoke else []),
    ]
    for name, text in lines:
        print(f"  {name:<10} {text}")
    for number, group in enumerate(record.groups[1:], 1):
        print(f"  {f'fallback {number}':<10} {group.nodes} x {group.instance_type} ({group.market}) in {group.zone}")
