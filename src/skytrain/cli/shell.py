"""`skytrain shell`: a terminal on a machine of a run."""

from __future__ import annotations

import shlex
import subprocess
from typing import Annotated

import typer

from .options import ConfigDirs, RunName, StoreOverrides, compose_overrides
from .output import tell

Node = Annotated[
    str | None,
    typer.Option(
        "--node", metavar="N", help="Its number in the order of launch, or its instance id.", show_default=False
    ),
]
Forward = Annotated[
    int | None,
    typer.Option(
        "--forward",
        metavar="PORT",
        min=1,
        max=65535,
        help="Instead of a terminal: connect this port of this computer with the endpoint of `serve --target ec2`.",
        show_default=False,
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the command, and do not run it.")]


def shell(
    run: RunName,
    overrides: StoreOverrides = None,
    node: Node = None,
    forward: Forward = None,
    dry_run: DryRun = False,
    config_dir: ConfigDirs = None,
) -> None:
    """Open a terminal on a machine of a run, without an SSH key.

    Uses AWS Session Manager (`aws ssm start-session`): no key pair and no open port. It needs AWS's command line and
    its session-manager-plugin.

    \b
    Examples:
      skytrain shell my-run cloud=aws
      skytrain shell my-run cloud=aws --node 1 --dry-run
      skytrain shell serve-my-run cloud=aws --forward 8000
    """
    from ..targets import check_tools, target_of

    config = compose_overrides(overrides, config_dir).config
    command = target_of(config).shell_command(config, run, node, forward, tell)
    if dry_run:
        print(shlex.join(command))
        return
    check_tools()
    raise SystemExit(subprocess.run(command, check=False).returncode)
