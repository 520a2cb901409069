"""Fetch current instance types and prices from AWS. The only module of this package that uses the network."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from ..config import MissingExtra, SkytrainError
from ..storage import aws_client_config
from .catalog import CPU_FAMILIES, FAMILIES, REGIONS, Catalog, InstanceType, Price, ServicePrices
from .hardware import find_gpu

PRICING_REGION = "us-east-1"  # the price list has endpoints in only three regions
Clients = Callable[[str, str], Any]  # service, region -> a boto3 client


def refresh_catalog(
    regions: Sequence[str] = REGIONS,
    services: Sequence[ServicePrices] = (),
    clients: Clients | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> Catalog:
    """Fetch specifications, on-demand and current spot prices, and the prices of `services`, in `regions`.

    Needs ec2:DescribeInstanceTypes, ec2:DescribeSpotPriceHistory and pricing:GetProducts. A type that is not sold in a
    region has no price there.
    """
    today = datetime.now(UTC).date().isoformat()
    instances: dict[str, InstanceType] = {}
    prices: list[Price] = []
    of_services: dict[str, list[Price]] = {each.name: [] for each in services}
    with _aws_errors_for_people():
        clients = clients or _boto3_clients()
        pricing = clients("pricing", PRICING_REGION)
        for region in regions:
            ec2 = clients("ec2", region)
            sold = {instance.type: instance for instance in _instance_types(ec2, today)}
            instances |= sold
            prices += _spot_prices(ec2, region, list(sold), today)
            for each in services:
                of_services[each.name] += _service_prices(pricing, each, region, sold, today)
            for type in sold:
                prices += _on_demand_price(pricing, region, type, today)
                if progress:
                    progress(f"{region} {type}", 1 / (len(regions) * len(sold)))
    if not prices:
        raise SkytrainError(
            f"AWS named no GPU instance with a price in {', '.join(regions)}; the prices in use stay as they are"
        )
    families = (*FAMILIES, *CPU_FAMILIES)
    order = sorted(
        instances.values(), key=lambda instance: (families.index(instance.family), instance.gpus, instance.vcpus)
    )
    with_gpus, without = (tuple(one for one in order if bool(one.gpus) is wanted) for wanted in (True, False))
    return Catalog(
        instances=with_gpus,
        prices=tuple(prices),
        origin="refreshed",
        cpu_instances=without,
        of_services={name: tuple(found) for name, found in of_services.items()},
    )


def _instance_types(ec2: Any, today: str) -> Iterator[InstanceType]:
    wanted = [{"Name": "instance-type", "Values": [f"{family}.*" for family in (*FAMILIES, *CPU_FAMILIES)]}]
    for page in ec2.get_paginator("describe_instance_types").paginate(Filters=wanted):
        for item in page["InstanceTypes"]:
            if ".metal" in item["InstanceType"]:  # boots for many minutes and costs no less
                continue
            gpus = item.get("GpuInfo", {}).get("Gpus", [{"Count": 0, "MemoryInfo": {"SizeInMiB": 0}}])
            memory_mib = gpus[0]["MemoryInfo"]["SizeInMiB"]
            network = item["NetworkInfo"]
            yield InstanceType(
                type=item["InstanceType"],
                gpu=_gpu_name(gpus[0]["Name"], memory_mib) if "Name" in gpus[0] else "",
                gpus=gpus[0]["Count"],
                gpu_memory_mib=memory_mib,
                vcpus=item["VCpuInfo"]["DefaultVCpus"],
                memory_gib=item["MemoryInfo"]["SizeInMiB"] / 1024,
                network_gbps=sum(card["BaselineBandwidthInGbps"] for card in network["NetworkCards"]),
                ebs_gbps=item["EbsInfo"]["EbsOptimizedInfo"]["BaselineBandwidthInMbps"] / 1000,
                efa_interfaces=network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0),
                nvme_gb=item.get("InstanceStorageInfo", {}).get("TotalSizeInGB", 0),
                date=today,
                source="DescribeInstanceTypes",
            )


def _gpu_name(name: str, memory_mib: int) -> str:
    if name == "A100" and memory_mib <= 40960:  # EC2 has one name for both; their memory bandwidths differ
        return "a100-40gb"
    gpu = find_gpu(name) or find_gpu(name.lower().replace(" ", "-"))
    if gpu is None:
        raise SkytrainError(
            f"EC2 names a GPU {name!r} that Skytrain does not know; the catalogue in use stays as it is"
        )
    return gpu.name


def _spot_prices(ec2: Any, region: str, types: list[str], today: str) -> Iterator[Price]:
    """Yield the current range of spot prices over the zones of a region."""
    prices_by_type: dict[str, list[float]] = {}
    pages = ec2.get_paginator("describe_spot_price_history").paginate(
        InstanceTypes=types,
        ProductDescriptions=["Linux/UNIX"],
        StartTime=datetime.now(UTC),  # from now on: the price in force in each zone
    )
    for page in pages:
        for item in page["SpotPriceHistory"]:
            prices_by_type.setdefault(item["InstanceType"], []).append(float(item["SpotPrice"]))
    for type, by_zone in prices_by_type.items():
        yield Price(
            type=type,
            region=region,
            market="spot",
            usd_per_hour_min=min(by_zone),
            usd_per_hour_max=max(by_zone),
            date=today,
            source="DescribeSpotPriceHistory",
        )


def _on_demand_price(pricing: Any, region: str, type: str, today: str) -> Iterator[Price]:
    wanted = {
        "instanceType": type,
        "regionCode": region,
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
        "marketoption": "OnDemand",
    }
    answer = pricing.get_products(
        ServiceCode="AmazonEC2",
        Filters=[{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted.items()],
        MaxResults=100,
    )
    usd = [
        price for item in answer["PriceList"] for price in _usd(json.loads(item)) if price > 0
    ]  # 0.00 marks reservations
    if usd:
        yield Price(
            type=type,
            region=region,
            market="on-demand",
            usd_per_hour_min=min(usd),
            usd_per_hour_max=min(usd),
            date=today,
            source="Pricing GetProducts",
        )


def _service_prices(
    pricing: Any, asked: ServicePrices, region: str, sold: Mapping[str, InstanceType], today: str
) -> Iterator[Price]:
    """Yield what a service asks for an hour of each machine, on demand."""
    wanted = {"regionCode": region, **asked.wanted}
    filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted.items()]
    usd_by_type: dict[str, list[float]] = {}
    for page in pricing.get_paginator("get_products").paginate(ServiceCode=asked.service, Filters=filters):
        for item in map(json.loads, page["PriceList"]):
            type = item["product"]["attributes"].get(asked.type_field, "").removeprefix(asked.prefix)
            if type in sold and bool(sold[type].gpus) is asked.gpus:
                usd_by_type.setdefault(type, []).extend(usd for usd in _usd(item) if usd > 0)
    for type, usd in usd_by_type.items():
        if usd:
            yield Price(
                type=type,
                region=region,
                market="on-demand",
                usd_per_hour_min=asked.choose(usd),
                usd_per_hour_max=asked.choose(usd),
                date=today,
                source=f"Pricing GetProducts, {asked.service}",
            )


def _usd(product: dict[str, Any]) -> Iterable[float]:
    for term in product["terms"].get("OnDemand", {}).values():
        for dimension in term["priceDimensions"].values():
            yield float(dimension["pricePerUnit"]["USD"])


def _boto3_clients() -> Clients:
    import boto3

    session = boto3.Session()
    return lambda service, region: session.client(service, region_name=region, config=aws_client_config())


@contextmanager
def _aws_errors_for_people() -> Iterator[None]:
    """Turn botocore errors into one-line errors with a remedy. The current catalogue stays unchanged."""
    try:
        from botocore.exceptions import (
            BotoCoreError,
            ClientError,
            NoCredentialsError,
            PartialCredentialsError,
            ProfileNotFound,
        )
    except ImportError:
        raise MissingExtra("boto3", "aws") from None
    kept = "the prices in use stay as they are (`skytrain catalog` says their date)"
    try:
        yield
    except (NoCredentialsError, PartialCredentialsError):
        raise SkytrainError(
            f"no AWS credentials were found, so prices cannot be refreshed; {kept}\n  sign in: aws configure sso, or set AWS_PROFILE"
        ) from None
    except ProfileNotFound as error:
        raise SkytrainError(
            f"{error}, so prices cannot be refreshed; {kept}\n  set AWS_PROFILE to one that `aws configure list-profiles` names, or unset it"
        ) from None
    except (BotoCoreError, ClientError) as error:
        raise SkytrainError(f"AWS refused to answer: {error}; {kept}") from None
