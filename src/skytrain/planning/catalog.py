"""EC2 instances and their prices, each with its date: the packaged catalogue, or the user's refreshed one.

Prices of what is not a machine (disks, file systems, gateways, storage and its requests) are packaged only.
"""

from __future__ import annotations

import csv
import datetime
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import Literal

from ..config import SkytrainError, nearest, skytrain_cache_folder
from .hardware import Gpu, find_gpu

Market = Literal["on-demand", "spot"]
MARKETS: tuple[Market, ...] = ("on-demand", "spot")
FAMILIES = ("g5", "g6", "g6e", "g7e", "p4d", "p4de", "p5", "p5e", "p5en", "p6-b200", "p6-b300")
CPU_FAMILIES = ("c7i", "m7i", "r7i", "r5")  # for preparing data: 2, 4, 8 and 8 GiB of memory per vCPU
REGIONS = ("us-east-1", "us-east-2", "us-west-2")
INSTANCES = "instances.csv"
PRICES = "prices.csv"
CPU_INSTANCES = "cpu_instances.csv"
CPU_PRICES = "cpu_prices.csv"
UNIT_PRICES = "unit_prices.csv"
FILES = (INSTANCES, PRICES, CPU_INSTANCES, CPU_PRICES)
MOST_MEANT = 4  # types that an error names
NAME_OF_REGION = re.compile(r"[a-z]+(-[a-z]+)+-\d")
HOURS_PER_MONTH = 730.0
STALE_DAYS = 30  # spot prices drift within weeks; beyond this age every plan states the age of its prices

# Service Quotas count vCPUs by family and market. Public sources do not agree on a code for P6 spot.
QUOTA_CODES: dict[tuple[str, Market], str | None] = {
    ("standard", "on-demand"): "L-1216C47A",
    ("standard", "spot"): "L-34B43A08",
    ("g", "on-demand"): "L-DB2E81BA",
    ("g", "spot"): "L-3819A6DF",
    ("p", "on-demand"): "L-417A185B",
    ("p4", "spot"): "L-7212CCBC",
    ("p5", "spot"): "L-C4BD4855",
    ("p6", "spot"): None,
}


STANDARD = re.compile(r"[acdhimrtz]\d")  # families of the Standard quotas: c7i, m7i, r7i, t3 ...


def quota_code(instance_type: str, market: Market) -> str | None:
    """Return the Service Quotas code that limits the type's vCPUs, or None if it is unknown."""
    family = instance_type.split(".")[0]
    if STANDARD.match(family):
        group = "standard"
    elif family.startswith(("g", "vt")):
        group = "g"
    elif family.startswith("p"):
        group = "p" if market == "on-demand" else "p4" if family[:2] in ("p2", "p3") else family[:2]
    else:
        return None
    return QUOTA_CODES.get((group, market))


@dataclass(frozen=True)
class InstanceType:
    type: str
    gpu: str  # a name of hardware.GPUS; empty for a machine without GPUs
    gpus: int
    gpu_memory_mib: int  # per GPU, as EC2 states it; a process can use less
    vcpus: int
    memory_gib: float
    network_gbps: float  # sustained; small sizes burst higher
    ebs_gbps: float
    efa_interfaces: int
    nvme_gb: int
    date: str
    source: str

    @property
    def family(self) -> str:
        return self.type.split(".")[0]

    @property
    def device(self) -> Gpu:
        gpu = find_gpu(self.gpu)
        assert gpu is not None, f"{self.gpu} is not in hardware.GPUS"
        return gpu

    def quota_code(self, market: Market) -> str | None:
        """Return the Service Quotas code that limits this type's vCPUs, or None if it is unknown."""
        return quota_code(self.type, market)


@dataclass(frozen=True)
class Price:
    """Range of dollars per instance hour over a region's zones; for on-demand, minimum and maximum are equal."""

    type: str
    region: str
    market: Market
    usd_per_hour_min: float
    usd_per_hour_max: float
    date: str
    source: str


@dataclass(frozen=True)
class ServicePrices:
    """Prices of a service that has EC2's machines, as its launch target gives them: where AWS's price list has them."""

    name: str  # in the catalogue
    service: str  # in the price list: AmazonSageMaker
    wanted: Mapping[str, str]  # fields of the products, besides their region
    type_field: str  # that has the type of the machine
    prefix: str = ""  # of the type there
    gpus: bool = True  # of machines with GPUs, or of those without
    choose: Callable[[Iterable[float]], float] = min  # of several prices of a type


