"""Make a plan from offers: the choice and its reasons, the fallbacks in order, and when AWS ends it whatever happens."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from .. import __version__
from ..config import Config, SkytrainError, format_seconds, source_hash
from .catalog import Catalog, InstanceType, Price
from .costs import ASSUMPTIONS, BOOT_SECONDS, GP3_GB
from .host import BLOCKS
from .images import planned_image
from .memory import path_of
from .mesh import CHUNKS, DIMENSIONS, overrides
from .offers import LONGEST_HOURS, Offer, PlanRequest, estimate_offer, place
from .plan_file import (
    FORMAT,
    CostForecast,
    JobKind,
    Layout,
    Plan,
    PlannedCode,
    PlannedData,
    PlannedOffer,
    QuotaNeed,
    SpeedForecast,
    timestamp,
)
from .search import SCHEDULES, TOO_MANY, Placement
from .workload import Workload

EXPIRES_HOURS = 24  # spot prices move within a day
PRICE_TOLERANCE = 1.2  # multiple of the planned price beyond which a plan must be made again
FALLBACKS = 3  # number of offers after the choice
SPARE_DISK = 1.2  # disk as a multiple of the bytes that a machine without NVMe keeps
MOST_NODES = 4096  # more of one machine than this nobody rents
WORTH_TELLING = 0.01  # smallest saving by another setting that is reported, as a fraction of the run's dollars


@dataclass(frozen=True)
class PlanMaterial:
    """The inputs of every plan."""

    values: Mapping[str, Any]  # the composed configuration
    overrides: Sequence[str]  # that the configuration was composed of
    request: PlanRequest
    catalog: Catalog
    now: datetime


@dataclass(frozen=True)
class JobOfPlan:
    """The job that machines are planned for."""

    why: str  # the first offer is chosen
    data: PlannedData
    assumptions: Mapping[str, str]
    kind: JobKind = "train"


def choose(offers: Sequence[Offer]) -> Offer | None:
    """Return the cheapest offer within all limits."""
    return next((offer for offer in offers if offer.problem is None), None)


def explain(choice: Offer, offers: Sequence[Offer], request: PlanRequest) -> str:
    """Explain the choice and its alternatives; if its speed is assumed, name the cheapest measured offer."""
    assert choice.estimate and choice.placement
    able = [offer for offer in offers if offer.problem is None and offer is not choice]
    limit = "".join(
        [
            f" within ${request.budget_usd:,.0f} even at its p90 of ${choice.estimate.usd_p90:,.0f}"
            if request.budget_usd is not None
            else "",
            f" in at most {format_seconds(3600 * request.deadline_hours)}"
            if request.deadline_hours is not None
            else "",
        ]
    )
    sentences = [f"{choice.name} is the cheapest offer that finishes{limit}."]
    faster = [offer for offer in able if offer.estimate and offer.estimate.hours < 0.95 * choice.estimate.hours]
    if faster:
        quick = min(faster, key=lambda offer: offer.estimate.hours if offer.estimate else 0.0)
        assert quick.estimate
        sentences.append(
            f"The fastest allowed is {quick.name}: {quick.estimate.hours:.1f} h instead of {choice.estimate.hours:.1f} h for ${quick.estimate.usd:,.0f}."
        )
    else:
        sentences.append("Nothing else among the offers is both allowed and faster.")
    if choice.placement.prediction.source == "assumed":
        known = [offer for offer in able if offer.placement and offer.placement.prediction.source != "assumed"]
        if known and known[0].estimate:
            sentences.append(
                f"Its speed is assumed; the cheapest whose speed follows from a measurement is {known[0].name} for ${known[0].estimate.usd:,.2f}."
            )
    return " ".join(sentences)


def costly_settings(config: Config, choice: Offer, workload_for: Callable[[Config], Workload]) -> list[str]:
    """Return the settings that make the choice more expensive than necessary, with the dollars.

    `workload_for` returns the workload of a changed configuration. An alternative that `train` would refuse has no
    placement and is not suggested.
    """
    assert choice.estimate and choice.placement
    trainer = config.trainer
    cheaper: list[tuple[str, str, dict[str, Any]]] = []
    if choice.placement.job.precision == "32-true":
        cheaper.append(("trainer.precision=32-true", "trainer.precision=bf16-mixed", {"precision": "bf16-mixed"}))
    if trainer.fused == "off":
        cheaper.append(("trainer.fused=off", "trainer.fused=auto", {"fused": "auto"}))
    if not trainer.compile:
        cheaper.append(("trainer.compile=false", "trainer.compile=true", {"compile": True}))
    lines = []
    alternatives = [
        (setting, instead, replace(config, trainer=replace(trainer, **changes)))
        for setting, instead, changes in cheaper
    ]
    if choice.placement.mesh.pipeline > 1:
        used = choice.placement.job.schedule
        alternatives += [
            (
                f"parallel.schedule={used}",
                f"parallel.schedule={one}",
                replace(config, parallel=replace(config.parallel, schedule=one)),
            )
            for one in SCHEDULES
            if one != used
        ]
    for setting, instead, changed in alternatives:
        other = workload_for(changed)
        placement = place(other, choice.instance, choice.nodes)
        if not isinstance(placement, Placement):
            continue
        usd = estimate_offer(other, placement, choice).usd
        if choice.estimate.usd - usd > WORTH_TELLING * choice.estimate.usd:
            lines.append(
                f"{setting} costs ${choice.estimate.usd - usd:,.2f} here: ${choice.estimate.usd:,.2f} instead of ${usd:,.2f} with {instead}"
            )
    return lines


class BudgetTooSmall(SkytrainError):
    """The error of a budget below the 90th percentile of every offer's cost."""

    def __init__(self, budget_usd: float, least_usd: float, offer: str) -> None:
        super().__init__(
            f"budget.usd={budget_usd:g} is too small for every offer: the least that works is ${least_usd:,.2f} ({offer})\n"
            f"  try: budget.usd={math.ceil(least_usd)}, or fewer tokens: with --how-many-tokens, plan says how many it buys"
        )
        self.least_usd = least_usd
        self.offer = offer


