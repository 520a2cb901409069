"""Doctor: every check that applies to this machine, this account and this plan, and the exit code they add up to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ..config import Config
from ..planning import read_plan
from ..targets import Finding, Preflight, run_checks, target_of

# Of several failures the first of these decides: without credentials nothing else can be known.
ORDER = ("credentials", "store", "preflight", "quota", "capacity")


def doctor(config: Config, plan: Path | None) -> Iterator[Finding]:
    """Yield each finding as soon as it is known. AWS is asked only where an account is set up or a plan is given."""
    checks, preflight = target_of(config).doctor_checks(Preflight(config, read_plan(plan) if plan else None))
    yield from run_checks(checks, preflight)


def doctor_exit_code(findings: Sequence[Finding]) -> int:
    """Return 0 if nothing failed, otherwise the exit code of the failure to solve first."""
    failed = sorted((one for one in findings if one.verdict == "failed"), key=lambda one: ORDER.index(one.cause))
    return failed[0].exit_code if failed else 0
