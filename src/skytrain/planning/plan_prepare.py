"""A plan for `launch prepare`: one machine without GPUs, chosen by the bytes of text that it has to read."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..config import NearDedupConfig, format_bytes
from .catalog import MARKETS, InstanceType, Price
from .costs import BOOT_SECONDS, GP3_GB, INTERRUPTIONS_PER_HOUR, s3_seconds
from .one_machine import choose_machine, disk_usd_per_hour, machine_offer
from .plan_file import CostForecast, Plan, PlannedData, PlannedOffer
from .plan_making import JobOfPlan, PlanMaterial, plan_of

TEXT_BYTES_PER_VCPU_SECOND = 4e6  # 6.1e6 measured per CPU-second; a vCPU is half a core: two thirds assumed
PREPARE_P90_FACTOR = 1.8  # p90 of the seconds over their median: rules, languages and file formats differ; assumed
MOST_VCPUS = 64  # more would be idle in serial parts, such as joining duplicates
FAMILIES = ("c7i", "m7i", "r7i")  # families that the base lets operators start; r5 is for clusters
WORKER_GIB = 1.5  # memory per worker
# What the search for duplicates keeps on the disk: minima of a signature, hashes of bands and of texts with their numbers.
MINIMUM_BYTES = 4
BAND_BYTES = 16
TEXT_HASH_BYTES = 24
SCRATCH_TIMES = 1.5  # allowance for sets of shingles, and for the estimated number of documents
OTHER_DISK_GB = 100  # system, packages, caches
MOST_DISK_GB = 16384  # limit of a gp3 volume
ASSUMPTIONS = {
    "speed": "4 MB of text per vCPU and second, p90 1.8 times as slow; from 6.1 MB per CPU-second measured",
    "text": "compressed files have three times as many bytes of text; the rules keep 60% of it",
    "boot": "5 to 12 minutes; one interruption in 24 hours on spot, after which it continues where it was",
}


@dataclass(frozen=True)
class PrepareWork:
    """The amount of data to prepare."""

    text_bytes: float  # to read
    stored_bytes: float  # to fetch: as the source stores them
    folder: str  # of the tokens, relative to the store
    documents: float = 0.0  # to de-duplicate
    scratch_bytes_per_document: float = 0.0  # on the disk, while duplicates are searched for

    @property
    def disk_gb(self) -> int:
        scratch = SCRATCH_TIMES * self.documents * self.scratch_bytes_per_document / 1e9
        return min(MOST_DISK_GB, max(GP3_GB, OTHER_DISK_GB + math.ceil(scratch)))


def scratch_bytes_per_document(near: NearDedupConfig) -> float:
    """Return what the search for duplicates keeps on the disk for each document while it runs."""
    minima = near.permutations or near.bands * near.rows
    return MINIMUM_BYTES * minima + BAND_BYTES * near.bands + 2 * TEXT_HASH_BYTES


def prepare_plan(work: PrepareWork, material: PlanMaterial) -> Plan:
    """Return the plan: the cheapest machine that is done within half a day, else the fastest, and its fallbacks.

    Raises SkytrainError if none is sold in the region, or none is within the budget.
    """
    request = material.request
    assert request.region is not None
    material.catalog.check_region(request.region)
    offers = [
        _offer(work, instance, price, material)
        for instance in material.catalog.cpu_instances
        if instance.family in FAMILIES
        and instance.vcpus <= MOST_VCPUS
        and instance.memory_gib >= WORKER_GIB * instance.vcpus
        for market in ([request.market] if request.market else MARKETS)
        if (price := material.catalog.price(instance.type, request.region, market))
    ]
    chosen = choose_machine(
        offers, request, "preparing the data", "raise the budget, or prepare less: data.target_tokens"
    )
    job = JobOfPlan(
        kind="prepare",
        why=f"{chosen[0].instance_type} is the cheapest that reads {format_bytes(work.text_bytes)} of text in time",
        data=PlannedData(work.folder, work.stored_bytes),
        assumptions=ASSUMPTIONS,
    )
    return plan_of(job, chosen, material)


def _offer(work: PrepareWork, instance: InstanceType, price: Price, material: PlanMaterial) -> PlannedOffer:
    return machine_offer(instance, price, material, disk_gb=work.disk_gb, cost=_cost(work, instance, price))


def _cost(work: PrepareWork, instance: InstanceType, price: Price) -> CostForecast:
    boot = sum(BOOT_SECONDS) / 2
    seconds = work.text_bytes / (TEXT_BYTES_PER_VCPU_SECOND * instance.vcpus)
    reading = s3_seconds(work.stored_bytes, instance)
    hours = (boot + max(seconds, reading)) / 3600
    slow = (max(BOOT_SECONDS) + PREPARE_P90_FACTOR * max(seconds, reading)) / 3600
    interruptions = INTERRUPTIONS_PER_HOUR * hours if price.market == "spot" else 0.0
    hours += interruptions * boot / 3600
    disk = disk_usd_per_hour(work.disk_gb)
    mean = (price.usd_per_hour_min + price.usd_per_hour_max) / 2
    return CostForecast(
        hours=hours,
        hours_p90=slow,
        usd=hours * (mean + disk),
        usd_p10=hours / PREPARE_P90_FACTOR * (price.usd_per_hour_min + disk),
        usd_p90=slow * (price.usd_per_hour_max + disk),
        interruptions=interruptions,
        parts_usd={"machine": hours * mean, "disk": hours * disk},
    )
