"""Plans for `launch prepare`: one machine without GPUs, by the bytes of text."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from skytrain.config import SkytrainError, compose
from skytrain.planning import Plan, PlanMaterial, PlanRequest, PrepareWork, prepare_plan, read_plan, write_plan
from skytrain.planning.catalog import packaged_catalog

VALUES = compose([]).values


def planned(gigabytes: float, budget: float | None = None, **limits: float) -> Plan:
    request = PlanRequest(budget, limits.get("deadline_hours"), region="us-east-2")
    material = PlanMaterial(
        values=VALUES, overrides=("data=pile",), request=request, catalog=packaged_catalog(), now=datetime.now(UTC)
    )
    return prepare_plan(PrepareWork(gigabytes * 1e9, gigabytes * 3e8, "tokens/pile"), material)


def test_more_text_takes_a_larger_machine_and_more_dollars_and_ends_within_half_a_day() -> None:
    choices = [planned(size).choice for size in (1, 50, 1000, 5000)]
    vcpus = [choice.quota.vcpus for choice in choices]
    assert vcpus == sorted(vcpus) and vcpus[0] < vcpus[-1]
    assert [choice.cost.usd for choice in choices] == sorted(choice.cost.usd for choice in choices)
    for choice in choices:
        assert choice.gpus_per_node == 0 and choice.nodes == 1 and choice.cost.hours_p90 <= 12
        assert choice.cost.usd_p10 <= choice.cost.usd <= choice.cost.usd_p90
        assert choice.kill_after_seconds > choice.cost.hours_p90 * 3600


def test_a_deadline_takes_more_cores_and_a_shortage_of_spot_machines_has_a_way_out() -> None:
    assert planned(1000, deadline_hours=2.5).choice.quota.vcpus > planned(100).choice.quota.vcpus
    offers = planned(1000).offers
    assert offers[0].market == "spot" and offers[-1].market == "on-demand"
    assert len({(offer.instance_type, offer.market) for offer in offers}) == len(offers) == 4


def test_the_kill_time_keeps_to_the_budget_and_one_that_is_too_small_is_refused() -> None:
    choice = planned(1000, budget=3.0).choice
    assert choice.max_usd_per_hour_each * choice.kill_after_seconds / 3600 <= 3.0 + 1e-9
    with pytest.raises(SkytrainError, match=r"may cost \$.*more than budget\.usd=0\.1"):
        planned(1000, budget=0.1)


def test_text_that_no_machine_reads_in_half_a_day_takes_the_fastest() -> None:
    assert planned(100_000).choice.quota.vcpus == 64


def test_the_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    plan = planned(50)
    write_plan(plan, tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json") == plan and plan.job == "prepare"
