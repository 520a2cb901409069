"""Shell: a terminal on a machine of a run, through Session Manager: no SSH key, no open port."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..aws import CloudResource, open_session
from ..config import Config, SkytrainError
from ..jobs import ENDPOINT_PORT
from .account import machines_of

PLUGIN_PAGE = (
    "https://docs.aws.amazon.com/systems-manager/latest/userguide/session-manager-working-with-install-plugin.html"
)
CLI_PAGE = "https://docs.aws.amazon.com/cli/latest/userguide/getting-started-install.html"


@dataclass(frozen=True)
class ShellTarget:
    """The machine to connect to."""

    node: int
    instance: str
    region: str

    def command(self, forward: int | None = None) -> list[str]:
        """Return the command of a terminal; with `forward`, that port of this computer leads to the machine's endpoint."""
        command = ["aws", "ssm", "start-session", "--target", self.instance, "--region", self.region]
        if forward is None:
            return command
        ports = f"portNumber={ENDPOINT_PORT},localPortNumber={forward}"
        return [*command, "--document-name", "AWS-StartPortForwardingSession", "--parameters", ports]


def session_command(
    config: Config, run: str, node: str | None, forward: int | None, tell: Callable[[str], None]
) -> list[str]:
    """Return the command that opens a session on a machine with the run's tag."""
    session = open_session(config.cloud.region, config.cloud.account)
    return choose_machine(run, machines_of(config, session, run, tell), node).command(forward)


def choose_machine(run: str, machines: Sequence[CloudResource], node: str | None) -> ShellTarget:
    """Return machine `node` of a run: its number in the order of launch, or its instance id."""
    alive = [each for each in machines if each.kind == "instance" and each.state == "running"]
    alive.sort(key=lambda each: (each.created_at.timestamp() if each.created_at else 0.0, each.id))
    targets = [ShellTarget(number, each.id, each.region) for number, each in enumerate(alive)]
    if not targets:
        raise SkytrainError(
            f"run {run!r} has no running machine in this account\n  `skytrain status cloud=aws` lists all machines"
        )
    known = ", ".join(f"{target.node}: {target.instance}" for target in targets)
    if node is None:
        if len(targets) > 1:
            raise SkytrainError(f"run {run!r} has {len(targets)} machines: {known}\n  choose one: --node N")
        return targets[0]
    chosen = [target for target in targets if node in (str(target.node), target.instance)]
    if not chosen:
        raise SkytrainError(f"--node {node}: run {run!r} has {known}")
    return chosen[0]


def check_tools() -> None:
    """Raise SkytrainError unless AWS's command line and its plug-in for sessions are installed."""
    if shutil.which("aws") is None:
        raise SkytrainError(f"a shell needs AWS's command line, and there is no `aws` here\n  install it: {CLI_PAGE}")
    if shutil.which("session-manager-plugin") is None:
        raise SkytrainError(
            f"a shell needs the Session Manager plug-in, and there is no `session-manager-plugin` here\n"
            f"  install it: {PLUGIN_PAGE}"
        )
