"""`skytrain launch prepare cloud=emr-serverless` and `cloud=emr`: the checks, the question, the Spark job."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from .confirm import confirm

if TYPE_CHECKING:
    from ..config import Composed
    from ..pipelines.launch_emr import EmrLaunch

EMR_TARGETS = ("emr-serverless", "emr")


def launch_on_emr(composed: Composed, folders: list[Path], yes: bool, dry_run: bool) -> None:
    """Start the Spark job, or print the requests and what they would cost."""
    from ..cloud import Preflight, render_calls
    from ..pipelines.launch import config_files
    from ..pipelines.launch_emr import prepare_emr_launch, start_emr_launch
    from .console import reporter
    from .launch import show_finding

    launch = prepare_emr_launch(composed, Preflight(composed.config), None, show_finding)
    if dry_run:
        _describe(launch, file=sys.stderr)
        print(render_calls(launch.calls))
        return
    _describe(launch)
    confirm(launch.session, "Launch?", launch.usd_per_hour, yes)
    with reporter() as console:
        start_emr_launch(launch, config_files([*folders, Path()]), console)
    target = launch.record.target
    print(f"launched {launch.run}: {launch.job.name}")
    print(f"the tokens will be in {launch.store.url(f'tokens/{composed.config.data.name}')}")
    print("The job needs neither this terminal nor this computer. If it fails, the same command resumes it.\n\nNext:")
    for verb in ("status", "logs", "stop"):
        print(f"  skytrain {verb} {launch.run} cloud={target}")


def _describe(launch: EmrLaunch, file: object = None) -> None:
    """Print the job in a few lines, before the question."""
    from ..config import format_seconds

    job, cost = launch.job, launch.estimate
    assumed = ", 3000 bytes a document assumed" if launch.documents_assumed else ""
    fee = f", of which ${cost.fee_usd:.2f} are EMR's" if not launch.serverless else ""
    lines = [
        ("run", launch.run),
        ("job", f"{job.name}, {job.settings.release}"),
        ("machines", cost.machines),
        ("price", f"${launch.usd_per_hour:.2f} an hour{'' if launch.serverless else ', spot at its mean price'}"),
        ("takes", f"{cost.hours:.1f} h (p90 {cost.hours_p90:.1f} h{assumed})"),
        ("costs", f"${cost.usd:.2f} (p90 ${cost.usd_p90:.2f}){fee}"),
        (
            "limit",
            f"{format_seconds(job.timeout_seconds)} each of {job.attempts} attempts, at most ${launch.most_usd:.2f}",
        ),
        ("store", launch.store.root),
    ]
    for name, text in lines:
        print(f"  {name:<10} {text}", file=file)  # type: ignore[call-overload]
