"""The cost of preparing a corpus on a cluster of EMR and on EMR Serverless, in hours and dollars."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

from ...config import EmrConfig, SkytrainError
from ...planning import (
    HOURS_PER_MONTH,
    INTERRUPTIONS_PER_HOUR,
    PREPARE_P90_FACTOR,
    SPARK_START_CPU_SECONDS,
    Catalog,
    CorpusWork,
    Market,
    PreparationOption,
    ServicePrices,
    unit_prices,
)

# Busy share of the executors' time: stages end with a few tasks, and at times only the driver works; assumed.
BUSY = 0.8
CLUSTER_START_SECONDS = 600.0  # machines, bootstrap, YARN; assumed
SERVERLESS_START_SECONDS = 180.0  # workers, the packed environment; assumed
# aws.amazon.com/emr/pricing: $0.048 for m5.xlarge, which costs $0.192 (as quoted in h2oai/sparkling-water#1462);
# the largest types cost less. A cluster pays it for every node, whatever its market.
EMR_FEE = 0.25
FEES = ServicePrices(
    name="emr_fees",
    service="ElasticMapReduce",
    wanted={"productFamily": "Elastic Map Reduce Instance", "softwareType": "EMR"},
    type_field="instanceType",
    gpus=False,
    choose=max,
)
NODE_TYPES = ("r5.xlarge", "r5.2xlarge", "r5.4xlarge", "r7i.xlarge", "r7i.2xlarge", "r7i.4xlarge")
MOST_NODES = 200
MOST_SERVERLESS_DISK_GB = 200
FREE_DISK_GB = 20  # included with each worker of EMR Serverless


@dataclass(frozen=True)
class ServerlessPrice:
    """The prices of EMR Serverless in a region."""

    usd_per_vcpu_hour: float
    usd_per_gb_hour: float
    usd_per_disk_gb_hour: float
    date: str
    source: str


@cache
def _serverless_prices() -> dict[str, ServerlessPrice]:
    text = (resources.files(__package__) / "serverless_prices.csv").read_text()
    return {
        row["region"]: ServerlessPrice(
            usd_per_vcpu_hour=float(row["usd_per_vcpu_hour"]),
            usd_per_gb_hour=float(row["usd_per_gb_hour"]),
            usd_per_disk_gb_hour=float(row["usd_per_disk_gb_hour"]),
            date=row["date"],
            source=row["source"],
        )
        for row in csv.DictReader(text.splitlines())
    }


def serverless_price(region: str) -> ServerlessPrice:
    """Return the prices of a region; raises SkytrainError where none are known."""
    price = _serverless_prices().get(region)
    if price is None:
        raise SkytrainError(
            f"no price of EMR Serverless is known for {region}\n  known: {', '.join(sorted(_serverless_prices()))}"
        )
    return price


def serverless_usd_per_hour(wanted: EmrConfig, executors: int, region: str) -> float:
    """Return what an hour of all executors and the driver costs."""
    price = serverless_price(region)
    workers = executors + 1
    disk = max(0, wanted.disk_gb - FREE_DISK_GB) * price.usd_per_disk_gb_hour
    return workers * (
        wanted.executor_cores * price.usd_per_vcpu_hour + wanted.executor_gb * price.usd_per_gb_hour + disk
    )


def serverless_offer(work: CorpusWork, wanted: EmrConfig, region: str) -> PreparationOption:
    """Return the offer of EMR Serverless with the settings' executors. Executors that wait are given back."""
    executors = wanted.executors or 16
    seconds = work.vcpu_seconds + SPARK_START_CPU_SECONDS
    vcpus = executors * wanted.executor_cores
    hours = (SERVERLESS_START_SECONDS + seconds / vcpus / BUSY) / 3600
    slow = (SERVERLESS_START_SECONDS + PREPARE_P90_FACTOR * seconds / vcpus / BUSY) / 3600
    usd = serverless_usd_per_hour(wanted, executors, region)
    machines = f"up to {executors} executors of {wanted.executor_cores} vCPU, {wanted.executor_gb} GB"
    words = ("cloud=emr-serverless", f"cloud.emr.executors={executors}", f"cloud.emr.disk_gb={wanted.disk_gb}")
    return PreparationOption(
        how="emr-serverless",
        machines=machines,
        hours=hours,
        hours_p90=slow,
        usd=hours * usd,
        usd_p90=slow * usd,
        fee_usd=hours * usd,
        words=words,
    )