def refuse(offers: Sequence[Offer], request: PlanRequest, workload: Workload) -> SkytrainError:
    """Return an error that says why no offer can be chosen and what would be the minimum to make one possible."""
    priced = [offer for offer in offers if offer.estimate]
    if not any(offer.placement for offer in offers):
        if not offers:
            return SkytrainError("the catalogue has no such instance")
        least = min(offers, key=_distance_from_fitting)
        more = "more nodes (--nodes), " if request.nodes is not None else ""  # otherwise many were tried
        hint = f"{more}a larger instance, another mesh, or a smaller model"
        what = "the model"
        if TOO_MANY in (least.problem or ""):
            hint = "fewer nodes (--nodes), or a larger trainer.batch_tokens"
        elif BLOCKS in (least.problem or ""):
            what = "the text of the run"
            hint = f"{BLOCKS}, which keeps a part of it on a machine, or fewer tokens"
        return SkytrainError(
            f"{what} does not fit any offer: on {least.nodes} x {least.instance.type}: {least.problem}\n  try {hint}"
        )
    if not priced:
        return SkytrainError(
            f"nothing that fits is sold that way: {offers[0].problem}\n  try another --region or --market"
        )
    if request.longest_hours is not None and all(
        offer.estimate and offer.estimate.hours_p90 > request.longest_hours for offer in priced
    ):
        return _too_slow(priced, request.longest_hours, request, workload)
    in_time = [
        offer
        for offer in priced
        if request.longest_hours is None or (offer.estimate and offer.estimate.hours_p90 <= request.longest_hours)
    ]
    cheapest = min(in_time, key=lambda offer: offer.estimate.usd_p90 if offer.estimate else 0.0)
    assert cheapest.estimate
    if request.budget_usd is None or cheapest.estimate.usd_p90 <= request.budget_usd:
        return SkytrainError(
            f"no offer can be used: {cheapest.name}: {cheapest.problem}\n  try another --instance, or without it"
        )
    return BudgetTooSmall(request.budget_usd, cheapest.estimate.usd_p90, cheapest.name)


def _enough_nodes(quick: Offer, hours: float, workload: Workload) -> int | None:
    """Return how many machines like those of the quickest offer finish in time; None if no number does."""
    assert quick.estimate
    # Powers of two, so that batches and layers divide evenly; fewer than at the same speed a node are never enough.
    nodes = 2 ** math.ceil(math.log2(quick.nodes * quick.estimate.hours_p90 / hours))
    while nodes <= MOST_NODES:
        placement = place(workload, quick.instance, nodes)
        if isinstance(placement, Placement):
            larger = estimate_offer(workload, placement, replace(quick, nodes=nodes))
            if larger.hours_p90 <= hours:
                return nodes
            if larger.hours_p90 > quick.estimate.hours_p90:  # they wait for each other
                return None
        nodes *= 2
    return None


def _distance_from_fitting(offer: Offer) -> tuple[bool, int]:
    """Sort key for offers that are too small: those with most memory first, those with unknown speed last."""
    return offer.instance.device.peak_flops is None, -offer.nodes * offer.instance.gpu_memory_mib


