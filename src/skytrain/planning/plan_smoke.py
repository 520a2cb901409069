"""A smoke run: the first tokens of a run on the machines of its plan, before the run itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .budget import Budget
from .catalog import HOURS_PER_MONTH
from .costs import BOOT_SECONDS, COMPILE_SECONDS, GP3_GB, GP3_USD_PER_GB_MONTH, START_SECONDS
from .plan_file import CostForecast, Plan, PlannedOffer

SLOW = 1.5  # p90 of a step's seconds, as a multiple of the plan's


@dataclass(frozen=True)
class SmokeSettings:
    """The configuration of the smoke run: the run's, except for its name and where it stops."""

    steps: int
    values: Mapping[str, Any]
    overrides: Sequence[str]


def smoke_plan(plan: Plan, settings: SmokeSettings) -> Plan:
    """Return the plan of the smoke run: the same offers, with its own hours, dollars and kill times."""
    offers = [_shortened(offer, settings.steps) for offer in plan.offers]
    return replace(plan, offers=offers, config=dict(settings.values), words=list(settings.overrides))


def delayed_plan(plan: Plan, first: Plan) -> Plan:
    """Return the plan of the run that waits for a smoke run: every kill time is later by that run's latest."""
    wait = max(offer.kill_after_seconds for offer in first.offers)
    offers = [replace(offer, kill_after_seconds=offer.kill_after_seconds + wait) for offer in plan.offers]
    return replace(plan, offers=offers)


def _shortened(offer: PlannedOffer, steps: int) -> PlannedOffer:
    assert offer.speed is not None
    compiling = COMPILE_SECONDS if offer.layout is not None and offer.layout.compile else (0.0, 0.0)
    least, most = (BOOT_SECONDS[end] + START_SECONDS[end] + compiling[end] for end in (0, 1))
    training = steps * offer.speed.step_seconds
    hours = ((least + most) / 2 + training) / 3600
    slow = (most + SLOW * training) / 3600
    disk = GP3_GB * GP3_USD_PER_GB_MONTH / HOURS_PER_MONTH
    low, high = (offer.nodes * (usd + disk) for usd in offer.usd_per_hour_each)
    cost = CostForecast(
        hours=hours,
        hours_p90=slow,
        usd=hours * (low + high) / 2,
        usd_p10=(least + training) / 3600 * low,
        usd_p90=slow * high,
        interruptions=0.0,
        parts_usd={"training": training / 3600 * (low + high) / 2},
    )
    return replace(offer, cost=cost, kill_after_seconds=Budget(None).kill_after_seconds(slow, high))
