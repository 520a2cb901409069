"""The catalogue of instances and prices, packaged and refreshed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.stub import ANY, Stubber
from moto import mock_aws

from skytrain.config import SkytrainError
from skytrain.planning import load_catalog, quota_code, rank_cpu_machines, refresh_catalog, save_catalog
from skytrain.planning.catalog import CPU_FAMILIES, FAMILIES, packaged_catalog
from skytrain.targets import service_prices

NO_ENDPOINTS = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_EC2_METADATA_DISABLED": "true"}


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """moto for EC2; the price list, which moto lacks, stubbed with botocore's own check of every request."""
    for name, value in NO_ENDPOINTS.items():
        monkeypatch.setenv(name, value)
    with mock_aws():
        pricing = boto3.client("pricing", region_name="us-east-1")
        stub = Stubber(pricing)
        yield (
            lambda service, region: pricing if service == "pricing" else boto3.client(service, region_name=region),
            stub,
        )


def product(usd: str) -> str:
    return json.dumps(
        {"terms": {"OnDemand": {"a": {"priceDimensions": {"b": {"unit": "Hrs", "pricePerUnit": {"USD": usd}}}}}}}
    )


def test_the_packaged_catalogue_has_every_family_with_a_date_and_a_source() -> None:
    catalog = packaged_catalog()
    assert {instance.family for instance in catalog.instances} == set(FAMILIES)
    assert all(instance.date and instance.source for instance in catalog.instances)
    assert all(price.date == "2026-08-22" and price.source for price in catalog.prices)
    assert catalog.age_days(date(2026, 9, 1)) == 10


def test_what_is_not_sold_has_no_price_instead_of_zero() -> None:
    catalog = packaged_catalog()
    assert catalog.price("p5e.48xlarge", "us-east-2", "on-demand") is None
    assert catalog.price("p4de.24xlarge", "us-east-2", "spot") is None
    assert min(price.usd_per_hour_min for price in catalog.prices) > 0


def test_each_instance_names_its_own_gpu() -> None:
    catalog = packaged_catalog()
    assert catalog.instance("g5.12xlarge").device.peak_flops == 70e12
    assert (
        catalog.instance("p4d.24xlarge").device.memory_bytes_per_s
        < catalog.instance("p4de.24xlarge").device.memory_bytes_per_s
    )
    assert catalog.instance("g7e.2xlarge").device.peak_flops is None


@pytest.mark.parametrize(
    ("type", "market", "code"),
    [
        ("g5.xlarge", "spot", "L-3819A6DF"),
        ("p4d.24xlarge", "spot", "L-7212CCBC"),
        ("p5.48xlarge", "spot", "L-C4BD4855"),
        ("p5.48xlarge", "on-demand", "L-417A185B"),
        ("p6-b200.48xlarge", "spot", None),
        ("p3.2xlarge", "spot", "L-7212CCBC"),
        ("c7i.8xlarge", "on-demand", "L-1216C47A"),
        ("m7i.large", "spot", "L-34B43A08"),
        ("t3.micro", "spot", "L-34B43A08"),
        ("trn1.2xlarge", "spot", None),
        ("inf2.xlarge", "on-demand", None),
    ],
)
def test_the_quota_follows_family_and_market(type: str, market: Any, code: str | None) -> None:
    assert quota_code(type, market) == code


def test_machines_without_gpus_have_prices_and_stay_out_of_plans() -> None:
    catalog = packaged_catalog()
    assert {instance.family for instance in catalog.cpu_instances} == set(CPU_FAMILIES)
    for instance in catalog.cpu_instances:
        for region in catalog.regions:
            on_demand = catalog.price(instance.type, region, "on-demand")
            spot = catalog.price(instance.type, region, "spot")
            assert on_demand and spot and spot.usd_per_hour_min < on_demand.usd_per_hour_min, (instance.type, region)
    assert not {one.type for one in catalog.cpu_instances} & {one.type for one in catalog.instances}
    with pytest.raises(SkytrainError, match=r"c7i\.8xlarge has no GPU"):
        catalog.instance("c7i.8xlarge")


def test_machines_without_gpus_are_ranked_by_dollars_per_vcpu() -> None:
    ranked = rank_cpu_machines(packaged_catalog(), "on-demand", ["us-east-2"])
    assert [row.type for row in ranked][:2] == ["c7i.large", "c7i.xlarge"] and len(ranked) == 35
    costs = [row.usd_per_vcpu_hour for row in ranked]
    assert costs == sorted(costs) and {row.quota_code for row in ranked} == {"L-1216C47A"}


def test_a_catalogue_refreshed_by_an_earlier_version_gets_the_packaged_machines_without_gpus(tmp_path: Path) -> None:
    folder = save_catalog(packaged_catalog(), tmp_path)
    for name in ("cpu_instances.csv", "cpu_prices.csv"):
        (folder / name).unlink()
    loaded = load_catalog(tmp_path)
    assert loaded.origin == "refreshed" and loaded.cpu_instances == packaged_catalog().cpu_instances
    assert loaded.price("c7i.large", "us-east-2", "spot") is not None


