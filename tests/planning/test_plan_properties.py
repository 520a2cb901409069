"""What holds for every plan: its offers are possible, and a larger budget or a later deadline never makes things worse."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from skytrain.config import Config, SkytrainError, compose
from skytrain.parallel import laid_out, problem_of
from skytrain.planning import (
    Node,
    Offer,
    PlanRequest,
    Workload,
    choose,
    find_offers,
    most_tokens,
    usable_bytes,
    work_of,
    workload_of,
)
from skytrain.planning.catalog import Catalog, packaged_catalog
from skytrain.planning.host import disk_problem, host_problem
from skytrain.planning.throughput import tokens_per_step

WHOLE = packaged_catalog()
TYPES = ("g5.xlarge", "g5.12xlarge", "g6e.48xlarge", "p4d.24xlarge", "p5.48xlarge")
CATALOG = Catalog(
    tuple(one for one in WHOLE.instances if one.type in TYPES),
    tuple(one for one in WHOLE.prices if one.type in TYPES and one.region == "us-east-2"),
    "packaged",
)
SMALL = compose(["model=gpt2-124m", "trainer.precision=bf16-mixed"]).config
LARGE = compose(
    ["model=llama-3.1-8b", "tokenizer.vocab_size=257", "trainer.precision=bf16-mixed", "trainer.compile=true"]
).config
FEW = settings(max_examples=6, deadline=None, derandomize=True)


@st.composite
def runs(draw: Any) -> Config:
    base: Config = draw(st.sampled_from([SMALL, LARGE]))
    length = draw(st.sampled_from([512, 1024]))
    trainer = replace(
        base.trainer,
        sequence_length=length,
        batch_tokens=length * draw(st.sampled_from([48, 512, 1024, 1000])),
        micro_batch=1,
        steps=draw(st.integers(1, 200_000)),
        activation_checkpointing=draw(st.sampled_from(["none", "selective", "full"])),
    )
    return replace(base, trainer=trainer)


def workload(config: Config) -> Workload:
    return workload_of(config, problem=lambda one: problem_of(laid_out(config, one), one.mesh.gpus))


def check_possible(offer: Offer, config: Config) -> None:
    assert offer.placement and offer.estimate and offer.price
    job, mesh, node = offer.placement.job, offer.placement.mesh, Node.of(offer.instance)
    assert mesh.gpus == offer.gpus and tokens_per_step(job, mesh) == config.trainer.batch_tokens
    assert offer.placement.memory.total <= usable_bytes(offer.instance.gpu_memory_mib)
    assert host_problem(job, mesh, node) is None and disk_problem(job, mesh, node, work_of(config)) is None
    assert problem_of(laid_out(config, offer.placement), offer.gpus) is None
    assert offer.quota_vcpus == offer.nodes * offer.instance.vcpus
    assert 0 < offer.estimate.usd_p10 <= offer.estimate.usd <= offer.estimate.usd_p90
    assert offer.estimate.hours <= offer.estimate.hours_p90


@FEW
@given(runs(), st.floats(0.1, 1e6), st.floats(0.1, 3000))
def test_every_offer_that_may_be_chosen_is_possible_and_keeps_the_limits(
    config: Config, budget: float, hours: float
) -> None:
    found = find_offers(workload(config), CATALOG, PlanRequest(budget_usd=budget, deadline_hours=hours))
    for offer in found:
        if offer.problem is None:
            check_possible(offer, config)
            assert offer.estimate and offer.estimate.usd_p90 <= budget and offer.estimate.hours_p90 <= hours


@FEW
@given(runs(), st.floats(0.2, 2000), st.floats(1, 20))
def test_a_later_deadline_is_never_dearer(config: Config, hours: float, times: float) -> None:
    planned = workload(config)
    early, late = (
        choose(find_offers(planned, CATALOG, PlanRequest(deadline_hours=at))) for at in (hours, hours * times)
    )
    if early is not None:
        assert late and late.estimate and early.estimate and late.estimate.usd <= early.estimate.usd


@FEW
@given(runs(), st.floats(0.5, 20_000), st.floats(1, 20), st.sampled_from([None, 2.0, 24.0]))
def test_a_larger_budget_never_buys_fewer_tokens(
    config: Config, budget: float, times: float, hours: float | None
) -> None:
    planned = replace(workload(config), work=work_of(config, steps=1))

    def tokens(usd: float) -> int:
        offers = find_offers(planned, CATALOG, PlanRequest(budget_usd=usd, deadline_hours=hours, tokens_open=True))
        try:
            (best,) = most_tokens(config, offers, usd, hours, rows=1)
        except SkytrainError:
            return 0
        assert best.estimate.usd_p90 <= usd and (hours is None or best.estimate.hours_p90 <= hours)
        return best.tokens

    assert tokens(budget) <= tokens(budget * times)


@pytest.mark.parametrize("market", ["spot", "on-demand"])
def test_more_steps_never_cost_less(market: Any) -> None:
    request = PlanRequest(instance="g5.xlarge", nodes=1, market=market, region="us-east-2")

    def usd(steps: int) -> float:
        blocks = replace(SMALL.loader, shuffle="blocks")  # which need no disk for all of the data
        config = replace(SMALL, trainer=replace(SMALL.trainer, steps=steps), loader=blocks)
        (offer,) = find_offers(workload(config), WHOLE, request)
        assert offer.estimate
        return offer.estimate.usd_p90

    costs = [usd(int(1.3**power)) for power in range(8, 50)]
    assert costs == sorted(costs)
