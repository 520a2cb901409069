"""A plan in few words, for tests that need one and do not plan."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from skytrain.planning import CostForecast, Plan, PlannedData, PlannedOffer, load_catalog
from skytrain.planning.plan_file import FORMAT, Layout, PlannedCode, QuotaNeed, SpeedForecast


def offer(instance_type: str = "g5.12xlarge", nodes: int = 2, market: Any = "spot", **changed: Any) -> PlannedOffer:
    instance = load_catalog().instance(instance_type)
    layout = Layout(
        mesh={"shard": 8},
        preset="fsdp",
        schedule="1f1b",
        micro_batch=8,
        accumulation=1,
        activation_checkpointing="none",
        reduce_once=True,
        fp8=False,
        precision="bf16-mixed",
        compile=True,
        kernels="torch",
        overrides=[],
    )
    made = PlannedOffer(
        region="us-east-2",
        instance_type=instance_type,
        nodes=nodes,
        market=market,
        gpu=instance.gpu,
        gpus_per_node=instance.gpus,
        usd_per_hour_each=[2.22, 2.43],
        price_date="2026-08-22",
        price_source="test",
        max_usd_per_hour_each=2.92,
        quota=QuotaNeed(instance.quota_code(market), instance.vcpus * nodes),
        efa_interfaces=instance.efa_interfaces if nodes > 1 else 0,
        placement_group=nodes > 1,
        disk_gb=100,
        layout=layout,
        speed=SpeedForecast(
            step_seconds=1.0, tokens_per_s=1e5, source="modelled", because="test", step_parts_seconds={}
        ),
        memory_bytes_per_gpu={"total": 1e10},
        cost=CostForecast(
            hours=5.0, hours_p90=6.0, usd=25.0, usd_p10=20.0, usd_p90=30.0, interruptions=0.2, parts_usd={}
        ),
        kill_after_seconds=36000.0,
        zones=[],
    )
    return replace(made, **changed)


def cpu_offer(instance_type: str = "c7i.8xlarge", market: Any = "spot", **changed: Any) -> PlannedOffer:
    """A machine without GPUs, for preparing data."""
    instance = next(each for each in load_catalog().cpu_instances if each.type == instance_type)
    gpu = offer("g5.xlarge", 1, market)
    quota = QuotaNeed(instance.quota_code(market), instance.vcpus)
    made = replace(gpu, instance_type=instance_type, gpu="", gpus_per_node=0, quota=quota, layout=None, speed=None)
    return replace(made, memory_bytes_per_gpu={}, **changed)


def plan(*offers: PlannedOffer, made_at: datetime | None = None) -> Plan:
    at = made_at or datetime.now(UTC)
    return Plan(
        format=FORMAT,
        made_at=at.isoformat(),
        expires_at=(at + timedelta(hours=24)).isoformat(),
        why="test",
        code=PlannedCode("0", "0"),
        offers=list(offers or (offer(),)),
        data=PlannedData("tokens", 1e9),
        store_root="s3://b/p",
        checkpoint_every="10m",
        budget_usd=None,
        usd_per_hour=2.92,
        request={},
        assumptions={},
        config={},
        words=[],
    )
