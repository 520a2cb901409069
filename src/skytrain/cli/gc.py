"""`skytrain gc`: what of ours is left in the AWS account, with its cost, and its deletion."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from .confirm import DryRun, Yes, ask_yes, confirm
from .console import print_table
from .options import ConfigDirs, Json, StoreOverrides, compose_overrides

if TYPE_CHECKING:
    from ..cloud import AwsSession, GcSelection
    from ..config import Config
    from ..pipelines.gc import Garbage

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
    Nothing without the tags is listed or touched, and no bucket and no object of a run but old logs.
    With cloud=eks, it is the jobs and other objects of the namespace instead.

    \b
    marked `delete`  past its skytrain:expires-at; of a run of this store that has ended; an abandoned upload
    marked `keep`    of a run that is active or that this store does not know; of the project as a whole
    --run RUN        marks everything of that run, --expired only what has expired

    \b
    Examples:
      skytrain gc cloud=aws
      skytrain gc cloud=aws --delete
      skytrain gc cloud=aws --run my-run --delete --dry-run
      skytrain gc cloud=eks cloud.eks.cluster=training --delete
    """
    from ..cloud import GcSelection, open_session
    from ..config import plural
    from ..pipelines.gc import find_garbage, garbage_json, requests
    from .console import reporter

    config = compose_overrides(overrides, config_dir).config
    if config.cloud.target == "eks":
        gc_cluster(config, GcSelection(run, expired), _Wanted(delete, yes, dry_run, as_json))
        return
    session = open_session(config.cloud.region, config.cloud.account)
    chosen = None if all_projects else project or config.cloud.project
    with reporter() as console:
        found = find_garbage(config, session, GcSelection(run, expired), console, regions=region, project=chosen)
    if delete and dry_run:
        print(requests(found))
        if found.logs:
            print(f"and in the store: the logs of {plural(len(found.logs), 'old attempt')}", file=sys.stderr)
        return
    if as_json:
        print(json.dumps(garbage_json(found), indent=1))
    else:
        _show(found)
    for problem in found.scan.problems:
        print(f"unknown: {problem.kind} in {problem.region}: {problem.problem}", file=sys.stderr)
    if delete and found.count:
        confirm(session, f"Delete {plural(found.count, 'resource')}?", -found.usd_per_hour, yes)
        _delete(config, session, found, sys.stderr if as_json else sys.stdout)


@dataclass(frozen=True)
class _Wanted:
    delete: bool
    yes: bool
    dry_run: bool
    as_json: bool


def gc_cluster(config: Config, selection: GcSelection, wanted: _Wanted) -> None:
    """List what the cluster's namespace has of ours; delete what is marked."""
    from ..config import plural
    from ..pipelines.eks_jobs import cluster_of
    from ..pipelines.gc_eks import delete_leftovers, find_leftovers, leftover_rows

    cluster = cluster_of(config)
    found = find_leftovers(config, cluster, selection)
    if wanted.as_json:
        print(json.dumps([asdict(each) for each in found], indent=1))
    elif found:
        print_table(leftover_rows(found))
    else:
        print(f"nothing of Skytrain's in {config.cloud.eks.namespace} of cluster {cluster.name}")
    count = sum(each.delete for each in found)
    if not wanted.delete or wanted.dry_run or not count:
        return
    if not wanted.yes:
        ask_yes(f"Delete {plural(count, 'object')} in {config.cloud.eks.namespace}?")
    print(f"deleted {plural(delete_leftovers(config, cluster, found), 'object')}")


def _show(found: Garbage) -> None:
    from ..config import plural
    from ..pipelines.gc import garbage_rows

    rows = garbage_rows(found)
    if len(rows) == 1:
        print(f"nothing of Skytrain's in {plural(len(found.scan.regions), 'region')}")
        return
    print_table(rows)
    if found.count:
        print(f"\n{plural(found.count, 'resource')} to delete (--delete), ${730 * found.usd_per_hour:.2f} a month")


def _delete(config: Config, session: AwsSession, found: Garbage, out: TextIO) -> None:
    from ..config import plural
    from ..pipelines.gc import delete_garbage
    from .console import reporter

    with reporter() as console:
        failed = delete_garbage(config, session, found, console)
    for each in failed:
        print(
            f"not deleted: {each.resource.kind} {each.resource.id} in {each.resource.region}: {each.problem}",
            file=sys.stderr,
        )
    print(f"deleted {found.count - len(failed)} of {plural(found.count, 'resource')}", file=out)
    if failed:
        raise typer.Exit(3)
