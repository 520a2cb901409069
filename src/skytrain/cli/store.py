"""`skytrain store`: copies between folders and buckets."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from .options import ConfigDirs, Json, compose_overrides

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Copy data between folders and buckets.\n\nExample: skytrain store copy skytrain-store s3://bucket/project",
)

PLACE = "a folder, file:///... or s3://bucket/prefix"
From = Annotated[str, typer.Argument(metavar="FROM", help=f"What to copy: {PLACE}, or a file.", show_default=False)]
To = Annotated[str, typer.Argument(metavar="TO", help=f"Where to: {PLACE}.", show_default=False)]
Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="How a bucket encrypts what is written: store.sse=kms store.kms_key=ARN. Default: as the bucket says.",
        show_default=False,
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be copied, and copy nothing.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace objects at TO that differ.")]


@app.callback()
def store() -> None:
    """Copy objects between stores."""


@app.command()
def copy(
    source: From,
    target: To,
    overrides: Arguments = None,
    dry_run: DryRun = False,
    overwrite: Overwrite = False,
    config_dir: ConfigDirs = None,
    as_json: Json = False,
) -> None:
    """Copy a folder or bucket to another, verified and resumable.

    Everything below FROM gets the same name below TO: training data up, checkpoints down. Run it again after an
    interruption: only what is missing or different is copied. Checkpoints and data sets become visible at TO when
    they are whole, because markers and manifests are copied last. Nothing at TO is deleted. A FROM that is a file is
    copied into TO.

    \b
    Examples:
      skytrain store copy skytrain-store s3://bucket/project --dry-run
      skytrain store copy skytrain-store/tokens s3://bucket/project/tokens
      skytrain store copy s3://bucket/project/runs/my-run skytrain-store/runs/my-run
      skytrain store copy tasks.jsonl s3://bucket/project/inputs
    """
    from ..pipelines.copy import copy as pipeline, describe_copy
    from .console import reporter

    config = compose_overrides(overrides, config_dir).config
    with reporter() as console:
        report = pipeline(config, source, target, console, dry_run=dry_run, overwrite=overwrite)
    if as_json:
        print(json.dumps(asdict(report), indent=1))
        return
    if dry_run:
        print(*report.keys, sep="\n", end="\n" if report.keys else "")
    print(describe_copy(report))
