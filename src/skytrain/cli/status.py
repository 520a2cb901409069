"""`skytrain status`: how runs stand, from the store alone."""

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
        metavar="[RUN] [KEY=VALUE]...",
        help="A run; without one, all of the store. Settings say which store: store.root=s3://bucket/project.",
        show_default=False,
    ),
]


def status(words: Words = None, config_dir: ConfigDirs = None, as_json: Json = False) -> None:
    """How runs stand: step, loss, speed, dollars, time to go.

    Reads what the run has left in the store, from any machine: no process of the run is asked. A run that has written
    nothing for a minute (ten at its start) and has not said how it ended is stale: it, or its machine, is gone. One that
    ended with an error is failed, and the error is shown.

    skytrain status

    skytrain status my-run store.root=s3://bucket/project --json
    """
    from ..pipelines.status import describe_status, failure_lines, status as story, status_rows

    runs = [word for word in words or [] if "=" not in word]
    if len(runs) > 1:
        raise SkytrainError(f"one run at a time, not {', '.join(runs)}\n  without a name all of them are shown")
    config = compose_overrides([word for word in words or [] if "=" in word], config_dir).config
    found = story(config, runs[0] if runs else None)
    if as_json:
        shown = [dataclasses.asdict(each) for each in found]
        print(json.dumps(shown[0] if runs else shown, indent=1))
        return
    if runs:
        print_table([*describe_status(found[0])])
    else:
        print_table(status_rows(found))
        print(*failure_lines(found), sep="\n", end="\n" if failure_lines(found) else "")
