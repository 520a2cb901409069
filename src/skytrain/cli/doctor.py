"""`skytrain doctor`: what stands between this machine or account and a run, each with its solution."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..config import variable
from .options import ConfigDirs, Json, Overrides, Trusted, compose_cloud
from .output import drawn_output

if TYPE_CHECKING:
    from ..targets import Finding

PlanFile = Annotated[
    Path | None,
    typer.Option(
        "--plan", metavar="FILE", help="Check what this plan needs: quota, zones, prices.", show_default=False
    ),
]
MARKS = {"ok": ("✔", "green"), "failed": ("✗", "red"), "not checked": ("–", "yellow")}
NAME_WIDTH = 15


def doctor(
    overrides: Overrides = None,
    config_dir: ConfigDirs = None,
    plan: PlanFile = None,
    as_json: Json = False,
    trusted: Trusted = None,
) -> None:
    """Check this machine, the AWS account and a plan.

    Nothing is rented or changed, except that an object is written to the store and deleted. AWS is asked if
    `skytrain cloud init` has set an account up, or a plan is given.

    \b
    ✔  no problem
    ✗  a problem, and → how to solve it
    –  not checked, and why

    \b
    Exit codes: 0 no problem, 3 preflight, 4 quota, 5 capacity, 10 store, 11 credentials.

    \b
    Examples:
      skytrain doctor
      skytrain doctor --plan plan.json
      skytrain doctor cloud=aws --json
      skytrain doctor cloud=sagemaker --plan plan.json
    """
    from dataclasses import asdict

    from ..config import plural, trust
    from ..pipelines.doctor import doctor as pipeline, doctor_exit_code

    findings = []
    group = ""
    trust(trusted or [])
    for finding in pipeline(compose_cloud(overrides, config_dir).config, plan, config_dir or [], overrides or []):
        if not as_json:
            if finding.group != group:
                print(("\n" if group else "") + finding.group)
                group = finding.group
            _show(finding)
        findings.append(finding)
    code = doctor_exit_code(findings)
    if as_json:
        print(json.dumps({"exit_code": code, "checks": [asdict(one) for one in findings]}, indent=1))
    else:
        failed = [one.name for one in findings if one.verdict == "failed"]
        print(f"\n{plural(len(failed), 'problem')}: {', '.join(failed)}" if failed else "\nno problems")
    raise typer.Exit(code)


def _show(finding: Finding) -> None:
    mark, colour = MARKS[finding.verdict]
    if sys.stdout.isatty() and not variable("NO_COLOR"):
        mark = typer.style(mark, fg=colour, bold=True)
    fix = f"→ {finding.fix}" if finding.fix else ""
    lines = [line for text in (finding.text, fix, finding.link) if text for line in _wrapped(text)]
    print(f"  {mark} ", end="", file=drawn_output())  # the mark is ours, and what follows may be anybody's text
    print(f"{finding.name:<{NAME_WIDTH}} {lines[0]}", flush=True)
    for line in lines[1:]:
        print(f"    {'':<{NAME_WIDTH}} {line}", flush=True)


def _wrapped(text: str) -> list[str]:
    """Break a text at the edge of the terminal; a program gets one line. Links and commands stay whole."""
    if not sys.stdout.isatty():
        return [text]
    width = max(40, shutil.get_terminal_size().columns - NAME_WIDTH - 6)
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
