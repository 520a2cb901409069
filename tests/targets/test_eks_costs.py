"""The hourly bill of an EKS cluster: every part from a dated price, and the documentation has the same figures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from skytrain.aws import cloud_files
from skytrain.cli.main import app
from skytrain.planning import Catalog, load_catalog, unit_prices
from skytrain.report import cluster_table
from skytrain.targets.eks.costs import (
    BASE_ENDPOINTS,
    CLUSTER_ENDPOINTS,
    FSX_GB,
    GPU_DISK_GB,
    PROMETHEUS_DISK_GB,
    SYSTEM_DISK_GB,
    SYSTEM_NODES,
    SYSTEM_TYPE,
    ClusterMachines,
    price_cluster,
)
from tests.support.kubernetes_manifests import KUBERNETES
from tests.support.terraform import BASE, EKS

PAGE = Path(__file__).parents[2] / "docs" / "eks.md"
P4D = ClusterMachines("p4d.24xlarge", 2, "on-demand", "us-east-2")


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return load_catalog(tmp_path)  # the packaged one


def test_idle_and_busy_are_sums_of_named_parts(catalog: Catalog) -> None:
    costs = price_cluster(catalog, P4D)
    idle = {line.name: line.usd_per_hour for line in costs.idle}
    assert idle == pytest.approx({
        "system nodes": 2 * 0.1008, "control plane": 0.10, "volumes": 150 * 0.08 / 730,
        "FSx for Lustre": 1200 * 0.145 / 730, "NAT gateway": 0.045, "its address": 0.005,
    })  # fmt: skip
    assert costs.idle_usd_per_hour == pytest.approx(sum(idle.values()))
    assert costs.busy_usd_per_hour - costs.idle_usd_per_hour == pytest.approx(
        2 * (21.957642 + 200 * 0.08 / 730), rel=1e-4
    )
    assert all(line.price_date for line in (*costs.idle, *costs.busy, *costs.savings))
    assert costs.usd_per_month(0) == pytest.approx(730 * costs.idle_usd_per_hour)
    assert costs.usd_per_month(730) == pytest.approx(730 * costs.busy_usd_per_hour)
    assert costs.usd_per_month(40) == pytest.approx(690 * costs.idle_usd_per_hour + 40 * costs.busy_usd_per_hour)


def test_a_closed_network_pays_endpoints_instead_of_the_nat_gateway(catalog: Catalog) -> None:
    idle = {line.name: line.usd_per_hour for line in price_cluster(catalog, P4D, closed_network=True).idle}
    assert idle["interface endpoints"] == pytest.approx(0.15) and "NAT gateway" not in idle


def test_savings_are_what_the_catalogue_says(catalog: Catalog) -> None:
    savings = {line.name: line.usd_per_hour for line in price_cluster(catalog, P4D).savings}
    spot = catalog.price("p4d.24xlarge", "us-east-2", "spot")
    assert spot is not None
    assert savings["spot instead of on demand"] == pytest.approx(2 * (21.957642 - spot.usd_per_hour_max), rel=1e-4)
    assert savings["a schedule"] == pytest.approx(savings["scale to zero"] * 118 / 168)
    assert savings["no FSx"] == pytest.approx(0.2384, abs=1e-4)
    without = price_cluster(catalog, ClusterMachines("p5e.48xlarge", 1, "spot", "us-east-2"))  # not sold on demand
    assert "spot instead of on demand" not in {line.name for line in without.savings}
    on_spot = price_cluster(catalog, replace(P4D, market="spot"))  # saves nothing by what it does already
    assert "spot instead of on demand" not in {line.name for line in on_spot.savings}
    assert max(line.usd_per_hour for line in on_spot.savings) < on_spot.busy_usd_per_hour


def test_the_cluster_that_is_priced_is_the_one_that_terraform_builds() -> None:
    variables, templates = (EKS / "variables.tf").read_text(), (EKS / "launch_templates.tf").read_text()
    assert f'optional(string, "{SYSTEM_TYPE}")' in variables and f"optional(number, {SYSTEM_NODES})" in variables
    assert f"optional(number, {FSX_GB})" in variables and "optional(number, 125)" in variables
    assert f"default     = {GPU_DISK_GB}" in variables and f"volume_size           = {SYSTEM_DISK_GB}" in templates
    assert f"storage: {PROMETHEUS_DISK_GB}Gi" in (KUBERNETES / "base/monitoring/prometheus.yaml").read_text()
    listed = (BASE / "endpoints.tf").read_text().split("interface_services = concat(")[1].split("]")[0]
    assert listed.count('"') == 2 * BASE_ENDPOINTS
    assert (EKS / "endpoints.tf").read_text().split("toset([")[1].split("]")[0].count('"') == 2 * CLUSTER_ENDPOINTS


def test_the_page_shows_what_the_command_prints(catalog: Catalog) -> None:
    page = PAGE.read_text()
    missing = [line for line in cluster_table(price_cluster(catalog, P4D)).splitlines() if line.rstrip() not in page]
    assert not missing, "\n" + cluster_table(price_cluster(catalog, P4D))


def test_plan_prints_the_cluster_around_the_machines_that_it_chose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = {"project": "demo", "account_id": "123456789012", "region": "us-east-2", "bucket": "b"}
    for path, text in cloud_files(outputs).items():
        (tmp_path / path).parent.mkdir()
        (tmp_path / path).write_text(text)
    monkeypatch.chdir(tmp_path)
    words = [
        "plan",
        "model=gpt2-124m",
        "trainer.steps=4725",
        "--instance",
        "g6.12xlarge",
        "--nodes",
        "2",
        "--market",
        "spot",
    ]
    only = [*words, "--region", "us-east-2", "--config-dir", str(tmp_path)]
    said = CliRunner().invoke(app, [*only, "cloud=eks"])
    assert said.exit_code == 0, said.output
    assert "idle cluster" in said.output and "2 x g6.12xlarge, spot" in said.output
    told = json.loads(CliRunner().invoke(app, [*only, "cloud=eks", "--json"]).stdout)["cluster"]
    assert told["busy_usd_per_hour"] > told["idle_usd_per_hour"] > 0.5
    assert "idle cluster" not in CliRunner().invoke(app, [*only, "cloud=ec2"]).output


def test_every_price_has_a_date_and_a_source() -> None:
    assert all(len(price.source) > 10 and len(price.date) == 10 for price in unit_prices().values())
