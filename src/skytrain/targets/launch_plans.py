"""The configuration and the plan of a job that `launch` runs: those of --plan, or new ones."""

from __future__ import annotations

import tempfile
from pathlib import Path

from ..config import Composed, SkytrainError
from ..planning import Plan, PlanRequest, Target, read_plan
from .base import LaunchRequest
from .jobs import plan_preparation
from .plans import Trials, compose_plan, plan_run


def compose_without_plan(request: LaunchRequest) -> Composed:
    """Return the configuration of `launch prepare`, which takes no plan."""
    if request.plan is not None:
        raise SkytrainError("launch prepare makes its plan itself\n  leave out --plan")
    return request.compose(request.words)


def planned_job(request: LaunchRequest, priced: Target = "ec2") -> tuple[Composed, Plan]:
    """Return the configuration and the plan: the file's, or a new one with prices of `priced`.

    A dry run keeps no plan that it makes.
    """
    file = request.plan
    if request.job == "prepare":
        composed = compose_without_plan(request)
        return composed, plan_preparation(composed)
    if file is not None and request.chooses:
        raise SkytrainError(
            "--instance, --nodes and --market choose machines for a new plan\n  leave them out with --plan"
        )
    given = read_plan(file) if file is not None else None
    words = [*(given.words if given is not None else []), *request.words]
    composed, open_mesh = compose_plan(words, request.folders, None)
    if given is not None and not request.replan:
        return composed, given
    config = composed.config
    if given is not None:
        wanted = PlanRequest(**given.request)
    else:
        wanted = PlanRequest(config.budget.usd, region=config.cloud.region, target=priced, **request.only)
    kept = None if request.dry_run else file
    with tempfile.TemporaryDirectory() as folder:
        planned = plan_run(composed, open_mesh, wanted, Trials(0, 1), kept or Path(folder) / "plan.json")
    if planned.plan is None:
        raise planned.refusal or SkytrainError("no plan was found")
    return composed, planned.plan
