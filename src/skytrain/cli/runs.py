"""`skytrain runs`: the runs of a store, under which names, and how much they hold."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from ..config import SkytrainError
from .console import print_table
from .options import ConfigDirs, Json, Overrides, compose_overrides

if TYPE_CHECKING:
    from ..pipelines.runs import Deletion

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="The runs of a store: list, rename, delete.\n\nskytrain runs list store.root=s3://bucket/project",
)

Run = Annotated[str, typer.Argument(help="The run's name, as `skytrain runs list` shows it.", show_default=False)]
NewName = Annotated[str, typer.Argument(metavar="NEW-NAME", help="Its new name.", show_default=False)]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@app.command("list")
def list_(overrides: Overrides = None, config_dir: ConfigDirs = None, as_json: Json = False) -> None:
    """Every run, the newest first, with what it holds.

    skytrain runs list store.root=s3://bucket/project
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
        step, size = f"{each.step}/{each.total_steps}", format_bytes(each.bytes)
        rows.append(
            (each.run, each.state, step, loss, str(each.checkpoints), size, each.started_at, each.started_from or "-")
        )
    print_table(rows)


@app.command()
def rename(run: Run, name: NewName, overrides: Overrides = None, config_dir: ConfigDirs = None) -> None:
    """Give a run another name.

    Its checkpoints, metrics and logs move with it, and runs that were started from it follow the new name. Refuses a
    run that is live.

    skytrain runs rename gpt2-124m-pile-3f2a91bc baseline
    """
    config = compose_overrides(overrides, config_dir).config
    from ..pipelines.runs import rename_run

    children = rename_run(config, run, name)
    print(f"{run} is now {name}; continue it with run={name}")
    for child in children:
        print(f"  {child} started from it; continue it with run={child} --from {name}")


@app.command()
def delete(run: Run, overrides: Overrides = None, yes: Yes = False, config_dir: ConfigDirs = None) -> None:
    """Delete a run: checkpoints, metrics, logs.

    Says what will be freed, and asks. Refuses a run that is live. Prepared data and exports stay.

    skytrain runs delete my-run
    """
    config = compose_overrides(overrides, config_dir).config
    from ..config import format_bytes
    from ..pipelines.runs import delete_run, plan_deletion

    plan = plan_deletion(config, run)
    print(_describe(plan), file=sys.stderr)
    if not yes:
        _ask(run)
    delete_run(config, run)
    print(f"deleted {run}: {format_bytes(plan.bytes)} freed")


def _describe(plan: Deletion) -> str:
    from ..config import format_bytes

    checkpoints = len(plan.checkpoints)
    lines = [
        f"{plan.run}: {format_bytes(plan.bytes)} in {plan.objects} object{'' if plan.objects == 1 else 's'}, "
        f"with {checkpoints} checkpoint{'' if checkpoints == 1 else 's'}"
    ]
    if plan.needed_by:
        lines.append(f"  {', '.join(plan.needed_by)} starts from it and has no checkpoint of its own yet")
    return "\n".join(lines)


def _ask(run: str) -> None:
    if not sys.stdin.isatty():
        raise SkytrainError(f"nobody is here to confirm that {run} may be deleted\n  add --yes")
    if not typer.confirm(f"Delete {run}? It cannot be undone.", err=True):
        raise SkytrainError(f"{run} was kept")