@dataclass(frozen=True)
class ClusterPrice:
    """The cost of a cluster hour: its machines, EMR's fee for them, their disks."""

    machines: float
    fee: float
    disks: float

    @property
    def usd(self) -> float:
        return self.machines + self.fee + self.disks


@dataclass(frozen=True)
class NodePrice:
    """The cost of a node hour without its disk."""

    machine: float
    fee: float

    @property
    def usd(self) -> float:
        return self.machine + self.fee


def node_price(kind: str, region: str, market: Market, catalog: Catalog) -> NodePrice | None:
    """Return the price of a node; None if the catalogue lacks it. EMR's fee is assumed where it is not known."""
    price = catalog.price(kind, region, market)
    listed = catalog.price(kind, region, "on-demand")
    if price is None or listed is None:
        return None
    known = catalog.service_price(FEES.name, kind, region)  # whatever its market
    fee = known.usd_per_hour_max if known else EMR_FEE * listed.usd_per_hour_max
    return NodePrice((price.usd_per_hour_min + price.usd_per_hour_max) / 2, fee)


def cluster_price(wanted: EmrConfig, catalog: Catalog, region: str) -> ClusterPrice:
    """Return the price of the settings' cluster; raises SkytrainError for types without a price."""
    groups: list[tuple[str, int, Market]] = [
        (wanted.primary, 1, "on-demand"),
        (wanted.core, wanted.core_nodes, "on-demand"),
        (wanted.task, wanted.task_nodes, "spot"),
    ]
    machines = fee = 0.0
    for kind, count, market in groups:
        price = node_price(kind, region, market, catalog)
        if count and price is None:
            raise SkytrainError(
                f"the catalogue has no price for {kind} ({market}) in {region}\n  try: skytrain catalog refresh"
            )
        if count and price:
            machines += count * price.machine
            fee += count * price.fee
    nodes = 1 + wanted.core_nodes + wanted.task_nodes
    return ClusterPrice(machines, fee, nodes * wanted.disk_gb * unit_prices()["gp3"].usd / HOURS_PER_MONTH)


def cluster_offer(work: CorpusWork, wanted: EmrConfig, catalog: Catalog, region: str) -> PreparationOption:
    """Return the offer of a cluster with the settings' nodes."""
    price = cluster_price(wanted, catalog, region)
    vcpus = sum(
        count * _vcpus(catalog, kind)
        for kind, count in ((wanted.core, wanted.core_nodes), (wanted.task, wanted.task_nodes))
        if count
    )
    seconds = work.vcpu_seconds + SPARK_START_CPU_SECONDS
    # A lost node takes its shuffled data with it: its share of an hour's work is done again.
    lost = 1 + INTERRUPTIONS_PER_HOUR * wanted.task_nodes / max(1, wanted.core_nodes + wanted.task_nodes)
    hours = (CLUSTER_START_SECONDS + lost * seconds / vcpus / BUSY) / 3600
    slow = (CLUSTER_START_SECONDS + lost * PREPARE_P90_FACTOR * seconds / vcpus / BUSY) / 3600
    task = f" + {wanted.task_nodes} x {wanted.task} spot" if wanted.task_nodes else ""
    machines = f"{wanted.primary} + {wanted.core_nodes} x {wanted.core}{task}"
    words = (
        "cloud=emr", f"cloud.emr.core={wanted.core}", f"cloud.emr.core_nodes={wanted.core_nodes}",
        f"cloud.emr.task={wanted.task}", f"cloud.emr.task_nodes={wanted.task_nodes}",
        f"cloud.emr.disk_gb={wanted.disk_gb}",
    )  # fmt: skip
    return PreparationOption(
        how="emr",
        machines=machines,
        hours=hours,
        hours_p90=slow,
        usd=hours * price.usd,
        usd_p90=slow * price.usd,
        fee_usd=hours * price.fee,
        words=words,
    )


