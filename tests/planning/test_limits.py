"""Deadlines, budgets, node counts, host memory, disks and measurements, as a plan keeps them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skytrain.config import Config, SkytrainError, compose
from skytrain.planning import (
    LONGEST_HOURS,
    Measurement,
    Mesh,
    Node,
    Offer,
    Placement,
    PlanRequest,
    choose,
    costly_settings,
    decoder_fields,
    explain,
    find_offers,
    refuse,
    workload_of,
)
from skytrain.planning.catalog import packaged_catalog
from skytrain.planning.host import host_bytes
from skytrain.planning.memory import TrainingJob, path_of
from skytrain.planning.offers import node_counts, place
from skytrain.planning.search import NoPlacement
from skytrain.planning.throughput import step_time
from skytrain.report.tables import offers_legend
from skytrain.targets import Trials, compose_plan, plan_run, plan_tokens, planned_workload

CATALOG = packaged_catalog()
GPT2 = ["model=gpt2-124m", "trainer.steps=4725", "trainer.precision=bf16-mixed"]
LLAMA = [
    "model=llama-3.1-8b", "tokenizer.vocab_size=257", "trainer.sequence_length=8192", "trainer.batch_tokens=4194304",
    "trainer.precision=bf16-mixed", "trainer.compile=true",
]  # fmt: skip
HUGE = ["model.layers=126", "model.width=16384", "model.heads=128", "model.mlp_width=53248"]
CONFIG = compose(GPT2).config
ONE_G5 = PlanRequest(instance="g5.xlarge", nodes=1, market="spot", region="us-east-2")


def offers_for(config: Config, request: PlanRequest, **workload: Any) -> list[Offer]:
    return find_offers(workload_of(config, **workload), CATALOG, request)


def test_a_deadline_is_met_by_as_many_nodes_as_it_takes() -> None:
    config = compose([*LLAMA, "trainer.tokens=100B"]).config
    request = PlanRequest(deadline_hours=24, instance="p5.48xlarge", market="spot", region="us-east-2")
    choice = choose(offers_for(config, request))
    assert choice and choice.estimate and choice.nodes >= 16 and choice.estimate.hours_p90 <= 24


def test_a_run_of_years_is_refused_with_the_nodes_that_it_needs() -> None:
    words = [*LLAMA, *HUGE, "trainer.tokens=7T", "loader.shuffle=blocks"]
    config = compose([*words, "trainer.batch_tokens=16777216"]).config
    request = PlanRequest(instance="p5.48xlarge", market="on-demand")
    found = offers_for(config, request)
    assert choose(found) is None
    error = str(refuse(found, request, workload_of(config)))
    assert "within 90 days" in error
    needed = int(error.split("--nodes ")[1])
    assert needed > max(offer.nodes for offer in found if offer.placement)
    assert PlanRequest(nodes=needed).longest_hours is None and request.longest_hours == LONGEST_HOURS
    choice = choose(offers_for(config, replace(request, nodes=needed)))
    assert choice and choice.estimate and choice.estimate.hours_p90 <= LONGEST_HOURS


def test_more_nodes_are_advised_only_where_they_finish_in_time() -> None:
    """Machines with a slow network wait for each other, and the batch may leave too little for each of many."""
    slow = replace(ONE_G5, nodes=None, deadline_hours=2)
    error = str(refuse(offers_for(CONFIG, slow), slow, workload_of(CONFIG)))
    assert "finishes within 2h" in error and "no number of nodes up to 4,096 would be enough" in error
    one = PlanRequest(instance="p5.48xlarge", nodes=1, market="spot", region="us-east-2", deadline_hours=24)
    config = compose([*LLAMA, "trainer.tokens=20B"]).config
    needed = int(str(refuse(offers_for(config, one), one, workload_of(config))).split("--nodes ")[1])
    choice = choose(offers_for(config, replace(one, nodes=needed)))
    assert needed > 1 and choice and choice.estimate and choice.estimate.hours_p90 <= 24


def test_an_offer_that_the_budget_pays_for_is_refused_for_its_own_reason() -> None:
    request = replace(ONE_G5, budget_usd=1000)
    found = [replace(offer, problem="the cluster has no g5") for offer in offers_for(CONFIG, request)]
    assert choose(found) is None and "the cluster has no g5" in str(refuse(found, request, workload_of(CONFIG)))
    poor = replace(ONE_G5, budget_usd=1)
    assert "budget.usd=1 is too small" in str(refuse(offers_for(CONFIG, poor), poor, workload_of(CONFIG)))


def test_node_counts_follow_from_the_run_and_the_machine() -> None:
    small, large = workload_of(CONFIG), workload_of(compose([*LLAMA, "trainer.tokens=15T"]).config)
    p5, g5 = CATALOG.instance("p5.48xlarge"), CATALOG.instance("g5.xlarge")
    assert list(node_counts(small, p5)) == [1] and list(node_counts(large, g5)) == [1, 2, 4]
    assert list(node_counts(large, p5))[-1] == 512


def test_the_tokens_that_a_budget_buys_end_before_the_deadline() -> None:
    composed, open_mesh = compose_plan([*GPT2, "budget.usd=40"], [], None)
    request = replace(ONE_G5, budget_usd=40)
    (long,) = plan_tokens(composed, open_mesh, request, rows=1)
    (short,) = plan_tokens(composed, open_mesh, replace(request, deadline_hours=3), rows=1)
    assert short.tokens < long.tokens / 3 and short.estimate.hours_p90 <= 3
    assert short.estimate.usd_p90 < long.estimate.usd_p90 <= 40


def test_a_budget_that_buys_no_step_names_the_least_that_does() -> None:
    composed, open_mesh = compose_plan(GPT2, [], None)
    with pytest.raises(
        SkytrainError, match=r"budget.usd=0.01 does not buy a single step: the least is \$0\.\d\d"
    ) as raised:
        plan_tokens(composed, open_mesh, replace(ONE_G5, budget_usd=0.01), rows=3)
    enough = float(str(raised.value).split("try: budget.usd=")[1].split(" ")[0])
    assert plan_tokens(composed, open_mesh, replace(ONE_G5, budget_usd=enough), rows=3)
    with pytest.raises(SkytrainError, match="no offer makes one step within 3m:"):
        plan_tokens(composed, open_mesh, replace(ONE_G5, budget_usd=40, deadline_hours=0.05), rows=3)


def test_offloaded_state_must_fit_the_memory_of_the_machine() -> None:
    words = [*LLAMA, "trainer.tokens=10B", "parallel=deepspeed-zero3-offload", "trainer.compile=false"]
    large = compose([*words, "model.layers=96", "model.width=10240", "model.heads=80", "model.mlp_width=36864"]).config
    refused = place(workload_of(large), CATALOG.instance("p4de.24xlarge"), 1)
    assert isinstance(refused, NoPlacement) and "host memory" in refused.reason
    small = place(workload_of(compose(words).config), CATALOG.instance("p4de.24xlarge"), 1)
    assert isinstance(small, Placement)
    node = Node.of(CATALOG.instance("p4de.24xlarge"))
    assert 16 * 8.0e9 < host_bytes(small.job, small.mesh, node) < node.memory_bytes


def test_data_must_fit_the_disk_of_the_machine_unless_it_is_read_in_blocks() -> None:
    words = ["model=gpt2-124m", "trainer.precision=bf16-mixed", "trainer.tokens=300B"]
    g5 = CATALOG.instance("g5.2xlarge")
    refused = place(workload_of(compose(words).config), g5, 1)
    assert refused == NoPlacement("needs 600.00 GB of local disk, of 414.00 GB; loader.shuffle=blocks needs less")
    assert isinstance(place(workload_of(compose([*words, "loader.shuffle=blocks"]).config), g5, 1), Placement)
    one = PlanRequest(instance="g5.2xlarge", nodes=1)
    said = str(refuse(offers_for(compose(words).config, one), one, workload_of(compose(words).config)))
    assert said.startswith("the text of the run does not fit") and "try loader.shuffle=blocks" in said
    assert "smaller model" not in said
    assert isinstance(place(workload_of(compose([*words, "data.target_tokens=100B"]).config), g5, 1), Placement)


def test_a_slow_measurement_cannot_be_escaped_by_a_mode_that_nobody_measured() -> None:
    workload = workload_of(CONFIG)
    g5 = CATALOG.instance("g5.xlarge")
    job = replace(workload.job, micro_batch=16, accumulation=1)
    node = Node.of(g5)
    slow = Measurement(
        device="NVIDIA A10G",
        gpus=1,
        model="gpt2-124m",
        decoder=decoder_fields(job.model),
        sequence_length=1024,
        micro_batch=16,
        accumulation=1,
        preset="single",
        precision="bf16-mixed",
        path=path_of(job, Mesh()),
        checkpointing=False,
        step_seconds=3 * step_time(job, Mesh(), node).seconds,
        peak_bytes=None,
        date="2026-11-15",
        torch="2.13",
    )
    free, bound = place(workload, g5, 1), place(replace(workload, measurements=[slow]), g5, 1)
    assert isinstance(free, Placement) and isinstance(bound, Placement)
    assert bound.tokens_per_s == pytest.approx(free.tokens_per_s / 3, rel=0.15)


def test_a_choice_whose_speed_is_assumed_names_the_cheapest_that_was_measured() -> None:
    job = TrainingJob(workload_of(CONFIG).job.model, 1024, 16, fused=True)
    g5 = Node.of(CATALOG.instance("g5.xlarge"))
    known = Measurement(
        device="NVIDIA A10G",
        gpus=1,
        model="gpt2-124m",
        decoder=decoder_fields(job.model),
        sequence_length=1024,
        micro_batch=16,
        accumulation=1,
        preset="single",
        precision="bf16-mixed",
        path="fused",
        checkpointing=False,
        step_seconds=step_time(job, Mesh(), g5).seconds,
        peak_bytes=None,
        date="2026-11-15",
        torch="2.13",
    )
    request = PlanRequest(market="spot", nodes=1)
    found = offers_for(CONFIG, request, measurements=[known])
    choice = choose(found)
    assert choice and choice.instance.gpu != "a10g"
    assert "the cheapest whose speed follows from a measurement is 1 x g5." in explain(choice, found, request)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["trainer.precision=32-true"], ["trainer.precision=32-true costs $", "trainer.precision=bf16-mixed"]),
        (["trainer.fused=off"], ["trainer.fused=off costs $", "trainer.fused=auto"]),
        (["trainer.fused=off"], ["trainer.compile=false costs $", "trainer.compile=true"]),
        ([], []),
    ],
)
def test_a_setting_that_costs_money_is_told_with_the_dollars(words: list[str], told: list[str]) -> None:
    config = compose([*GPT2, *words]).config
    workload = workload_of(config)
    choice = choose(find_offers(workload, CATALOG, replace(ONE_G5, instance="p5.4xlarge")))
    assert choice
    lines = costly_settings(config, choice, workload_of)
    assert all(any(part in line for line in lines) for part in told) and bool(lines) == bool(told)


def test_a_cheaper_setting_is_advised_only_where_train_accepts_it(tmp_path: Path) -> None:
    def advised(preset: str) -> str:
        composed, open_mesh = compose_plan(
            ["model=gemma-2-9b", "tokenizer.vocab_size=257", "trainer.tokens=1B", "trainer.fused=off", preset], [], None
        )
        request = PlanRequest(instance="p5.48xlarge", nodes=1, market="spot", region="us-east-2")
        return " ".join(plan_run(composed, open_mesh, request, Trials(0, 500), tmp_path / "plan.json").costly)

    assert "trainer.compile=true" in advised("parallel=fsdp")
    assert "trainer.compile=true" not in advised("parallel=deepspeed-zero3")


@pytest.mark.parametrize(
    ("mesh", "instance", "reason"),
    [
        # 12 heads do not divide among 7 ranks, nor among the 8 that two of these machines have.
        ("tensor=7", "g5.12xlarge", "model.heads, which is 12, does not divide among 7 ranks; try --mesh tensor=4,shard=-1"),
        ("tensor=8", "p5.48xlarge", "model.heads, which is 12, does not divide among 8 ranks; try --mesh tensor=4,shard=-1"),
        ("pipeline=3", "g5.12xlarge", "the mesh pipeline 3 is for 3 GPUs, not 8; try --mesh pipeline=2,shard=-1"),
        ("tensor=7", "g7e.48xlarge", "model.heads, which is 12, does not divide among 7 ranks"),
    ],
)  # fmt: skip
def test_a_mesh_that_fits_nothing_is_refused_for_its_own_reason_with_one_that_fits(
    mesh: str, instance: str, reason: str
) -> None:
    composed, open_mesh = compose_plan(GPT2, [], mesh)
    workload = planned_workload(composed, open_mesh)
    machines = CATALOG.instance(instance), 8 // CATALOG.instance(instance).gpus
    refused = place(workload, *machines)
    assert isinstance(refused, NoPlacement) and refused.reason.endswith(reason)
    if "--mesh" in reason:
        instead, _ = compose_plan(GPT2, [], reason.split("--mesh ")[1])
        assert isinstance(place(planned_workload(instead, False), *machines), Placement)


def test_the_reason_why_no_offer_fits_is_not_that_a_speed_is_unknown() -> None:
    composed, open_mesh = compose_plan(GPT2, [], "pipeline=3")
    request = PlanRequest(nodes=1, region="us-east-2", market="spot")
    workload = planned_workload(composed, open_mesh)
    error = refuse(find_offers(workload, CATALOG, request), request, workload)
    assert "the mesh pipeline 3 is for 3 GPUs, not 8" in str(error)


def test_trials_that_pass_the_budget_leave_no_plan_behind(tmp_path: Path) -> None:
    composed, open_mesh = compose_plan([*GPT2, "budget.usd=14"], [], None)
    with pytest.raises(SkytrainError, match="pass the budget"):
        plan_run(composed, open_mesh, replace(ONE_G5, budget_usd=14), Trials(99, 500), tmp_path / "plan.json")
    assert not (tmp_path / "plan.json").exists()


def test_the_legend_explains_the_range_the_price_and_what_was_tried() -> None:
    open_request, named = " ".join(offers_legend(PlanRequest())), " ".join(offers_legend(PlanRequest(nodes=3)))
    for part in ("$/h is for all nodes", "p10-p90"):
        assert part in open_request and part in named
    assert not any("$/h" in line for line in offers_legend(PlanRequest(), wide=False)), "a column that is not shown"
    assert "node counts tried: 1, 2, 4, 8" in open_request and "node counts" not in named


def test_a_checkpoint_interval_of_auto_is_not_one_step() -> None:
    every_10m, auto = (
        offers_for(compose([*GPT2, f"trainer.checkpoint_every={every}"]).config, ONE_G5)[0] for every in ("10m", "auto")
    )
    assert every_10m.estimate and auto.estimate
    assert auto.estimate.parts_usd["checkpoints"] < 3 * every_10m.estimate.parts_usd["checkpoints"]
