"""The hourly cost of an EKS cluster, idle and busy, and what lowers it.

The cluster is the one of infra/terraform: two system nodes, FSx for Lustre, one NAT gateway or the endpoints of a
closed network. GPU nodes are the plan's machines. Prices per GB through the NAT and of logs depend on use: not counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...planning import Catalog, Market, Price, unit_prices
from ..base import ClusterCosts, CostLine

SYSTEM_TYPE = "m7i.large"
SYSTEM_NODES = 2
SYSTEM_DISK_GB = 50
PROMETHEUS_DISK_GB = 50
GPU_DISK_GB = 200
FSX_GB = 1200
BASE_ENDPOINTS = 11
CLUSTER_ENDPOINTS = 4
# Monday to Friday, 20:00 to 06:00: the schedule of the examples
NIGHTS_HOURS = 5 * 10
WEEK_HOURS = 7 * 24


@dataclass(frozen=True)
class ClusterMachines:
    """The GPU nodes of the busy cluster."""

    instance_type: str
    nodes: int
    market: Market
    region: str


def price_cluster(catalog: Catalog, machines: ClusterMachines, closed_network: bool = False) -> ClusterCosts:
    """Return the cluster's hourly bill. A spot machine counts at the region's highest price."""
    idle = tuple(_idle(catalog, machines.region, closed_network))
    gpu = _machine(catalog, machines.instance_type, machines.region, machines.market)
    disk = unit_prices()["gp3"]
    each = f"{machines.nodes} x {machines.instance_type}, {machines.market}"
    busy = (
        CostLine("GPU nodes", machines.nodes * gpu.usd_per_hour_max, gpu.date, each),
        CostLine(
            "their volumes",
            machines.nodes * GPU_DISK_GB * disk.usd_per_hour,
            disk.date,
            f"{GPU_DISK_GB} GB of gp3 each",
        ),
    )
    return ClusterCosts(idle, busy, tuple(_savings(catalog, machines, idle, busy)))


def _idle(catalog: Catalog, region: str, closed_network: bool) -> Iterator[CostLine]:
    prices = unit_prices()
    system = _machine(catalog, SYSTEM_TYPE, region, "on-demand")
    disk_gb = SYSTEM_NODES * SYSTEM_DISK_GB + PROMETHEUS_DISK_GB
    counted = [
        ("control plane", "eks-cluster", 1, "standard support"),
        ("volumes", "gp3", disk_gb, f"{disk_gb} GB of gp3: system nodes and Prometheus"),
        (
            "FSx for Lustre",
            "fsx-lustre-persistent2-125",
            FSX_GB,
            f"{FSX_GB} GB at 125 MB/s per TiB; `fsx = null`: none",
        ),
    ]
    endpoints = BASE_ENDPOINTS + CLUSTER_ENDPOINTS
    if closed_network:
        counted.append(("interface endpoints", "interface-endpoint", endpoints, f"{endpoints} in one zone"))
    else:
        counted.append(("NAT gateway", "nat-gateway", 1, "and $0.045 per GB through it; S3 goes past it"))
        counted.append(("its address", "public-ipv4", 1, ""))
    yield CostLine(
        "system nodes", SYSTEM_NODES * system.usd_per_hour_max, system.date, f"{SYSTEM_NODES} x {SYSTEM_TYPE}"
    )
    for name, item, number, note in counted:
        yield CostLine(name, number * prices[item].usd_per_hour, prices[item].date, note)


def _machine(catalog: Catalog, instance_type: str, region: str, market: Market) -> Price:
    price = catalog.price(instance_type, region, market)
    assert price is not None, f"an offer of {instance_type} in {region} has a price"
    return price


def _savings(
    catalog: Catalog, machines: ClusterMachines, idle: tuple[CostLine, ...], busy: tuple[CostLine, ...]
) -> Iterator[CostLine]:
    gpu_hour = sum(line.usd_per_hour for line in busy)
    yield CostLine(
        "scale to zero",
        gpu_hour,
        busy[0].price_date,
        "in every hour without a run: Karpenter ends empty nodes in 5 minutes",
    )
    nights = gpu_hour * (1 - NIGHTS_HOURS / WEEK_HOURS)
    yield CostLine(
        "a schedule", nights, busy[0].price_date,
        f"mean over a week: nodes Monday to Friday from 20:00 to 06:00, {NIGHTS_HOURS} of {WEEK_HOURS} hours",
    )  # fmt: skip
    on_demand = catalog.price(machines.instance_type, machines.region, "on-demand")
    spot = catalog.price(machines.instance_type, machines.region, "spot")
    if machines.market == "on-demand" and on_demand is not None and spot is not None:
        less = on_demand.usd_per_hour_max - spot.usd_per_hour_max
        share = 100 * less / on_demand.usd_per_hour_max
        yield CostLine(
            "spot instead of on demand", machines.nodes * less, spot.date,
            f"{share:.0f}% of the GPU nodes' price, in the region's most expensive zone",
        )  # fmt: skip
    for line in idle:
        if line.name == "FSx for Lustre":
            yield CostLine("no FSx", line.usd_per_hour, line.price_date, "the store in S3 works without it")