def sized_cluster(work: CorpusWork, wanted: EmrConfig, kind: str, catalog: Catalog, deadline: float) -> EmrConfig:
    """Return the settings with as many nodes of one type as finish in time: a quarter on demand, at least two nodes."""

    available = max(0.25, deadline - CLUSTER_START_SECONDS / 3600) * 3600
    lost = 1 + INTERRUPTIONS_PER_HOUR  # if all nodes were on spot
    vcpus = lost * (work.vcpu_seconds + SPARK_START_CPU_SECONDS) * PREPARE_P90_FACTOR / BUSY / available
    nodes = min(MOST_NODES, max(2, math.ceil(vcpus / _vcpus(catalog, kind))))
    core = max(1, math.ceil(nodes / 4))
    disk = max(wanted.disk_gb, work.disk_gb(nodes))
    return replace(wanted, core=kind, task=kind, core_nodes=core, task_nodes=nodes - core, disk_gb=disk)


def _vcpus(catalog: Catalog, kind: str) -> int:
    for instance in catalog.cpu_instances:
        if instance.type == kind:
            return instance.vcpus
    raise SkytrainError(
        f"{kind} is not in the catalogue of machines without GPUs\n  one of {', '.join(NODE_TYPES)}, for example"
    )


def cluster_options(
    work: CorpusWork, wanted: EmrConfig, catalog: Catalog, region: str, deadline: float
) -> list[PreparationOption]:
    """Return a cluster of each type of node that has prices."""
    return [
        cluster_offer(work, sized_cluster(work, wanted, kind, catalog, deadline), catalog, region)
        for kind in NODE_TYPES
        # A catalogue that was refreshed by an earlier version has fewer types.
        if catalog.price(kind, region, "spot") and catalog.price(kind, region, "on-demand")
    ]


def fee_note(catalog: Catalog, region: str) -> str:
    """Return where the fee of clusters comes from."""
    known = [fee for fee in catalog.of_services.get(FEES.name, ()) if fee.region == region]
    if known:
        return f"EMR's fee on clusters: AWS' price list ({known[0].date}); EC2 prices from the catalogue"
    return (
        "EMR's fee on clusters: a quarter of the price on demand, the most that it is (`skytrain catalog refresh` "
        "reads the fees); EC2 prices from the catalogue"
    )


def serverless_options(work: CorpusWork, wanted: EmrConfig, region: str, deadline: float) -> list[PreparationOption]:
    """Return EMR Serverless with as many executors as finish in time; nothing where its price is not known."""
    if region not in _serverless_prices():
        return []
    executors = math.ceil(
        (work.vcpu_seconds + SPARK_START_CPU_SECONDS) * PREPARE_P90_FACTOR / BUSY / wanted.executor_cores
        / max(900.0, deadline * 3600 - SERVERLESS_START_SECONDS)
    )  # fmt: skip
    executors = max(2, executors, math.ceil(work.disk_gb(1) / MOST_SERVERLESS_DISK_GB))
    disk = min(MOST_SERVERLESS_DISK_GB, max(wanted.disk_gb, work.disk_gb(executors)))
    return [serverless_offer(work, replace(wanted, executors=executors, disk_gb=disk), region)]


def serverless_note(region: str) -> str:
    """Return the prices of EMR Serverless, and where they come from."""
    price = _serverless_prices().get(region)
    if price is None:
        return f"EMR Serverless: no price is known for {region}, so it is left out"
    return (
        f"EMR Serverless in {region}: ${price.usd_per_vcpu_hour} a vCPU-hour, ${price.usd_per_gb_hour} a GB-hour "
        f"({price.date}, {price.source})"
    )
