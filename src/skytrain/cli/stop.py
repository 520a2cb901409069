"""`skytrain stop`: end a run after a checkpoint, and give back its machines."""

from __future__ import annotations

import contextlib
import json
from typing import Annotated

import typer

from .confirm import ask_yes, confirm
from .options import ConfigDirs, Json, RunName, StoreOverrides, compose_overrides, seconds_of
from .output import tell

Wait = Annotated[
    str, typer.Option("--wait", metavar="TIME", help="How long to wait for its end: 90s, 10m; 0s only asks.")
]
Force = Annotated[
    bool, typer.Option("--force", help="Terminate its machines after --wait even if it has not saved by then.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before machines are terminated.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the exact requests as JSON, and send none.")]


def stop(
    run: RunName,
    overrides: StoreOverrides = None,
    wait: Wait = "5m",
    force: Force = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    config_dir: ConfigDirs = None,
    as_json: Json = False,
) -> None:
    """Stop a run after its current step and a checkpoint.

    Writes one object into the run's folder, which the run reads every few seconds, so it works from any machine that
    reaches the store. The run ends as `stopped` with exit code 0, and the same `skytrain train` resumes it.

    With cloud=aws, the run's Auto Scaling groups are then set to zero and its instances terminated. This asks first.
    With cloud=slurm or eks, its jobs are cancelled; with cloud=sagemaker or cloud=emr, its job is stopped.

    \b
    Examples:
      skytrain stop my-run
      skytrain stop my-run store.root=s3://bucket/project --wait 0s
      skytrain stop my-run cloud=aws --dry-run
    """
    from ..config import SkytrainError, error_text
    from ..targets import stop_whole_sweep, target_of
    from ..tuning import find_sweep_status, launched_sweep
    from .console import reporter

    config = compose_overrides(overrides, config_dir).config
    seconds = seconds_of("--wait", wait)
    target = target_of(config)
    try:
        sweep = None if target.served(config, run) else find_sweep_status(config, run)
    except SkytrainError as error:
        if config.cloud.project is None:
            raise
        # Machines are found by their launches, and by their tags also where the store does not answer.
        tell(f"warning: {error_text(error)}")
        sweep = None
        with contextlib.suppress(SkytrainError):
            sweep = launched_sweep(config, run)
    if sweep is not None:
        planned = stop_whole_sweep(config, sweep, tell, lambda: target.end_sweep(config, run))
    else:
        planned = target.plan_stop(config, run, tell)
    if dry_run:
        return print(planned.requests())
    if planned.session is not None and planned.question is not None:
        confirm(planned.session, planned.question, -planned.usd_per_hour, yes)
    elif planned.question is not None and not yes:
        ask_yes(planned.question)
    with reporter() as console:
        result = planned.end(seconds, force, console)
    print(json.dumps(result.facts, indent=1) if as_json else result.text)
    if result.warning is not None:
        tell(result.warning)
    if result.exit_code:
        raise typer.Exit(result.exit_code)