@dataclass(frozen=True)
class Catalog:
    instances: tuple[InstanceType, ...]  # with GPUs: those that plans choose from
    prices: tuple[Price, ...]
    origin: Literal["packaged", "refreshed"]
    cpu_instances: tuple[InstanceType, ...] = ()
    # Of services, by their names; only in a refreshed catalogue: no public source lists them.
    of_services: Mapping[str, tuple[Price, ...]] = field(default_factory=dict)

    @cached_property
    def _by_key(self) -> dict[tuple[str, str, str], Price]:
        return {(price.type, price.region, price.market): price for price in self.prices}

    @cached_property
    def _of_services_by_key(self) -> dict[tuple[str, str, str], Price]:
        return {
            (name, price.type, price.region): price for name, prices in self.of_services.items() for price in prices
        }

    @cached_property
    def regions(self) -> tuple[str, ...]:
        return tuple(sorted({price.region for price in self.prices}))

    @property
    def date(self) -> str:
        """Return the date of the oldest price."""
        return min(price.date for price in self.prices)

    def age_days(self, today: datetime.date) -> int:
        return (today - datetime.date.fromisoformat(self.date)).days

    def instance(self, type: str) -> InstanceType:
        """Return a type with GPUs. Raises SkytrainError with the nearest name for an unknown one."""
        for instance in self.instances:
            if instance.type == type:
                return instance
        if any(instance.type == type for instance in self.cpu_instances):
            raise SkytrainError(f"{type} has no GPU\n  `skytrain catalog` lists those that have")
        meant = self._meant(type)
        raise SkytrainError(
            f"unknown instance type {type!r}\n  "
            + (f"did you mean {' or '.join(meant)}? " if meant else "")
            + "`skytrain catalog` lists those it knows"
        )

    def _meant(self, word: str) -> list[str]:
        """Return the types that a mistyped type, a family or a GPU stands for; none for a family that has no GPUs known here."""
        plain = word.lower().removeprefix("ml.")
        known = [instance.type for instance in self.instances]
        of_family = [one.type for one in self.instances if one.family == plain]
        of_gpu = [one.type for one in self.instances if plain in one.gpu.split("-")]
        if several := of_family or of_gpu:
            return several[:MOST_MEANT]
        family = plain.partition(".")[0]
        near = nearest(family, {instance.family for instance in self.instances}, cutoff=0.6)
        guess = nearest(plain, [type for type in known if type.partition(".")[0] == near])
        return [guess] if guess else []

    def price(self, type: str, region: str, market: Market) -> Price | None:
        """Return the price, or None (never 0) if the type is not sold in that region and market."""
        return self._by_key.get((type, region, market))

    def least_usd_per_hour(self, type: str, region: str, market: Market) -> float:
        """Return the lowest price of the region's zones: a plan may be older, or of somebody who wrote another price into it.

        Raises SkytrainError if the type is not sold there.
        """
        price = self.price(type, region, market)
        if price is None:
            raise SkytrainError(
                f"no price is known for {type} ({market}) in {region}\n  plan again, or fetch prices: skytrain catalog refresh"
            )
        return price.usd_per_hour_min

    def service_price(self, name: str, type: str, region: str) -> Price | None:
        """Return what a service asks for a machine on demand, or None if it is not known."""
        return self._of_services_by_key.get((name, type, region))

    def check_region(self, region: str) -> None:
        if region not in self.regions:
            guess = nearest(region.replace("_", "-"), self.regions, cutoff=0.85)
            hints = [f"did you mean {guess}?"] if guess else []
            if NAME_OF_REGION.fullmatch(region):
                hints.append(f"those of {region} come with: skytrain catalog refresh --region {region}")
            raise SkytrainError(
                f"no prices for region {region!r}: this catalogue has {', '.join(self.regions)}\n  "
                + (" ".join(hints) or "regions have names such as us-east-2 (Ohio)")
            )


def load_catalog(folder: Path | None = None) -> Catalog:
    """Load the user's refreshed catalogue if there is one, otherwise the packaged one."""
    cached = (folder or skytrain_cache_folder()) / "catalog"
    if (cached / PRICES).exists():
        try:
            files = {path.name: path.read_text() for path in cached.glob("*.csv")}
            return _parse({**_packaged_cpu_files(), **files}, "refreshed")
        except (KeyError, ValueError, OSError, TypeError) as error:
            raise SkytrainError(
                f"{cached} cannot be read ({error})\n  remove that folder, or run: skytrain catalog refresh"
            ) from None
    return packaged_catalog()


