"""The plan of an endpoint: one machine whose GPUs have room for the model, the cheapest of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ..config import SkytrainError
from .catalog import InstanceType, Price
from .costs import GP3_GB
from .memory import usable_bytes
from .one_machine import disk_usd_per_hour, machine_offer
from .plan_file import CostForecast, Plan, PlannedData, PlannedOffer
from .plan_making import FALLBACKS, JobOfPlan, PlanMaterial, bid_for, plan_of
from .serving import ServedShape, ServingFit, fit_serving, refuse_serving

GB = 1e9
ASSUMPTIONS = {
    "memory": "weights, one sequence of full length, activations of 8192 tokens, CUDA and NCCL, as `skytrain serve` checks",
    "hours": "from the launch, with the minutes of the boot",
}


@dataclass(frozen=True)
class ServeWork:
    """The model to serve, and for how long."""

    shape: ServedShape
    folder: str  # of the model, relative to the store
    gpu_memory: float  # share of each GPU's memory
    max_length: int | None = None
    gpus: int | None = None
    hours: float | None = None  # None means as long as the budget lasts
    families: tuple[str, ...] = ()  # families that may be started; empty means all


def serve_plan(work: ServeWork, material: PlanMaterial) -> Plan:
    """Return the plan: the cheapest machine an hour that has room, and its fallbacks.

    Raises SkytrainError if the model is too large for every machine of the region, or neither hours nor dollars are given.
    """
    request = material.request
    assert request.region is not None
    material.catalog.check_region(request.region)
    if work.hours is None and request.budget_usd is None:
        raise SkytrainError(
            "how long is the model served?\n  add --hours 4, or budget.usd=10 for as long as that lasts"
        )
    offers = [_offer(work, instance, price, material) for instance, price in _candidates(work, material)]
    offers.sort(key=lambda offer: (max(offer.usd_per_hour_each), offer.instance_type))
    job = JobOfPlan(
        kind="serve",
        why=f"{offers[0].instance_type} is the cheapest ({offers[0].market}) that has room for the model",
        data=PlannedData(work.folder, work.shape.weight_bytes),
        assumptions=ASSUMPTIONS,
    )
    return plan_of(job, offers[: FALLBACKS + 1], material)


def fit_instance(work: ServeWork, instance: InstanceType) -> ServingFit | None:
    """Return how the machine would serve the model, or None where it has no room."""
    count = work.gpus or instance.gpus
    if count > instance.gpus or (work.gpus and work.gpus not in work.shape.degrees(work.gpus)):
        return None
    return fit_serving(work.shape, _room(work, instance), count, work.max_length)


def _room(work: ServeWork, instance: InstanceType) -> float:
    return usable_bytes(instance.gpu_memory_mib) * work.gpu_memory


def _candidates(work: ServeWork, material: PlanMaterial) -> list[tuple[InstanceType, Price]]:
    """Return the machines that are sold and have room. Raises SkytrainError by how much the largest lacks it."""
    request = material.request
    catalog = material.catalog
    assert request.region is not None
    wanted = [catalog.instance(request.instance)] if request.instance else catalog.instances
    sold = [
        (instance, price)
        for instance in wanted
        if (not work.families or instance.family in work.families)
        and (price := catalog.price(instance.type, request.region, request.market or "on-demand"))
    ]
    if not sold:
        what = request.instance or "a machine with GPUs"
        raise SkytrainError(
            f"the catalogue has no price of {what} ({request.market or 'on-demand'}) in {request.region}\n"
            "  try: skytrain catalog refresh"
        )
    fitting = [(instance, price) for instance, price in sold if fit_instance(work, instance) is not None]
    if not fitting:
        largest = max((instance for instance, _ in sold), key=lambda each: (each.gpus * each.gpu_memory_mib, each.type))
        count = work.gpus or largest.gpus
        raise SkytrainError(
            f"{largest.type}: {refuse_serving(work.shape, _room(work, largest), count, work.max_length)}"
        )
    return fitting


def _offer(work: ServeWork, instance: InstanceType, price: Price, material: PlanMaterial) -> PlannedOffer:
    bid = bid_for(price, instance.type, material.catalog)
    paid = material.request.budget.hours_at(bid)
    hours = paid if work.hours is None else min(work.hours, paid)
    disk_gb = GP3_GB + math.ceil(2 * work.shape.weight_bytes / GB)
    disk = disk_usd_per_hour(disk_gb)
    least = hours * (price.usd_per_hour_min + disk)
    most = hours * (price.usd_per_hour_max + disk)
    cost = CostForecast(
        hours=hours,
        hours_p90=hours,
        usd=most,
        usd_p10=least,
        usd_p90=most,
        interruptions=0.0,
        parts_usd={"machine": most - hours * disk, "disk": hours * disk},
    )
    offer = machine_offer(instance, price, material, disk_gb=disk_gb, cost=cost)
    return replace(offer, kill_after_seconds=hours * 3600)
