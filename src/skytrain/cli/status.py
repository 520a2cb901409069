"""`skytrain status`: the state of runs, read from the store alone."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer

from ..config import SkytrainError
from .console import print_table
from .options import ConfigDirs, Json, compose_overrides

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RUN|KEY=VALUE",
        help="A run. Default: all runs of the store. store.root=s3://bucket/project chooses the store.",
        show_default=False,
    ),
]


def status(words: Words = None, config_dir: ConfigDirs = None, as_json: Json = False) -> None:
    """Show runs: step, loss, speed, dollars, time to go.

    Reads the store only, so it works from any machine.

    \b
    running, starting             wrote to the store within the last minute (starting: ten)
    stale                         silent for longer, without an outcome: its machine is gone
    failed                        ended with an error, which is shown
    damaged                       a record of it cannot be read, which is named
    stopped, budget, interrupted  ended on purpose; the same `skytrain train` resumes it

    \b
    Examples:
      skytrain status
      skytrain status my-run store.root=s3://bucket/project --json
    """
    from ..pipelines.status import describe_status, failure_lines, status as pipeline, status_rows

    runs = [word for word in words or [] if "=" not in word]
    if len(runs) > 1:
        raise SkytrainError(f"give one run, not {len(runs)}: {', '.join(runs)}\n  without a name, all runs are shown")
    config = compose_overrides([word for word in words or [] if "=" in word], config_dir).config
    found = pipeline(config, runs[0] if runs else None)
    if as_json:
        shown = [dataclasses.asdict(each) for each in found]
        print(json.dumps(shown[0] if runs else shown, indent=1))
        return
    if runs:
        print_table([*describe_status(found[0])])
    else:
        print_table(status_rows(found))
        print(*failure_lines(found), sep="\n", end="\n" if failure_lines(found) else "")
