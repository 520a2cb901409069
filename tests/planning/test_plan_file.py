"""plan.json: what it holds, that it comes back as written, and which files are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from skytrain.config import SkytrainError, compose
from skytrain.planning import (
    Plan,
    PlanMaterial,
    PlannedData,
    PlanRequest,
    choose,
    fallbacks,
    find_offers,
    make_plan,
    read_plan,
    workload_of,
    write_plan,
)
from skytrain.planning.catalog import packaged_catalog

CATALOG = packaged_catalog()
NOW = datetime(2026, 11, 15, 12, 30, tzinfo=UTC)
RUN = ["model=gpt2-124m", "trainer.steps=4725", "trainer.precision=bf16-mixed", "trainer.checkpoint_every=10m"]
TWO_G5 = PlanRequest(budget_usd=150, instance="g5.12xlarge", nodes=2, market="spot")


def plan_of(request: PlanRequest, *words: str) -> Plan:
    composed = compose([*RUN, *words])
    workload = workload_of(composed.config, composed.given)
    found = find_offers(workload, CATALOG, request)
    choice = choose(found)
    assert choice is not None
    material = PlanMaterial(
        values=composed.values,
        overrides=(),
        request=request,
        catalog=CATALOG,
        now=NOW,
    )
    return make_plan(
        [choice, *fallbacks(choice, found)],
        material,
        why="why",
        data=PlannedData("tokens/pile", workload.work.data_bytes),
        local_bytes=workload.work.local_data_bytes,
    )


@pytest.fixture(scope="module")
def two_nodes() -> Plan:
    return plan_of(TWO_G5, "parallel=tp-fsdp", "parallel.tensor=4", "budget.usd=150")


@pytest.fixture
def path(two_nodes: Plan, tmp_path: Path) -> Path:
    write_plan(two_nodes, tmp_path / "plan.json")
    return tmp_path / "plan.json"


def changed(path: Path, change: Any) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_a_plan_comes_back_as_it_was_written(two_nodes: Plan, path: Path) -> None:
    assert read_plan(path) == two_nodes


def test_a_plan_names_machines_price_quota_network_and_layout(two_nodes: Plan) -> None:
    offer = two_nodes.choice
    assert (offer.instance_type, offer.nodes, offer.market, offer.price_date) == (
        "g5.12xlarge",
        2,
        "spot",
        "2026-08-22",
    )
    assert (offer.quota.code, offer.quota.vcpus) == ("L-3819A6DF", 96)
    assert (offer.efa_interfaces, offer.placement_group) == (1, True)
    assert offer.layout.mesh == {"pipeline": 1, "replicate": 1, "shard": 2, "context": 1, "tensor": 4}
    assert "parallel.tensor=4" in offer.layout.overrides and two_nodes.checkpoint_every == "10m"


def test_machines_that_nobody_watches_cannot_pass_the_budget_at_the_highest_bid(two_nodes: Plan) -> None:
    for plan in (two_nodes, plan_of(PlanRequest(budget_usd=6, region="us-west-2"), "budget.usd=6")):
        for offer in plan.offers:
            assert offer.kill_after_seconds / 3600 * offer.nodes * offer.max_usd_per_hour_each <= plan.budget_usd + 1e-9


def test_a_spot_bid_is_a_fifth_above_the_dearest_zone_and_never_above_on_demand() -> None:
    cheap = plan_of(PlanRequest(instance="p5.4xlarge", nodes=1, market="spot", region="us-west-2")).choice
    assert cheap.max_usd_per_hour_each == pytest.approx(1.2 * max(cheap.usd_per_hour_each))
    scarce = plan_of(PlanRequest(instance="g6.xlarge", nodes=1, market="spot", region="us-east-1")).choice
    assert scarce.max_usd_per_hour_each == 0.8048


def test_fallbacks_are_other_machines_of_the_same_region_in_order_of_dollars() -> None:
    plan = plan_of(PlanRequest(budget_usd=150), "budget.usd=150")
    first, *others = plan.offers
    assert len(others) == 3 and {offer.region for offer in others} == {first.region}
    assert len({(offer.instance_type, offer.market) for offer in plan.offers}) == 4
    assert [offer.cost.usd for offer in plan.offers] == sorted(offer.cost.usd for offer in plan.offers)


@pytest.mark.parametrize(
    "word", ["model.target=evil.Model", "parallel.x=${run}", "trainer.micro_batch=[4]", "--from=x"]
)
def test_the_words_of_a_layout_are_about_the_layout(word: str, two_nodes: Plan, path: Path) -> None:
    """They reach the machines as they are, and a plan may be somebody else's file."""
    assert two_nodes.choice.layout is not None
    layout = replace(two_nodes.choice.layout, overrides=[word])
    write_plan(replace(two_nodes, offers=[replace(two_nodes.choice, layout=layout)]), path)
    with pytest.raises(SkytrainError, match="says nothing about the layout of a run"):
        read_plan(path)


def test_a_file_of_something_else_is_not_to_be_overwritten(tmp_path: Path) -> None:
    for text in ("root:x:0:0:root:/root:/bin/bash", "{}"):
        (tmp_path / "passwd").write_text(text)
        with pytest.raises(SkytrainError, match=r"skytrain plan --out plan\.json$"):
            read_plan(tmp_path / "passwd")
    with pytest.raises(SkytrainError, match=r"skytrain plan --out .*/gone\.json$"):
        read_plan(tmp_path / "gone.json")


def test_an_altered_plan_is_refused(path: Path) -> None:
    changed(path, lambda plan: plan["offers"][0].update(nodes=3))
    with pytest.raises(SkytrainError, match="was changed after it was made"):
        read_plan(path)


def test_a_plan_expires_after_a_day(two_nodes: Plan) -> None:
    two_nodes.check_fresh(NOW + timedelta(hours=23, minutes=59))
    with pytest.raises(SkytrainError, match="expired at 2026-11-16T12:30:00"):
        two_nodes.check_fresh(NOW + timedelta(hours=24))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}', '{"format": 99}', '{"format": 3}'])
def test_other_files_are_no_plans(text: str, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(SkytrainError, match=r"is not a plan|is damaged|has format|was changed"):
        read_plan(tmp_path / "plan.json")
