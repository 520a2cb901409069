"""The plan of a job on one machine that does not train: to prepare, to finish or to serve. Its work decides the machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from .. import __version__
from ..config import SkytrainError, source_hash
from .catalog import HOURS_PER_MONTH, Catalog, InstanceType, Price
from .costs import GP3_USD_PER_GB_MONTH
from .images import planned_image
from .offers import PlanRequest
from .plan_file import FORMAT, CostForecast, JobKind, Plan, PlannedCode, PlannedData, PlannedOffer, QuotaNeed, timestamp
from .plan_making import EXPIRES_HOURS, FALLBACKS, bid_for

LONGEST_JOB_HOURS = 12.0  # limit on the choice, if a larger machine would be faster for about the same dollars


@dataclass(frozen=True)
class JobMaterial:
    """The inputs of a plan for a job on one machine, besides the work."""

    values: Mapping[str, Any]  # the composed configuration
    overrides: Sequence[str]
    request: PlanRequest
    catalog: Catalog
    now: datetime


@dataclass(frozen=True)
class MachineJob:
    """The job that a machine is planned for."""

    kind: JobKind
    why: str  # the first offer is chosen
    data: PlannedData
    assumptions: Mapping[str, str]


def disk_usd_per_hour(disk_gb: int) -> float:
    """Return the price of a machine's disk."""
    return disk_gb * GP3_USD_PER_GB_MONTH / HOURS_PER_MONTH


def machine_offer(
    instance: InstanceType,
    price: Price,
    material: JobMaterial,
    *,
    disk_gb: int,
    cost: CostForecast,
    kill_after_seconds: float | None = None,
) -> PlannedOffer:
    """Return the offer of one machine. Without a kill time of its work it has that of the budget."""
    bid = bid_for(price, instance.type, material.catalog)
    if kill_after_seconds is None:
        kill_after_seconds = material.request.budget.kill_after_seconds(cost.hours_p90, bid)
    return PlannedOffer(
        region=price.region,
        instance_type=instance.type,
        nodes=1,
        market=price.market,
        gpu=instance.gpu,
        gpus_per_node=instance.gpus,
        usd_per_hour_each=[price.usd_per_hour_min, price.usd_per_hour_max],
        price_date=price.date,
        price_source=f"{material.catalog.origin} catalogue: {price.source}",
        max_usd_per_hour_each=bid,
        quota=QuotaNeed(instance.quota_code(price.market), instance.vcpus),
        efa_interfaces=0,
        placement_group=False,
        disk_gb=disk_gb,
        layout=None,
        speed=None,
        memory_bytes_per_gpu={},
        cost=cost,
        kill_after_seconds=kill_after_seconds,
        zones=[],
    )


def machine_plan(job: MachineJob, offers: list[PlannedOffer], material: JobMaterial) -> Plan:
    """Return the plan of the first offer; the others are its fallbacks."""
    return Plan(
        format=FORMAT,
        made_at=timestamp(material.now),
        expires_at=timestamp(material.now + timedelta(hours=EXPIRES_HOURS)),
        why=job.why,
        code=PlannedCode(__version__, source_hash()),
        offers=offers,
        data=job.data,
        store_root=str(material.values["store"]["root"]),
        checkpoint_every=None,
        budget_usd=material.request.budget_usd,
        usd_per_hour=max(offers[0].usd_per_hour_each),
        request=asdict(material.request),
        assumptions=dict(job.assumptions),
        config=dict(material.values),
        words=list(material.overrides),
        job=job.kind,
        image=planned_image(offers),
    )


def choose_machine(offers: Sequence[PlannedOffer], request: PlanRequest, what: str, remedy: str) -> list[PlannedOffer]:
    """Return the choice and its fallbacks: each type and market once.

    `what` is the work, for people; `remedy` what they can do if the budget is too small.
    """
    if not offers:
        raise SkytrainError(
            f"the catalogue has no machine for {what} in {request.region}\n  try: skytrain catalog refresh"
        )
    affordable = [offer for offer in offers if request.budget.covers(offer.cost.usd_p90)]
    if not affordable:
        least = min(offers, key=lambda offer: offer.cost.usd_p90)
        raise SkytrainError(
            f"{what} may cost ${least.cost.usd_p90:.2f} (p90, on {least.instance_type}, {least.market}), "
            f"more than budget.usd={request.budget_usd:g}\n  {remedy}"
        )
    limit = request.deadline_hours or LONGEST_JOB_HOURS
    in_time = [offer for offer in affordable if offer.cost.hours_p90 <= limit]
    by_cost = sorted(in_time, key=lambda offer: (round(offer.cost.usd, 2), offer.cost.hours))
    ranked = by_cost or sorted(affordable, key=lambda offer: (offer.cost.hours_p90, offer.cost.usd))
    first = ranked[:FALLBACKS]
    last = ranked[FALLBACKS : FALLBACKS + 1]
    if all(offer.market == "spot" for offer in first):  # add one on demand, in case spot machines are short
        last = [offer for offer in ranked[FALLBACKS:] if offer.market == "on-demand"][:1] or last
    return [*first, *last]
