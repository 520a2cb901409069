"""`skytrain gc`: list what Skytrain left in the AWS account, with its cost, and delete it."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from .confirm import DryRun, Yes, ask_yes, confirm
from .console import print_table
from .options import ConfigDirs, Json, StoreOverrides, compose_overrides
from .output import tell

if TYPE_CHECKING:
    from ..targets import Leftovers

Regions = Annotated[
    list[str] | None,
    typer.Option(
        "--region", metavar="NAME", help="Only this region; repeatable. Default: all enabled ones.", show_default=False
    ),
]
Project = Annotated[
    str | None,
    typer.Option("--project", metavar="NAME", help="Only this project. Default: cloud.project.", show_default=False),
]
AllProjects = Annotated[bool, typer.Option("--all-projects", help="What any project of Skytrain has here.")]
OfRun = Annotated[
    str | None,
    typer.Option("--run", metavar="RUN", help="Everything of this run, even while it is active.", show_default=False),
]
Expired = Annotated[bool, typer.Option("--expired", help="Only what is past its skytrain:expires-at.")]
Delete = Annotated[bool, typer.Option("--delete", help="Delete what is marked `delete`. Asks first.")]


def gc(
    overrides: StoreOverrides = None,
    region: Regions = None,
    project: Project = None,
    all_projects: AllProjects = False,
    run: OfRun = None,
    expired: Expired = False,
    delete: Delete = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    config_dir: ConfigDirs = None,
    as_json: Json = False,
) -> None:
    """List what Skytrain left in AWS, with its cost; delete it.

    Asks every service in every enabled region for what carries Skytrain's tags: instances, volumes, addresses,
    network interfaces, launch templates, Auto Scaling groups, placement and security groups, file systems, EMR,
    SageMaker, EKS, log groups, schedules, spot requests, abandoned uploads and the logs of old attempts.
    Nothing without the tags is listed or touched. No bucket is deleted, and no object of a run except old logs.
    With cloud=eks, it is the jobs and other objects of the namespace instead.

    \b
    marked `delete`  of a run of this store that has ended; past its skytrain:expires-at; an abandoned upload
    marked `keep`    of a run that is active, whatever its tags say; of one that this store does not know; of the project
    --run RUN        marks everything of that run, --expired only what has expired

    \b
    Examples:
      skytrain gc cloud=aws
      skytrain gc cloud=aws --delete
      skytrain gc cloud=aws --run my-run --delete --dry-run
      skytrain gc cloud=eks cloud.eks.cluster=training --delete
    """
    from ..aws import GcSelection
    from ..config import plural
    from ..targets import GcRequest, target_of
    from .console import reporter

    config = compose_overrides(overrides, config_dir).config
    with reporter() as console:
        request = GcRequest(GcSelection(run, expired), region, all_projects, project)
        leftovers = target_of(config).leftovers(config, request, console)
    if delete and dry_run:
        print(leftovers.requests)
        return tell(leftovers.besides, end="")
    if as_json:
        print(json.dumps(leftovers.facts, indent=1))
    else:
        _show(leftovers)
    for problem in leftovers.unknown:
        tell(f"unknown: {problem}")
    if delete and leftovers.count:
        question = f"Delete {plural(leftovers.count, leftovers.unit)}{leftovers.place}?"
        if leftovers.session is not None:
            confirm(leftovers.session, question, -leftovers.usd_per_hour, yes)
        elif not yes:
            ask_yes(question)
        _delete(leftovers, sys.stderr if as_json else sys.stdout)


def _show(leftovers: Leftovers) -> None:
    from ..config import plural

    if len(leftovers.rows) == 1:
        return print(leftovers.nothing)
    print_table(leftovers.rows)
    if leftovers.count:
        saves = f", ${730 * leftovers.usd_per_hour:.2f} a month" if leftovers.session is not None else ""
        print(f"\n{plural(leftovers.count, leftovers.unit)} to delete (--delete){saves}")


def _delete(leftovers: Leftovers, out: TextIO) -> None:
    from ..config import plural
    from .console import reporter

    with reporter() as console:
        failed = leftovers.delete(console)
    for problem in failed:
        tell(f"not deleted: {problem}")
    print(f"deleted {leftovers.count - len(failed)} of {plural(leftovers.count, leftovers.unit)}", file=out)
    if failed:
        raise typer.Exit(3)
