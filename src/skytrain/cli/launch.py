"""`skytrain launch`: rent machines and let them run a job; the terminal may close."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .confirm import DryRun, Yes, confirm
from .launch_slurm import compose_planned, launch_on_slurm, target_of
from .options import ConfigDirs

if TYPE_CHECKING:
    from ..cloud import Finding
    from ..config import Composed
    from ..pipelines.launch import PreparedLaunch
    from ..planning import Plan

JOBS = ("train",)


def _without_job(words: list[str] | None) -> list[str] | None:
    """Return the settings after the job's name, which may be left out."""
    from ..config import SkytrainError

    if words and "=" not in words[0]:
        if words[0] not in JOBS:
            raise SkytrainError(f"launch {words[0]}: no such job\n  one of {', '.join(JOBS)}")
        return words[1:]
    return words


Job = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[train] KEY=VALUE",
        callback=_without_job,
        help="The job, and its settings as for `skytrain train`; with --plan, those of the plan come first.",
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


def launch(
    overrides: Job = None,
    config_dir: ConfigDirs = None,
    plan: PlanFile = None,
    replan: Replan = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    follow: Follow = None,
) -> None:
    """Train on rented machines; the terminal may close.

    Rents the plan's machines, which train, survive interruptions and give themselves back. Everything that can be
    checked is checked before anything is created: prices, quota, zones, image, network, roles. The machines then need
    neither this terminal nor this computer. They end when the run is done, at the budget, after a failure, and at the
    latest at the kill time, which AWS itself enforces.

    \b
    Examples:
      skytrain launch train --plan plan.json cloud=ec2
      skytrain launch train recipe=gpt2-124m-pile cloud=ec2 budget.usd=150
      skytrain launch train recipe=gpt2-124m-pile cloud=ec2 budget.usd=150 --dry-run
      skytrain launch train --plan plan.json cloud=ec2 --yes --no-follow
      skytrain launch train recipe=gpt2-124m-pile cloud=slurm cloud.slurm.nodes=2 parallel=hsdp --dry-run
    """
    from ..cloud import Preflight, render_calls
    from ..pipelines.follow import RunFollower
    from ..pipelines.launch import config_files, prepare_launch, start_launch
    from .console import reporter
    from .screen import follow_launch, print_next

    folders = list(config_dir or [])
    if target_of(overrides or [], folders) == "slurm":
        launch_on_slurm(compose_planned(overrides or [], folders, plan), folders, yes, dry_run)
        return
    composed, chosen = _planned(overrides or [], folders, plan, replan)
    preflight = Preflight(composed.config, chosen)
    prepared = prepare_launch(composed, chosen, preflight, _show)
    if dry_run:
        print(render_calls(prepared.calls))
        return
    _describe(prepared)
    confirm(prepared.session, "Launch?", prepared.usd_per_hour, yes)
    with reporter() as console:
        record = start_launch(prepared, config_files([*folders, Path()]), console)
    print(
        f"launched {record.run}: {record.groups[0].nodes} x {record.groups[0].instance_type} in {record.groups[0].zone}"
    )
    print("The machines need neither this terminal nor this computer.")
    if follow if follow is not None else sys.stdout.isatty():
        raise typer.Exit(follow_launch(RunFollower(composed.config, record.run, prepared.session, launched=True)))
    print("Next:")
    print_next(record.run)


def _planned(words: list[str], folders: list[Path], file: Path | None, replan: bool) -> tuple[Composed, Plan]:
    """Return the configuration and the plan: the file's, or a new one."""
    import tempfile

    from ..config import SkytrainError
    from ..pipelines.plan import Trials, compose_plan, plan_run
    from ..planning import PlanRequest, read_plan

    if replan and file is None:
        raise SkytrainError("--replan needs --plan FILE: the plan to make again")
    given = read_plan(file) if file is not None else None
    words = [*(given.words if given is not None else []), *words]
    composed, open_mesh = compose_plan(words, folders, None)
    if given is not None and not replan:
        return composed, given
    config = composed.config
    if given is not None:
        request = PlanRequest(**given.request)
    else:
        request = PlanRequest(config.budget.usd, region=config.cloud.region)
    with tempfile.TemporaryDirectory() as folder:
        planned = plan_run(composed, open_mesh, request, Trials(0, 1), file or Path(folder) / "plan.json")
    if planned.plan is None:
        raise planned.refusal or SkytrainError("no plan was found")
    return composed, planned.plan


def _show(finding: Finding) -> None:
    if finding.verdict == "failed":
        return  # it becomes the command's error
    print(f"  {'✔' if finding.verdict == 'ok' else '–'} {finding.name:<15} {finding.text}", file=sys.stderr)


def _describe(prepared: PreparedLaunch) -> None:
    """Print the plan in a few lines, before the question."""
    offer, record = prepared.plan.choice, prepared.record
    first, cost = record.groups[0], offer.cost
    highest = offer.nodes * offer.max_usd_per_hour_each
    lines = [
        ("run", prepared.run),
        ("machines", f"{offer.nodes} x {offer.instance_type} ({offer.market}) in {first.zone}"),
        ("price", f"${prepared.usd_per_hour:.2f} an hour; at most ${highest:.2f}"),
        ("takes", f"{cost.hours:.1f} h (p90 {cost.hours_p90:.1f} h)"),
        ("costs", f"${cost.usd:.2f} (${cost.usd_p10:.2f} to ${cost.usd_p90:.2f})"),
        ("kill time", f"{first.kill_at}; at most ${highest * offer.kill_after_seconds / 3600:.2f} by then"),
        ("store", prepared.store.root),
    ]
    for name, text in lines:
        print(f"  {name:<10} {text}")
    for number, group in enumerate(record.groups[1:], 1):
        print(f"  {f'fallback {number}':<10} {group.nodes} x {group.instance_type} ({group.market}) in {group.zone}")
