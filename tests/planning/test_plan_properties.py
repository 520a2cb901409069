"""What holds for every plan: its offers are possible, and a larger budget or a later deadline never makes things worse."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from skytrain.config import Config, SkytrainError, compose
from skytrain.parallel import laid_out, problem_of
from skytrain.planning import (
    Catalog,
    Machines,
    Node,
    Offer,
    Offering,
    Placement,
    PlanRequest,
    Workload,
    at_most,
    best_placement,
    best_purchase,
    choose,
    find_offers,
    most_tokens,
    usable_bytes,
    work_of,
    workload_of,
)
from skytrain.planning.catalog import packaged_catalog
from skytrain.planning.host import disk_problem, host_problem
from skytrain.planning.search import SIMPLER, TIGHT, Fixed, _parts, meshes, most_tokens_laid_out
from skytrain.planning.throughput import most_tokens_per_s, tokens_per_step
from skytrain.planning.tokens import tokens_for_budget

WHOLE = packaged_catalog()
TYPES = ("g5.xlarge", "g5.12xlarge", "g6e.48xlarge", "p4d.24xlarge", "p5.48xlarge")
CATALOG = Catalog(
    tuple(one for one in WHOLE.instances if one.type in TYPES),
    tuple(one for one in WHOLE.prices if one.type in TYPES and one.region == "us-east-2"),
    "packaged",
)
SPREAD = replace(CATALOG, prices=tuple(one for one in WHOLE.prices if one.type in TYPES))  # in every region
SMALL = compose(["model=gpt2-124m", "trainer.precision=bf16-mixed"]).config
LARGE = compose(
    ["model=llama-3.1-8b", "tokenizer.vocab_size=257", "trainer.precision=bf16-mixed", "trainer.compile=true"]
).config
MIXTURE = compose(
    ["model=mixtral-8x7b", "model.layers=8", "model.vocab_size=50257", "optimizer=muon", "trainer.precision=bf16-mixed"]
).config
FEW = settings(max_examples=6, derandomize=True)


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


@FEW
@given(
    runs(), st.sampled_from(["adamw", "muon"]), st.floats(0.2, 20_000), st.sampled_from([0.2, 0.3, 3.0, 48.0, 2160.0])
)
def test_machines_that_cannot_win_may_be_left_out(config: Config, optimizer: str, usd: float, hours: float) -> None:
    request = PlanRequest(budget_usd=usd, tokens_open=True, most_hours=hours)
    config = replace(config, optimizer=compose([f"optimizer={optimizer}"]).config.optimizer)
    planned = replace(workload(config), work=work_of(config, steps=1))
    offering = Offering(planned, SPREAD, request)
    best = best_purchase(config, offering, usd, hours)
    every = [
        (tokens_for_budget(config, offer, usd, hours), instance, nodes)
        for instance, nodes in offering.machines
        for offer in offering.on(instance, nodes)
        if offer.placement and offer.price
    ]
    assert (best.tokens if best else 0) == max((tokens for tokens, _, _ in every), default=0)
    for tokens, instance, nodes in every:
        assert tokens <= offering.most_tokens(instance, nodes, usd, hours, laid_out=True)
        assert tokens <= offering.most_tokens(instance, nodes, usd, hours)


def test_no_layout_is_searched_for_a_deadline_that_comes_before_the_machines_have_booted() -> None:
    planned = replace(workload(SMALL), work=work_of(SMALL, steps=1))
    offering = Offering(planned, CATALOG, PlanRequest(budget_usd=150, tokens_open=True, most_hours=1 / 6))
    assert offering.machines
    assert not any(most for most, _, _ in at_most(offering, 150, 1 / 6))


@pytest.mark.parametrize("type, nodes", [("g5.12xlarge", 2), ("p4d.24xlarge", 1), ("p5.48xlarge", 2)])
@pytest.mark.parametrize("config", [SMALL, LARGE, MIXTURE], ids=["small", "large", "mixture"])
def test_no_layout_by_itself_is_faster_than_the_one_that_is_found(config: Config, type: str, nodes: int) -> None:
    """The search leaves layouts out that could not be faster, even with memory without end."""
    instance = WHOLE.instance(type)
    machines = Machines(Node.of(instance), nodes * instance.gpus, instance.gpu_memory_mib)
    job = workload(config).job

    def worth(placement: object) -> float:
        if not isinstance(placement, Placement):
            return 0.0
        tight = placement.memory.total > TIGHT * usable_bytes(instance.gpu_memory_mib)
        return placement.tokens_per_s * (1 - SIMPLER * (_parts(placement.mesh) + 2 * tight))

    batch = 512 * config.trainer.sequence_length
    found = best_placement(job, machines, batch)
    alone = [
        best_placement(job, machines, batch, fixed=Fixed(mesh=mesh))
        for mesh in meshes(job, machines.gpus, instance.gpus)
    ]
    whole = [one for one in alone if isinstance(one, Placement) and one.mesh.tensor == one.mesh.pipeline == 1]
    compared = whole if isinstance(found, Placement) and found.mesh.tensor == found.mesh.pipeline == 1 else alone
    assert worth(found) >= max(map(worth, compared), default=0.0)
    fastest = max((one.tokens_per_s for one in alone if isinstance(one, Placement)), default=0.0)
    assert fastest <= most_tokens_per_s(job, machines.node, machines.gpus, batch)
    assert fastest <= most_tokens_laid_out(job, machines, batch, Fixed())


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
