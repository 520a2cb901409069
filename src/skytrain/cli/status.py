"""`skytrain status`: the state of runs, from the store, and of the account's machines, from their tags."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ..config import SkytrainError, error_text
from .console import ended_by_reader, pause
from .options import ConfigDirs, Json, compose_overrides
from .output import drawn_output, tell
from .reads import split_words

if TYPE_CHECKING:
    from ..config import Config

Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RUN|KEY=VALUE",
        help="A run or a sweep. Default: all runs of the store. store.root=s3://bucket/project chooses the store.",
        show_default=False,
    ),
]


Watch = Annotated[
    bool,
    typer.Option(
        "--watch",
        "--follow",
        "-f",
        help="Show it again every ten seconds: all runs until Ctrl-C, one run until it ends, with its exit code.",
    ),
]
WATCH_SECONDS = 10.0


def status(
    arguments: Arguments = None, watch: Watch = False, config_dir: ConfigDirs = None, as_json: Json = False
) -> None:
    """Show runs: step, loss, speed, dollars, time to go.

    Reads the store, so it works from any machine. With cloud=aws it also shows the account's machines: which run each
    works for, since when, its price, what it has cost and when it is ended.

    --watch of one run is the view that `skytrain launch` shows: its nodes, generation, step, loss, tokens/s, MFU,
    dollars and kill time, and the course of loss and speed. Ctrl-C ends the view, not the run. With --json it prints one object a line.

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
      skytrain status cloud=aws --watch
      skytrain status my-run cloud=ec2 --watch
    """
    from ..pipelines.status import LossTrends, overview, sweep_overview
    from ..targets import target_of

    runs, settings = split_words(arguments)
    if len(runs) > 1:
        raise SkytrainError(f"give one run, not {len(runs)}: {', '.join(runs)}\n  without a name, all runs are shown")
    config = compose_overrides(settings, config_dir).config
    run = runs[0] if runs else None
    if run and (served := target_of(config).served(config, run)):
        return print(json.dumps(dataclasses.asdict(served), indent=1) if as_json else served.text)
    if run and (sweep := sweep_overview(config, run)):
        return print(sweep.to_json() if as_json else sweep.to_text())
    if watch and run:
        raise typer.Exit(_follow(config, run, as_json))
    trends = LossTrends(config) if watch and run is None and sys.stdout.isatty() else None
    with ended_by_reader():
        text = ""
        while True:
            try:
                shown = overview(config, run)
                text = shown.to_json() if as_json else shown.to_text(trends.read(shown.runs) if trends else None)
            except Exception as error:  # what has been shown once is asked again, whatever happened
                if not text:
                    raise
                tell(f"warning: {error_text(error)}")
                pause(WATCH_SECONDS)
                continue
            if watch and sys.stdout.isatty():
                print("\x1b[2J\x1b[H", end="", file=drawn_output())  # clears the screen
            print(text, flush=True)
            if not watch:
                return
            pause(WATCH_SECONDS)


def _follow(config: Config, run: str, as_json: bool) -> int:
    """Follow one run; return its exit code, or 0 after Ctrl-C."""
    from ..pipelines.status import account_session
    from ..targets import RunFollower
    from .screen import follow_run

    end = follow_run(RunFollower(config, run, account_session(config)), as_json=as_json, detached=f"{run} continues")
    if end is not None and not as_json:
        print(f"{run}: {end.reason} (exit code {end.exit_code})")
    return 0 if end is None else end.exit_code