def _too_slow(priced: Sequence[Offer], hours: float, request: PlanRequest, workload: Workload) -> SkytrainError:
    quick = min(priced, key=lambda offer: offer.estimate.hours_p90 if offer.estimate else 0.0)
    assert quick.estimate
    within = f"{LONGEST_HOURS / 24:.0f} days" if request.deadline_hours is None else format_seconds(3600 * hours)
    if 3600 * hours < BOOT_SECONDS[1]:
        hint = f"a later --deadline: machines boot for up to {format_seconds(BOOT_SECONDS[1])}, which no number of them shortens"
    elif nodes := _enough_nodes(quick, hours, workload):
        hint = f"{nodes} nodes would be enough: --nodes {nodes}"
    else:
        hint = f"no number of nodes up to {MOST_NODES:,} would be enough: a smaller model, fewer tokens, larger and fewer steps (trainer.batch_tokens), or a later --deadline"
    return SkytrainError(
        f"no offer finishes within {within}: the quickest takes {quick.estimate.hours_p90:,.1f} h at p90 ({quick.name})\n  {hint}"
    )


def make_plan(
    offers: Sequence[Offer], material: PlanMaterial, *, why: str, data: PlannedData, local_bytes: float
) -> Plan:
    """Make the plan of a run: the chosen offer, which is `offers[0]`, and its fallbacks.

    Each machine keeps `local_bytes` of the data on disk.
    """
    planned = [_planned(offer, local_bytes, material) for offer in offers]
    if (reservation := material.values["cloud"].get("reservation")) is not None:
        # A block is already paid for, so there are no fallbacks. It has its own placement.
        planned = [replace(planned[0], reservation=reservation, placement_group=False)]
    plan = plan_of(JobOfPlan(why, data, ASSUMPTIONS), planned, material)
    return replace(plan, checkpoint_every=material.values["trainer"]["checkpoint_every"])


def plan_of(job: JobOfPlan, offers: Sequence[PlannedOffer], material: PlanMaterial) -> Plan:
    """Return the plan of the first offer; the others are its fallbacks."""
    return Plan(
        format=FORMAT,
        made_at=timestamp(material.now),
        expires_at=timestamp(material.now + timedelta(hours=EXPIRES_HOURS)),
        why=job.why,
        code=PlannedCode(__version__, source_hash()),
        offers=list(offers),
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


def priced_offer(
    instance: InstanceType,
    price: Price,
    material: PlanMaterial,
    *,
    bid: float,
    disk_gb: int,
    cost: CostForecast,
    nodes: int = 1,
) -> PlannedOffer:
    """Return the offer of machines at a price that is in the catalogue, until the budget's kill time."""
    return PlannedOffer(
        region=price.region,
        instance_type=instance.type,
        nodes=nodes,
        market=price.market,
        gpu=instance.gpu,
        gpus_per_node=instance.gpus,
        usd_per_hour_each=[price.usd_per_hour_min, price.usd_per_hour_max],
        price_date=price.date,
        price_source=f"{material.catalog.origin} catalogue: {price.source}",
        max_usd_per_hour_each=bid,
        quota=QuotaNeed(instance.quota_code(price.market), instance.vcpus * nodes),
        efa_interfaces=0,
        placement_group=False,
        disk_gb=disk_gb,
        layout=None,
        speed=None,
        memory_bytes_per_gpu={},
        cost=cost,
        kill_after_seconds=material.request.budget.kill_after_seconds(cost.hours_p90, bid * nodes),
        zones=[],
    )


def _planned(offer: Offer, local_bytes: float, material: PlanMaterial) -> PlannedOffer:
    assert offer.placement and offer.estimate and offer.price
    instance = offer.instance
    placement = offer.placement
    prediction = placement.prediction
    several = offer.nodes > 1
    priced = priced_offer(
        instance,
        offer.price,
        material,
        bid=highest_bid(offer, material.catalog),
        disk_gb=_disk_gb(instance.nvme_gb, local_bytes),
        cost=CostForecast(**asdict(offer.estimate)),
        nodes=offer.nodes,
    )
    return replace(
        priced,
        quota=QuotaNeed(None if offer.seller.quota else priced.quota.code, offer.quota_vcpus),
        efa_interfaces=instance.efa_interfaces if several else 0,
        placement_group=several and instance.efa_interfaces > 0,
        layout=_layout(offer),
        speed=SpeedForecast(
            step_seconds=prediction.seconds,
            tokens_per_s=placement.tokens_per_s,
            source=prediction.source,
            because=prediction.because,
            step_parts_seconds=asdict(prediction.step),
        ),
        memory_bytes_per_gpu=asdict(placement.memory) | {"total": placement.memory.total},
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
