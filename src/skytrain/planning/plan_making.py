"""Make a plan from offers: the choice, the fallbacks in order, and when AWS ends it whatever happens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from .. import __version__
from ..config import source_hash
from .catalog import Catalog, Price
from .costs import ASSUMPTIONS, GP3_GB
from .images import planned_image
from .memory import path_of
from .mesh import CHUNKS, DIMENSIONS, overrides
from .offers import Offer, PlanRequest
from .plan_file import (
    FORMAT,
    CostForecast,
    Layout,
    Plan,
    PlannedCode,
    PlannedData,
    PlannedOffer,
    QuotaNeed,
    SpeedForecast,
    timestamp,
)

EXPIRES_HOURS = 24  # spot prices move within a day
PRICE_TOLERANCE = 1.2  # multiple of the planned price beyond which a plan must be made again
FALLBACKS = 3  # number of offers after the choice
SPARE_DISK = 1.2  # disk as a multiple of the bytes that a machine without NVMe keeps


@dataclass(frozen=True)
class JobMaterial:
    """The inputs of a plan for a job on one machine, besides the work."""

    values: Mapping[str, Any]  # the composed configuration
    overrides: Sequence[str]
    request: PlanRequest
    catalog: Catalog
    now: datetime


@dataclass(frozen=True)
class PlanMaterial:
    """The inputs of a plan besides its offers."""

    values: Mapping[str, Any]  # the composed configuration
    overrides: Sequence[str]  # that the configuration was composed of
    request: PlanRequest
    catalog: Catalog
    data: PlannedData
    local_bytes: float  # that each machine keeps on disk
    now: datetime


def make_plan(offers: Sequence[Offer], why: str, material: PlanMaterial) -> Plan:
    """Make a plan of the chosen offer, which is `offers[0]`, and its fallbacks."""
    values = material.values
    now = material.now
    planned = [_planned(offer, material) for offer in offers]
    if (reservation := values["cloud"].get("reservation")) is not None:
        # A block is already paid for, so there are no fallbacks. It has its own placement.
        planned = [replace(planned[0], reservation=reservation, placement_group=False)]
    choice = planned[0]
    return Plan(
        format=FORMAT,
        made_at=timestamp(now),
        expires_at=timestamp(now + timedelta(hours=EXPIRES_HOURS)),
        why=why,
        code=PlannedCode(__version__, source_hash()),
        offers=planned,
        data=material.data,
        store_root=str(values["store"]["root"]),
        checkpoint_every=values["trainer"]["checkpoint_every"],
        budget_usd=material.request.budget_usd,
        usd_per_hour=max(choice.usd_per_hour_each),
        request=asdict(material.request),
        assumptions=dict(ASSUMPTIONS),
        config=dict(values),
        words=list(material.overrides),
        image=planned_image(planned),
    )


def fallbacks(choice: Offer, offers: Sequence[Offer]) -> list[Offer]:
    """Return the offers to try after the choice: allowed, in its region, other machines or market, cheapest first.

    One region, because a run's groups, subnets and bucket are in one. A type and market is taken once, with the
    number of nodes that is cheapest.
    """
    taken = {(choice.instance.type, choice.market)}
    offers = [offer for offer in offers if offer.seller == choice.seller]
    following: list[Offer] = []
    for offer in offers:
        key = (offer.instance.type, offer.market)
        if offer.problem is None and offer.region == choice.region and key not in taken:
            taken.add(key)
            following.append(offer)
    return following[:FALLBACKS]


def highest_bid(offer: Offer, catalog: Catalog) -> float:
    """Return the most that one machine may cost an hour: for spot, 20% above the costliest zone, at most on demand.

    A run whose prices moved further has to be planned again. Without a limit, AWS's own is the on-demand price.
    """
    assert offer.price
    dearest = offer.price.usd_per_hour_max
    if not offer.seller.spot_priced:
        return dearest  # on demand, the most that spot can cost
    return bid_for(offer.price, offer.instance.type, catalog)


def bid_for(price: Price, instance_type: str, catalog: Catalog) -> float:
    """Return the most that a machine of EC2 may cost an hour."""
    if price.market == "on-demand":
        return price.usd_per_hour_max
    on_demand = catalog.price(instance_type, price.region, "on-demand")
    bid = PRICE_TOLERANCE * price.usd_per_hour_max
    return min(bid, on_demand.usd_per_hour_max) if on_demand else bid


def _planned(offer: Offer, material: PlanMaterial) -> PlannedOffer:
    assert offer.placement and offer.estimate and offer.price
    instance = offer.instance
    price = offer.price
    placement = offer.placement
    prediction = placement.prediction
    several = offer.nodes > 1
    bid = highest_bid(offer, material.catalog)
    return PlannedOffer(
        region=offer.region,
        instance_type=instance.type,
        nodes=offer.nodes,
        market=offer.market,
        gpu=instance.gpu,
        gpus_per_node=instance.gpus,
        usd_per_hour_each=[price.usd_per_hour_min, price.usd_per_hour_max],
        price_date=price.date,
        price_source=f"{material.catalog.origin} catalogue: {price.source}",
        max_usd_per_hour_each=bid,
        quota=QuotaNeed(None if offer.seller.quota else instance.quota_code(offer.market), offer.quota_vcpus),
        efa_interfaces=instance.efa_interfaces if several else 0,
        placement_group=several and instance.efa_interfaces > 0,
        disk_gb=_disk_gb(instance.nvme_gb, material.local_bytes),
        layout=_layout(offer),
        speed=SpeedForecast(
            step_seconds=prediction.seconds,
            tokens_per_s=placement.tokens_per_s,
            source=prediction.source,
            because=prediction.because,
            step_parts_seconds=asdict(prediction.step),
        ),
        memory_bytes_per_gpu=asdict(placement.memory) | {"total": placement.memory.total},
        cost=CostForecast(**asdict(offer.estimate)),
        kill_after_seconds=material.request.budget.kill_after_seconds(offer.estimate.hours_p90, bid * offer.nodes),
        zones=[],
        target=offer.seller.name,
    )


def _disk_gb(nvme_gb: int, local_bytes: float) -> int:
    return max(GP3_GB, 0 if nvme_gb else GP3_GB + math.ceil(SPARE_DISK * local_bytes / 1e9))


def _layout(offer: Offer) -> Layout:
    assert offer.placement
    job = offer.placement.job
    mesh = offer.placement.mesh
    return Layout(
        mesh={name: getattr(mesh, name) for name in DIMENSIONS},
        preset=mesh.preset,
        schedule=job.schedule,
        micro_batch=job.micro_batch,
        accumulation=job.accumulation,
        activation_checkpointing=job.recomputation,
        reduce_once=job.reduce_once,
        fp8=job.fp8,
        precision=job.precision,
        compile=job.compiled,
        kernels=path_of(job, mesh),
        overrides=train_overrides(offer),
    )


def train_overrides(choice: Offer) -> list[str]:
    """Return the overrides that `train` needs to run the offer."""
    assert choice.placement
    job = choice.placement.job
    kinds = [] if job.recomputation == "none" else [f"trainer.activation_checkpointing={job.recomputation}"]
    if not job.reduce_once:
        kinds.append("parallel.reduce_once=false")
    if choice.placement.mesh.pipeline > 1:
        kinds.append(f"parallel.schedule={job.schedule}")
        if choice.placement.mesh.chunks != CHUNKS[job.schedule]:
            kinds.append(f"parallel.chunks={choice.placement.mesh.chunks}")
    return [*overrides(choice.placement.mesh), *kinds, f"trainer.micro_batch={job.micro_batch}"]
