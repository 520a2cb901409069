"""`skytrain runs`: lists, renames and deletes the runs of a store."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from ..config import SkytrainError, visible
from .console import print_table
from .options import ConfigDirs, Json, StoreOverrides, compose_overrides
from .output import tell

if TYPE_CHECKING:
    from ..pipelines.runs import Deletion

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="List, rename and delete the runs of a store.\n\nExample: skytrain runs list store.root=s3://bucket/project",
)

Run = Annotated[
    str, typer.Argument(metavar="RUN", help="The run's name, as `skytrain runs list` shows it.", show_default=False)
]
NewName = Annotated[str, typer.Argument(metavar="NEW-NAME", help="Its new name.", show_default=False)]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


@app.command("list")
def list_(overrides: StoreOverrides = None, config_dir: ConfigDirs = None, as_json: Json = False) -> None:
    """List all runs, newest first, with their size.

    Example: skytrain runs list store.root=s3://bucket/project
    """
    config = compose_overrides(overrides, config_dir).config
    from ..config import format_bytes
    from ..pipelines.runs import list_entries

    entries = list_entries(config)
    if as_json:
        print(json.dumps([asdict(each) for each in entries], indent=1))
        return
    rows: list[tuple[str, ...]] = [("RUN", "STATE", "STEP", "VALIDATION", "CHECKPOINTS", "SIZE", "STARTED", "FROM")]
    for each in entries:
        loss = "-" if each.val_loss is None else f"{each.val_loss:.4f}"
        step = f"{each.step}/{each.total_steps}"
        size = format_bytes(each.bytes)
        started = each.started_at or "-"
        source = each.started_from or "-"
        rows.append((each.run, each.state, step, loss, str(each.checkpoints), size, started, source))
    print_table(rows)
    for each in entries:
        if each.problem:
            print(f"{each.run}: {each.problem}")


@app.command()
def rename(run: Run, name: NewName, overrides: StoreOverrides = None, config_dir: ConfigDirs = None) -> None:
    """Rename a run.

    Its checkpoints, metrics and logs move with it. Runs that were started from it refer to the new name. A live run
    is refused.

    Example: skytrain runs rename gpt2-124m-pile-3f2a91bc baseline
    """
    config = compose_overrides(overrides, config_dir).config
    from ..pipelines.runs import rename_run

    children = rename_run(config, run, name)
    print(f"{run} is now {name}; resume it with {shlex.quote(f'run={name}')}")
    for child in children:
        words = shlex.join([f"run={child}", "--from", name])
        print(f"  {child} was started from it; resume that with {words}")


@app.command()
def delete(run: Run, overrides: StoreOverrides = None, yes: Yes = False, config_dir: ConfigDirs = None) -> None:
    """Delete a run: checkpoints, metrics, logs.

    Shows what will be freed and asks for confirmation. A live run is refused. Prepared data and exports stay.

    Example: skytrain runs delete my-run
    """
    config = compose_overrides(overrides, config_dir).config
    from ..config import format_bytes
    from ..pipelines.runs import delete_run, plan_deletion

    plan = plan_deletion(config, run)
    tell(_describe(plan))
    if not yes:
        _ask(run)
    delete_run(config, run)
    print(f"deleted {run}: {format_bytes(plan.bytes)} freed")


def _describe(plan: Deletion) -> str:
    from ..config import format_bytes, plural

    held = f"{plural(plan.objects, 'object')}, with {plural(len(plan.checkpoints), 'checkpoint')}"
    lines = [f"{plan.run}: {format_bytes(plan.bytes)} in {held}"]
    if plan.needed_by:
        lines.append(f"  needed by {', '.join(plan.needed_by)}: started from it, without a checkpoint of its own yet")
    return "\n".join(lines)


def _ask(run: str) -> None:
    if not sys.stdin.isatty():
        raise SkytrainError(f"deleting {run} needs a confirmation, and there is no terminal to ask in\n  add --yes")
    if not typer.confirm(visible(f"Delete {run}? This cannot be undone."), err=True):
        raise SkytrainError(f"{run} was not deleted")
