"""Launch a sweep: machines that share it through the store, each launched, replaced and ended on its own.

No machine is in charge. Each takes its next trial from the sweep, so one that is lost delays nobody, and the same
command after the kill time continues.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...config import Composed, ConfigError, SkytrainError
from ...planning import BOOT_SECONDS, Budget, CostForecast, Plan, PlannedOffer, PlanRequest
from ...runs import Silent
from ...tuning import Schedule, plan_sweep, sweep_name
from ..jobs import machine_run
from ..plans import Trials, compose_plan, plan_run
from .launch import PlannedJob


@dataclass(frozen=True)
class SweepLaunch:
    """A sweep, and the machines that are to run its trials."""

    name: str
    schedule: Schedule
    jobs: tuple[PlannedJob, ...]


def plan_sweep_launch(words: Sequence[str], folders: Sequence[Path]) -> SweepLaunch:
    """Plans the machines of a sweep. Raises BudgetError where the budget buys no search."""
    composed, open_mesh = compose_plan(words, folders, None)
    config = composed.config
    if config.tune.instance is None:
        raise ConfigError("tune.instance", "is not set", hint="the machine for the trials, such as g5.xlarge")
    schedule = plan_sweep(config, Silent())
    request = PlanRequest(None, region=config.cloud.region, instance=config.tune.instance, nodes=1)
    with tempfile.TemporaryDirectory() as folder:
        planned = plan_run(composed, open_mesh, request, Trials(0, 1), Path(folder) / "plan.json")
    if planned.plan is None:
        raise planned.refusal or SkytrainError("no plan was found")
    # The name is a hash of the settings, and machines get more of them: so it is given to them.
    more = [f"tune.name={sweep_name(config)}"]
    if not any(word.startswith("tune.parallel=") for word in words):
        more.append(f"tune.parallel={max(1, planned.plan.choice.gpus_per_node)}")
    composed, _ = compose_plan([*words, *more], folders, None)
    plan = sweep_plan(
        replace(planned.plan, config=dict(composed.values), words=list(composed.overrides)), schedule, composed
    )
    name = sweep_name(composed.config)
    jobs = [
        PlannedJob(replace(composed, config=replace(composed.config, run=machine_run(name, number))), plan)
        for number in range(1, config.tune.machines + 1)
    ]
    return SweepLaunch(name, schedule, tuple(jobs))


def sweep_plan(plan: Plan, schedule: Schedule, composed: Composed) -> Plan:
    """The plan of one machine of the sweep. AWS ends it when its share of the search's dollars is spent."""
    machines = composed.config.tune.machines
    search = schedule.budget_usd - schedule.final_usd
    offers = [_offer(offer, search / machines, schedule, machines) for offer in plan.offers]
    why = f"{plan.choice.instance_type} for the trials of {sweep_name(composed.config)}"
    return replace(plan, offers=offers, job="tune", why=why, budget_usd=schedule.budget_usd)


def _offer(offer: PlannedOffer, share_usd: float, schedule: Schedule, machines: int) -> PlannedOffer:
    price = max(offer.usd_per_hour_each)
    boot = sum(BOOT_SECONDS) / 2 / 3600
    hours = sum(one.usd for one in schedule.trials) / price / machines + boot
    most = Budget(share_usd).hours_at(offer.max_usd_per_hour_each)
    usd = min(share_usd, hours * price)
    cost = CostForecast(
        hours=hours,
        hours_p90=max(hours, most),
        usd=usd,
        usd_p10=usd / 2,
        usd_p90=share_usd,
        interruptions=0.0,
        parts_usd={"machine": usd},
    )
    quota = replace(offer.quota, vcpus=offer.quota.vcpus * machines)  # of all machines together
    return replace(offer, nodes=1, cost=cost, quota=quota, kill_after_seconds=most * 3600)
