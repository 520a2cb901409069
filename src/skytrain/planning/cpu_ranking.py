"""Machines without GPUs, for preparing data: ranked by dollars per vCPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .catalog import Catalog, Market


@dataclass(frozen=True)
class CpuMachine:
    """A machine without GPUs, in its cheapest region."""

    type: str
    region: str
    market: Market
    vcpus: int
    memory_gib: float
    network_gbps: float
    usd_per_hour: float  # the cheapest zone
    usd_per_vcpu_hour: float
    quota_code: str | None
    price_date: str


def rank_cpu_machines(catalog: Catalog, market: Market, regions: Sequence[str]) -> list[CpuMachine]:
    """Return the machines that have a price, cheapest per vCPU first, smaller ones first among equals."""
    rows = []
    for instance in catalog.cpu_instances:
        prices = [price for region in regions if (price := catalog.price(instance.type, region, market))]
        if not prices:
            continue
        price = min(prices, key=lambda one: one.usd_per_hour_min)
        rows.append(
            CpuMachine(
                type=instance.type,
                region=price.region,
                market=market,
                vcpus=instance.vcpus,
                memory_gib=instance.memory_gib,
                network_gbps=instance.network_gbps,
                usd_per_hour=price.usd_per_hour_min,
                usd_per_vcpu_hour=price.usd_per_hour_min / instance.vcpus,
                quota_code=instance.quota_code(market),
                price_date=price.date,
            )
        )
    return sorted(rows, key=lambda row: (round(row.usd_per_vcpu_hour, 6), row.vcpus, row.type))