def test_an_unknown_instance_or_region_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(SkytrainError, match=r"g5\.12xlarge"):
        packaged_catalog().instance("g5.12xlrge")
    with pytest.raises(SkytrainError, match="us-east-2"):
        packaged_catalog().check_region("us-east-22")


def test_refresh_takes_specifications_spot_and_on_demand_prices_and_later_loads_find_them(
    aws: Any, tmp_path: Path
) -> None:
    clients, stub = aws
    fees = []
    for kind, usd in (("r7i.xlarge", "0.0661"), ("g5.xlarge", "0.25"), ("x9.large", "0.1")):  # of others no fee is kept
        item = json.loads(product(usd))
        item["product"] = {"attributes": {"instanceType": kind, "softwareType": "EMR"}}
        fees.append(json.dumps(item))
    wanted = {"regionCode": "us-east-2", "productFamily": "Elastic Map Reduce Instance", "softwareType": "EMR"}
    filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted.items()]
    stub.add_response("get_products", {"PriceList": fees}, {"ServiceCode": "ElasticMapReduce", "Filters": filters})
    ml = json.loads(product("9.5"))
    ml["product"] = {"attributes": {"instanceName": "ml.g5.xlarge"}}
    asked = {"ServiceCode": "AmazonSageMaker", "Filters": ANY}
    stub.add_response("get_products", {"PriceList": [json.dumps(ml)], "NextToken": "more"}, asked)
    other = {**ml, "product": {"attributes": {"instanceName": "ml.m7i.large"}}}  # without GPUs
    stub.add_response("get_products", {"PriceList": [json.dumps(other)]}, {**asked, "NextToken": "more"})
    for position in range(38 + 35):  # with and without GPUs
        listed = [product("0.0000"), product("1.2345")] if position else []  # the first type has no on-demand price
        stub.add_response(
            "get_products", {"PriceList": listed}, {"ServiceCode": "AmazonEC2", "Filters": ANY, "MaxResults": 100}
        )
    with stub:
        fresh = refresh_catalog(["us-east-2"], service_prices(), clients)
    save_catalog(fresh, tmp_path)
    loaded = load_catalog(tmp_path)

    assert loaded.origin == "refreshed" and len(loaded.instances) == 38
    assert [one.type for one in loaded.cpu_instances] == [one.type for one in packaged_catalog().cpu_instances]
    for one in loaded.cpu_instances:
        before = next(old for old in packaged_catalog().cpu_instances if old.type == one.type)
        assert (one.vcpus, one.memory_gib, one.network_gbps) == (before.vcpus, before.memory_gib, before.network_gbps)
    packaged = packaged_catalog().instance("p5.48xlarge")
    found = loaded.instance("p5.48xlarge")
    for field in ("gpu", "gpus", "gpu_memory_mib", "vcpus", "network_gbps", "efa_interfaces"):
        assert getattr(found, field) == getattr(packaged, field)
    on_demand = [price for price in loaded.prices if price.market == "on-demand"]
    assert len(on_demand) == 72 and {price.usd_per_hour_max for price in on_demand} == {1.2345}
    assert [(one.type, one.usd_per_hour_max) for one in loaded.of_services["sagemaker_prices"]] == [("g5.xlarge", 9.5)]
    assert [(one.type, one.usd_per_hour_max) for one in loaded.of_services["emr_fees"]] == [("r7i.xlarge", 0.0661)]
    assert loaded.service_price("emr_fees", "r7i.xlarge", "us-west-2") is None
    spot = loaded.price("g5.xlarge", "us-east-2", "spot")
    assert spot is not None and spot.date == date.today().isoformat()


def test_both_a100s_are_told_apart_by_memory(aws: Any) -> None:
    from skytrain.planning.refresh import _instance_types

    clients, _ = aws
    found = {instance.type: instance.gpu for instance in _instance_types(clients("ec2", "us-east-2"), "2026-01-01")}
    assert (found["p4d.24xlarge"], found["p4de.24xlarge"]) == ("a100-40gb", "a100")


def test_without_credentials_the_refusal_says_that_old_prices_stay(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    with pytest.raises(SkytrainError, match=r"no AWS credentials.*stay as they are"):
        refresh_catalog(["us-east-2"])


def test_a_profile_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(SkytrainError, match=r"nobody.*stay as they are"):
        refresh_catalog(["us-east-2"])


def test_a_damaged_cache_is_named_with_the_way_out(tmp_path: Path) -> None:
    folder = save_catalog(packaged_catalog(), tmp_path)
    (folder / "prices.csv").write_text(
        "instance_type,region,market,usd_per_hour_min,usd_per_hour_max,date,source\ng5.xlarge,us-east-1,spot,0,0,x,y\n"
    )
    with pytest.raises(SkytrainError, match="remove that folder"):
        load_catalog(tmp_path)
