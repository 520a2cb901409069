"""`skytrain status`: the state of runs, from the store, and of the account's machines, from their tags."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ..config import SkytrainError
from ..runs import NoRuns
from .console import ended_by_reader, pause, table
from .options import ConfigDirs, Json, compose_overrides

if TYPE_CHECKING:
    from ..config import Config
    from ..targets import AccountState

Words = Annotated[
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


def status(words: Words = None, watch: Watch = False, config_dir: ConfigDirs = None, as_json: Json = False) -> None:
    """Show runs: step, loss, speed, dollars, time to go.

    Reads the store, so it works from any machine. With cloud=aws it also shows the account's machines: which run each
    works for, since when, its price, what it has cost and when it is ended.

    --watch of one run is the view that `skytrain launch` shows: its nodes, generation, step, loss, tokens/s, MFU,
    dollars and kill time. Ctrl-C ends the view, not the run. With --json it prints one object a line.

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
    from ..targets import target_of

    runs = [word for word in words or [] if "=" not in word]
    if len(runs) > 1:
        raise SkytrainError(f"give one run, not {len(runs)}: {', '.join(runs)}\n  without a name, all runs are shown")
    config = compose_overrides([word for word in words or [] if "=" in word], config_dir).config
    run = runs[0] if runs else None
    if run and (served := target_of(config).served(config, run)):
        return print(json.dumps(dataclasses.asdict(served), indent=1) if as_json else served.text)
    if watch and run and not _sweep(config, run, as_json):
        raise typer.Exit(_follow(config, run, as_json))
    if run and (sweep := _sweep(config, run, as_json)):
        print(sweep)
        return
    with ended_by_reader():
        while True:
            text = _status(config, run, as_json)
            if watch and sys.stdout.isatty():
                print("\x1b[2J\x1b[H", end="")  # clears the screen
            print(text, flush=True)
            if not watch:
                return
            pause(WATCH_SECONDS)


def _sweep(config: Config, name: str, as_json: bool) -> str | None:
    """A sweep of this name, with the machines that were launched for it."""
    from ..targets import status as pipeline, status_rows
    from ..tuning import find_sweep_status, sweep_rows

    found = find_sweep_status(config, name)
    if found is None or as_json:
        return json.dumps(dataclasses.asdict(found), indent=1) if found else None
    machines = [each for run in found.machines for each in pipeline(config, run)]
    return "\n".join([table(sweep_rows(found)), *(["", table(status_rows(machines))] if machines else [])])


def _follow(config: Config, run: str, as_json: bool) -> int:
    """Follow one run; returns its exit code, or 0 after Ctrl-C."""
    from ..aws import open_session
    from ..targets import RunFollower
    from .screen import follow_run

    account = config.cloud.project is not None
    session = open_session(config.cloud.region, config.cloud.account) if account else None
    end = follow_run(RunFollower(config, run, session), as_json=as_json, detached=f"{run} goes on")
    if end is not None and not as_json:
        print(f"{run}: {end.reason} (exit code {end.exit_code})")
    return 0 if end is None else end.exit_code


def _status(config: Config, run: str | None, as_json: bool) -> str:
    from ..targets import describe_status, failure_lines, status as pipeline, status_rows, target_of

    jobs = target_of(config).run_jobs(config, run)
    try:
        found = pipeline(config, run)
        missing = []
    except SkytrainError as error:
        if not (jobs and jobs.facts) and not (isinstance(error, NoRuns) and config.cloud.project is not None):
            raise
        found = []
        missing = [str(error).partition("\n")[0]]
    account = _account(config, run, [each.run for each in found]) if run is None or jobs is None else None
    if as_json:
        shown = [dataclasses.asdict(each) for each in found]
        facts: dict[str, object] = {} if jobs is None else {"jobs": jobs.facts}
        facts |= dataclasses.asdict(account) if account is not None else {}
        runs = shown[0] if run and shown else shown
        return json.dumps({"runs": runs, **facts} if facts else runs, indent=1, default=str)
    alone = run is not None and bool(found)
    lines = [table(describe_status(found[0]))] if alone else [*missing, *([table(status_rows(found))] if found else [])]
    if jobs is not None:
        lines += [line for rows in jobs.tables for line in ("", table(rows))]
        lines += jobs.lines
    lines += [] if run else failure_lines(found)
    if account is not None:
        from ..targets import machine_notes, machine_rows

        rows = [table(machine_rows(account))] if account.machines else ["no machine runs in this account"]
        lines += ["", *rows, *machine_notes(account, found)]
    return "\n".join(lines)


def _account(config: Config, run: str | None, runs: list[str]) -> AccountState | None:
    """The machines, if the configuration names an AWS account."""
    if config.cloud.project is None:
        return None
    from ..aws import open_session
    from ..targets import account_state

    return account_state(config, open_session(config.cloud.region, config.cloud.account), runs, run)
