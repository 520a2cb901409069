"""The question before anything is changed in an AWS account: which account and region, and what it costs."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ..aws import AwsSession
from ..config import SkytrainError, visible
from .output import tell

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the exact requests as JSON, secrets masked, and send none.")
]


def confirm(session: AwsSession, question: str, usd_per_hour: float, yes: bool) -> None:
    """Print account, region and dollars per hour, then ask. `usd_per_hour` is what the answer yes adds (or saves, < 0).

    Without --yes, a program (no terminal) is refused, and a person who does not answer y ends the command (exit 2).
    """
    caller = session.identity
    rate = f"${abs(usd_per_hour):.2f} per hour {'less' if usd_per_hour < 0 else 'more'}" if usd_per_hour else "no cost"
    tell(f"account {caller.account} ({caller.name}), region {session.region}, {rate}")
    if not yes:
        ask_yes(question)


def ask_yes(question: str) -> None:
    """Ask a person; without a terminal, or with another answer than y, the command ends with exit code 2."""
    if not sys.stdin.isatty():
        raise SkytrainError(f"{question} No terminal to ask in: nothing was changed\n  --yes answers in advance")
    if not typer.confirm(visible(question), default=False, err=True):
        print("nothing was changed", file=sys.stderr)
        raise typer.Exit(2)
