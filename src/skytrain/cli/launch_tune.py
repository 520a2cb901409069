"""`skytrain launch tune`: machines, or tasks of a Slurm array, that share a sweep."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from ..cloud import Finding
    from ..pipelines.launch import PreparedLaunch
    from ..pipelines.launch_tune import SweepLaunch


def launch_sweep(words: list[str], folders: list[Path], yes: bool, dry_run: bool) -> None:
    """Rent the machines of a sweep, or print the requests for them."""
    from ..cloud import Preflight, render_calls
    from ..pipelines.launch import config_files, prepare_launch, start_launch
    from ..pipelines.launch_tune import plan_sweep_launch
    from .confirm import confirm
    from .console import reporter

    planned = plan_sweep_launch(words, folders)
    prepared: list[PreparedLaunch] = []
    for job in planned.jobs:
        tell = _quiet if prepared else _show
        prepared.append(prepare_launch(job, Preflight(job.composed.config, job.plan), tell))
    if dry_run:
        print(render_calls([call for one in prepared for call in one.calls]))
        return
    _describe(planned, prepared)
    confirm(prepared[0].session, "Launch?", sum(one.usd_per_hour for one in prepared), yes)
    from pathlib import Path

    with reporter() as console:
        for one in prepared:
            start_launch(one, config_files([*folders, Path()]), console)
    print(f"launched {len(prepared)} x {prepared[0].record.groups[0].instance_type} for sweep {planned.name}")
    print("The machines need neither this terminal nor this computer.")
    _print_next(planned.name, "cloud=ec2")


def launch_sweep_on_slurm(words: list[str], folders: list[Path], yes: bool, dry_run: bool) -> None:
    """Submit a sweep as a job array, or print its script."""
    from ..pipelines.launch_slurm_tune import prepare_sweep_array
    from .confirm import ask_yes
    from .launch_slurm import print_slurm_next
    from .options import compose_overrides

    options = [word for folder in folders for word in ("--config-dir", str(folder.absolute()))]
    composed = compose_overrides(words, folders)
    name, array = prepare_sweep_array(composed, options)
    if dry_run:
        print(array.render(), end="")
        return
    print(f"  {'sweep':<10} {name}\n  {'tasks':<10} {len(array.commands)}\n  {'folder':<10} {array.folder}")
    if not yes:
        ask_yes("Submit?")
    from ..cloud import submit_array

    print(f"submitted job array {submit_array(array)}: sweep {name}")
    print_slurm_next(name, composed, folders)


def _describe(planned: SweepLaunch, prepared: list[PreparedLaunch]) -> None:
    offer, first = prepared[0].plan.choice, prepared[0].record.groups[0]
    schedule = planned.schedule
    search = schedule.budget_usd - schedule.final_usd
    lines = [
        ("sweep", planned.name),
        ("machines", f"{len(prepared)} x {offer.instance_type} ({offer.market}) in {first.zone}"),
        ("price", f"${sum(one.usd_per_hour for one in prepared):.2f} an hour"),
        (
            "budget",
            f"${schedule.budget_usd:.2f}: ${schedule.final_usd:.2f} kept for the final run, ${search:.2f} to search",
        ),
        ("trials", f"{len(schedule.trials)} planned, ${sum(one.usd for one in schedule.trials):.2f} at most"),
        ("kill time", f"{first.kill_at}: AWS ends the machines then, with at most ${search:.2f} spent"),
        ("store", prepared[0].store.root),
    ]
    for name, text in lines:
        print(f"  {name:<10} {text}")


def _print_next(sweep: str, settings: str) -> None:
    print("\nNext:")
    for verb in ("status", "logs", "stop"):
        print(f"  skytrain {verb} {sweep} {settings}")


def _show(finding: Finding) -> None:
    from .launch import show_finding

    show_finding(finding)


def _quiet(finding: Finding) -> None:
    """The account was checked for the first machine; a failure is raised all the same."""
    return
