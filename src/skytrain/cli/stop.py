"""`skytrain stop`: ends a run after a checkpoint, and gives back its machines."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer

from .options import ConfigDirs, Json, RunName, StoreOverrides, compose_overrides, seconds_of

Wait = Annotated[
    str, typer.Option("--wait", metavar="TIME", help="How long to wait for its end: 90s, 10m; 0s only asks.")
]


def stop(
    run: RunName,
    overrides: StoreOverrides = None,
    wait: Wait = "5m",
    config_dir: ConfigDirs = None,
    as_json: Json = False,
) -> None:
    """Stop a run after its current step and a checkpoint.

    Writes one object into the run's folder, which the run reads every few seconds, so it works from any machine that
    reaches the store. The run ends as `stopped` with exit code 0, and the same `skytrain train` resumes it.

    \b
    Examples:
      skytrain stop my-run
      skytrain stop my-run store.root=s3://bucket/project --wait 0s
    """
    from ..pipelines.stop import describe_stop, stop as pipeline
    from .console import reporter

    config = compose_overrides(overrides, config_dir).config
    with reporter() as console:
        stopped = pipeline(config, run, seconds_of("--wait", wait), console)
    print(json.dumps(dataclasses.asdict(stopped), indent=1) if as_json else describe_stop(stopped))