def packaged_catalog() -> Catalog:
    return _parse({name: _packaged(name) for name in FILES}, "packaged")


def _packaged(name: str) -> str:
    return (resources.files("skytrain.planning") / "data" / name).read_text()


def _packaged_cpu_files() -> dict[str, str]:
    """Return the files that catalogues refreshed by earlier versions lack."""
    return {name: _packaged(name) for name in (CPU_INSTANCES, CPU_PRICES)}


def save_catalog(catalog: Catalog, folder: Path | None = None) -> Path:
    """Write the catalogue into the user's cache and return the folder. Prices are last: their file makes it valid."""
    cached = (folder or skytrain_cache_folder()) / "catalog"
    cached.mkdir(parents=True, exist_ok=True)
    cpu = {instance.type for instance in catalog.cpu_instances}
    tables: dict[str, Sequence[InstanceType | Price]] = {
        **{f"{name}.csv": prices for name, prices in catalog.of_services.items()},
        CPU_INSTANCES: catalog.cpu_instances,
        CPU_PRICES: [price for price in catalog.prices if price.type in cpu],
        INSTANCES: catalog.instances,
        PRICES: [price for price in catalog.prices if price.type not in cpu],
    }
    for left in set(cached.glob("*.csv")) - {cached / name for name, rows in tables.items() if rows}:
        if left.name not in FILES:
            left.unlink()  # of a service, by an earlier refresh
    for name, rows in tables.items():
        if not rows:
            continue
        columns = ["instance_type" if field == "type" else field for field in rows[0].__dataclass_fields__]
        part = cached / f"{name}.part"
        with part.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows([getattr(row, field) for field in row.__dataclass_fields__] for row in rows)
        part.replace(cached / name)
    return cached


def _parse(files: Mapping[str, str], origin: Literal["packaged", "refreshed"]) -> Catalog:
    prices = [*_prices(files[PRICES]), *_prices(files[CPU_PRICES])]
    cpu = _instances(files[CPU_INSTANCES])
    return Catalog(
        instances=_instances(files[INSTANCES]),
        prices=tuple(prices),
        origin=origin,
        cpu_instances=cpu,
        of_services={
            name.removesuffix(".csv"): tuple(_prices(text)) for name, text in files.items() if name not in FILES
        },
    )


def _instances(text: str) -> tuple[InstanceType, ...]:
    return tuple(
        InstanceType(
            type=row["instance_type"],
            gpu=row["gpu"],
            gpus=int(row["gpus"]),
            gpu_memory_mib=int(row["gpu_memory_mib"]),
            vcpus=int(row["vcpus"]),
            memory_gib=float(row["memory_gib"]),
            network_gbps=float(row["network_gbps"]),
            ebs_gbps=float(row["ebs_gbps"]),
            efa_interfaces=int(row["efa_interfaces"]),
            nvme_gb=int(row["nvme_gb"]),
            date=row["date"],
            source=row["source"],
        )
        for row in csv.DictReader(text.splitlines())
    )


def _prices(text: str) -> Iterator[Price]:
    for row in csv.DictReader(text.splitlines()):
        market = row["market"]
        if market not in MARKETS:
            raise ValueError(f"{market!r} is not a market")
        low = float(row["usd_per_hour_min"])
        high = float(row["usd_per_hour_max"])
        if not 0 < low <= high:
            raise ValueError(f"{row['instance_type']} in {row['region']}: a price of {low} to {high}")
        yield Price(
            type=row["instance_type"],
            region=row["region"],
            market=market,
            usd_per_hour_min=low,
            usd_per_hour_max=high,
            date=row["date"],
            source=row["source"],
        )


@dataclass(frozen=True)
class UnitPrice:
    """The price of a unit: an hour, a GB for a month, 1000 requests."""

    usd: float
    unit: str
    date: str
    source: str

    @property
    def usd_per_hour(self) -> float:
        """Return the price of an hour, of a GB where it is sold by size."""
        assert self.unit in ("hour", "gb-month"), self.unit
        return self.usd / (1 if self.unit == "hour" else HOURS_PER_MONTH)


@cache
def unit_prices() -> dict[str, UnitPrice]:
    """Return the prices by the names of `data/unit_prices.csv`."""
    return {
        row["item"]: UnitPrice(float(row["usd"]), row["unit"], row["date"], row["source"])
        for row in csv.DictReader(_packaged(UNIT_PRICES).splitlines())
    }
