"""Doctor: every check that applies to this machine, this account and this plan, and the exit code they add up to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ..config import Config, SkytrainError
from ..planning import read_plan
from ..targets import CHECKS, Finding, Preflight, run_checks, sagemaker_checks

# Of several failures the first of these decides: without credentials nothing else can be known.
ORDER = ("credentials", "store", "preflight", "quota", "capacity")


def doctor(config: Config, plan: Path | None) -> Iterator[Finding]:
    """Yield each finding as soon as it is known. AWS is asked only where an account is set up or a plan is given."""
    preflight = Preflight(config, read_plan(plan) if plan else None)
    aws = preflight.plan is not None or config.cloud.project is not None
    if config.cloud.target == "sagemaker":
        machine = [one for one in CHECKS if one.group != "AWS" and one.name != "store"]
        preflight = replace(preflight, config=_with_recorded_image(config))
        yield from run_checks([*machine, *sagemaker_checks(planned=plan is not None)], preflight)
        return
    yield from run_checks([one for one in CHECKS if aws or one.group != "AWS" or one.name == "account"], preflight)


def _with_recorded_image(config: Config) -> Config:
    from ..targets import in_private_subnets, with_recorded_image

    try:
        return in_private_subnets(with_recorded_image(config))
    except SkytrainError:  # the check of the store says why
        return in_private_subnets(config)


def doctor_exit_code(findings: Sequence[Finding]) -> int:
    """Return 0 if nothing failed, otherwise the exit code of the failure to solve first."""
    failed = sorted((one for one in findings if one.verdict == "failed"), key=lambda one: ORDER.index(one.cause))
    return failed[0].exit_code if failed else 0
