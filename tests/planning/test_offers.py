"""Offers, what they cost, the choice among them, the questions asked backwards, and plan.json."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from skytrain.config import Config, SkytrainError, compose
from skytrain.planning import (
    BESIROGLU,
    HOFFMANN,
    Catalog,
    Market,
    Offer,
    PlanRequest,
    Price,
    choose,
    cost_sheet,
    explain,
    fallbacks,
    find_offers,
    planned_trials,
    refuse,
    workload_of,
)
from skytrain.planning.catalog import packaged_catalog
from skytrain.planning.costs import RunWork, estimate
from skytrain.planning.experiments import PlannedTrial, cost_trial
from skytrain.planning.plan_making import train_overrides
from skytrain.planning.tokens import tokens_for_budget
from skytrain.report import prices_note
from skytrain.report.tables import offers_table
from skytrain.targets import sellers

CATALOG = packaged_catalog()
RUN = [
    "model=gpt2-124m",
    "trainer.steps=4725",
    "trainer.precision=bf16-mixed",
    "trainer.checkpoint_every=10m",
    "budget.usd=150",
]
COMPOSED = compose(RUN)
CONFIG = COMPOSED.config
TWO_G5 = PlanRequest(budget_usd=150, instance="g5.12xlarge", nodes=2, market="spot")
TP_FSDP = compose([*RUN, "parallel=tp-fsdp", "parallel.tensor=4"]).config


def with_trainer(**changes: Any) -> Config:
    return dataclasses.replace(CONFIG, trainer=dataclasses.replace(CONFIG.trainer, **changes))


@pytest.fixture(scope="module")
def everything() -> list[Offer]:
    return offers_for(CONFIG, PlanRequest(budget_usd=150))


def offers_for(config: Config, request: PlanRequest, catalog: Catalog = CATALOG, **workload: Any) -> list[Offer]:
    return find_offers(workload_of(config, **workload), catalog, request, sellers())


def work(**changes: Any) -> RunWork:
    plain = RunWork(
        steps=1000,
        full_steps=1000,
        tokens=10**9,
        data_bytes=0,
        local_data_bytes=0,
        checkpoint_bytes=0,
        checkpoint_every=None,
        interrupted_seconds=6 * 3600,
        kept_checkpoints=1,
        evaluation_tokens=0,
        compiled=False,
    )
    return dataclasses.replace(plain, **changes)


def price(market: Any = "on-demand", low: float = 10.0, high: float = 10.0) -> Price:
    return Price(
        type="g5.xlarge",
        region="us-east-2",
        market=market,
        usd_per_hour_min=low,
        usd_per_hour_max=high,
        date="2026-08-22",
        source="test",
    )


def test_a_run_costs_its_steps_plus_boot_and_never_less() -> None:
    g5 = CATALOG.instance("g5.xlarge")
    found = estimate(work(), 3.6, "measured", g5, 1, price())
    assert found.usd == pytest.approx(10 * (1 + (510 + 25) / 3600), rel=0.02)  # an hour of steps, 8.5 minutes of boot
    assert found.usd_p10 < found.usd < found.usd_p90
    assert found.interruptions == 0


def test_uncertainty_grows_from_measured_to_calibrated_to_assumed() -> None:
    g5 = CATALOG.instance("g5.xlarge")
    spread = [estimate(work(), 3.6, source, g5, 1, price()) for source in ("measured", "calibrated", "assumed")]
    widths = [one.usd_p90 - one.usd_p10 for one in spread]
    assert widths[0] < widths[1] < widths[2]


def test_spot_is_interrupted_in_proportion_to_machine_hours_and_pays_for_what_is_lost() -> None:
    g5 = CATALOG.instance("g5.xlarge")
    long = work(steps=100_000, full_steps=100_000)
    one, four = (estimate(long, 3.6, "measured", g5, nodes, price("spot")) for nodes in (1, 4))
    assert one.interruptions == pytest.approx(100 / 24, rel=0.1)
    assert four.interruptions == pytest.approx(4 * one.interruptions, rel=0.1)
    assert one.parts_usd["restarts"] > 0
    assert one.usd > estimate(long, 3.6, "measured", g5, 1, price()).usd


def test_every_cost_has_its_part() -> None:
    g5 = CATALOG.instance("g5.xlarge")
    whole = work(
        data_bytes=5e9,
        checkpoint_bytes=1.5e9,
        checkpoint_every=CONFIG.trainer.checkpoint_every,
        evaluation_tokens=1e8,
        compiled=True,
    )
    found = estimate(whole, 3.6, "measured", g5, 1, price("spot"))
    assert all(usd > 0 for usd in found.parts_usd.values())
    assert sum(found.parts_usd.values()) == pytest.approx(found.usd, rel=0.05)


def test_offers_are_ranked_by_dollars_and_the_cheapest_allowed_is_chosen(everything: list[Offer]) -> None:
    able = [offer for offer in everything if offer.problem is None]
    dollars = [offer.estimate.usd for offer in able if offer.estimate]
    assert dollars == sorted(dollars)
    choice = choose(everything)
    assert choice is not None and choice.placement is not None
    assert choice.estimate is not None and choice.estimate.usd_p90 <= 150
    assert explain(choice, everything, PlanRequest(budget_usd=150)).count(". ") == 1  # two sentences


def test_an_instance_without_a_verified_peak_is_listed_with_that_reason(everything: list[Offer]) -> None:
    reasons = {offer.problem for offer in everything if offer.instance.family == "g7e"}
    assert reasons == {"rtx-pro-server-6000 has no verified bf16 peak; measure there: skytrain plan --measure"}


def test_the_mesh_asked_for_is_planned_within_memory_on_every_offer() -> None:
    found = offers_for(TP_FSDP, TWO_G5)
    assert {offer.region for offer in found} == set(CATALOG.regions)
    for offer in found:
        assert offer.placement and offer.placement.mesh.preset == "tp-fsdp" and offer.quota_vcpus == 96
        assert offer.placement.memory.total < 22888 * 2**20


def test_a_budget_too_small_names_the_smallest_that_works() -> None:
    found = offers_for(CONFIG, PlanRequest(budget_usd=1))
    assert choose(found) is None
    error = refuse(found, PlanRequest(budget_usd=1), workload_of(CONFIG))
    assert "budget.usd=1 is too small" in str(error) and error.exit_code == 2
    enough = int(str(error).split("try: budget.usd=")[1].split(",")[0])
    assert choose(offers_for(CONFIG, PlanRequest(budget_usd=enough))) is not None


def test_a_model_that_fits_nowhere_says_what_it_needs() -> None:
    config = compose(["model=llama-3.1-70b", "tokenizer.vocab_size=257", "trainer.precision=bf16-mixed"]).config
    found = offers_for(config, PlanRequest(instance="g5.xlarge", nodes=1))
    assert choose(found) is None
    assert "per GPU" in str(refuse(found, PlanRequest(), workload_of(CONFIG)))


def test_a_type_that_a_region_does_not_sell_is_listed_with_that_reason() -> None:
    found = offers_for(CONFIG, PlanRequest(instance="p4de.24xlarge", region="us-east-2", nodes=1))
    assert {offer.problem for offer in found} == {"not sold on-demand in us-east-2", "not sold spot in us-east-2"}
    assert "not sold" in str(refuse(found, PlanRequest(), workload_of(CONFIG)))


def test_a_plugged_in_model_is_refused_with_what_to_do() -> None:
    config = compose(["model=custom", "model.target=some.Model"]).config
    with pytest.raises(SkytrainError, match="plugged-in"):
        offers_for(config, PlanRequest())


def test_a_deadline_costs_what_the_cheapest_offer_before_it_costs(everything: list[Offer]) -> None:
    chosen = choose(offers_for(CONFIG, PlanRequest(deadline_hours=1.0)))
    in_time = [offer.estimate.usd for offer in everything if offer.estimate and offer.estimate.hours_p90 <= 1.0]
    cheapest = choose(everything)
    assert chosen and chosen.estimate and cheapest and cheapest.estimate
    assert chosen.estimate.usd == min(in_time) > cheapest.estimate.usd


def test_a_deadline_that_nothing_meets_names_the_quickest() -> None:
    wish = PlanRequest(deadline_hours=0.01, instance="g5.xlarge", nodes=1)
    assert "the quickest takes" in str(refuse(offers_for(CONFIG, wish), wish, workload_of(CONFIG)))


def test_the_tokens_that_a_budget_buys_cost_that_budget() -> None:
    offer = offers_for(CONFIG, PlanRequest(instance="g5.xlarge", nodes=1, market="spot", region="us-east-2"))[0]
    bought = tokens_for_budget(CONFIG, offer, 40.0)
    again = offers_for(
        with_trainer(steps=bought // CONFIG.trainer.batch_tokens),
        PlanRequest(instance="g5.xlarge", nodes=1, market="spot", region="us-east-2"),
    )[0]
    assert again.estimate and again.estimate.usd_p90 == pytest.approx(40.0, rel=0.01)
    assert tokens_for_budget(CONFIG, offer, 0.01) == 0


def test_stale_prices_say_how_old_they_are() -> None:
    import datetime

    assert "stale" in prices_note(CATALOG, datetime.date(2026, 11, 15)) and "85 days old" in prices_note(
        CATALOG, datetime.date(2026, 11, 15)
    )
    assert "stale" not in prices_note(CATALOG, datetime.date(2026, 8, 25))


def test_a_cost_sheet_multiplies_out_and_refuses_what_would_pass_the_budget() -> None:
    trial = PlannedTrial("lr 6e-4", steps=300, step_seconds=12.0, overhead_seconds=0.0, source="measured")
    costed = cost_trial(trial, 1.0, margin=0.1)
    assert (costed.usd_per_hour, costed.hours, costed.usd) == pytest.approx((1.1, 1.0, 1.1))
    sheet = cost_sheet([trial] * 3, 1.0, budget_usd=3.5)
    assert sheet.usd == pytest.approx(3.3) and sheet.left_usd == pytest.approx(0.2)
    with pytest.raises(SkytrainError, match=r"after 3 that cost \$3\.30.*pass the budget of \$3\.50"):
        cost_sheet([trial] * 4, 1.0, budget_usd=3.5)


def test_the_final_run_is_reserved_before_any_trial() -> None:
    offer = offers_for(CONFIG, PlanRequest(instance="g5.xlarge", nodes=1, market="spot", region="us-east-2"))[0]
    planned = planned_trials(CONFIG, offer, trials=2, trial_steps=200)
    assert [(one.name, one.steps) for one in planned] == [("the run", 4725), ("trial 1", 200), ("trial 2", 200)]
    assert offer.placement and planned[0].step_seconds > offer.placement.prediction.seconds


def test_compute_optimal_tokens_are_about_20_a_parameter_at_chinchillas_size() -> None:
    assert 15 < BESIROGLU.optimal_tokens(70e9) / 70e9 < 30
    for law in (BESIROGLU, HOFFMANN):
        tokens = law.optimal_tokens(1e9)
        best = law.loss(1e9, tokens)
        assert best < law.loss(1e9 * 1.2, tokens / 1.2) and best < law.loss(
            1e9 / 1.2, tokens * 1.2
        )  # at the same compute


def test_offers_of_a_catalogue_without_prices_do_not_invent_any() -> None:
    bare = Catalog(CATALOG.instances, tuple(one for one in CATALOG.prices if one.market == "spot"), "refreshed")
    assert all(offer.market == "spot" for offer in offers_for(CONFIG, PlanRequest(), bare) if offer.estimate)


def test_the_words_for_train_compose_to_the_planned_mesh() -> None:
    found = offers_for(TP_FSDP, PlanRequest(instance="g5.12xlarge", nodes=2, market="spot"))
    words = train_overrides(found[0])
    config = compose([*RUN, *words]).config
    assert (config.parallel.name, config.parallel.shard, config.parallel.tensor) == ("tp-fsdp", 2, 4)
    assert found[0].placement and config.trainer.micro_batch == found[0].placement.job.micro_batch


def test_sagemaker_is_ranked_beside_ec2_once_its_prices_are_known() -> None:
    request = PlanRequest(instance="g5.12xlarge", nodes=1, region="us-east-2", target=None)
    assert {offer.seller.name for offer in offers_for(CONFIG, request)} == {"ec2"}, "no price is made up"
    price = dataclasses.replace(CATALOG.prices[0], type="g5.12xlarge", region="us-east-2", market="on-demand")
    dear = dataclasses.replace(price, usd_per_hour_min=7.1, usd_per_hour_max=7.1)
    known = dataclasses.replace(CATALOG, of_services={"sagemaker_prices": (dear,)})
    found = offers_for(CONFIG, request, known)
    ranked = [(offer.seller.name, offer.market) for offer in found]
    assert ranked == [("ec2", "spot"), ("ec2", "on-demand"), ("sagemaker", "on-demand")]
    on_demand, sagemaker = found[1].estimate, found[2].estimate
    assert on_demand and sagemaker and on_demand.hours == sagemaker.hours and on_demand.usd < sagemaker.usd
    assert "SageMaker" in offers_table(found, None) and "ml.g5.12xlarge" in found[2].name
    assert fallbacks(found[0], found) == [found[1]], "a fallback runs where the choice does"
    [spot] = offers_for(CONFIG, dataclasses.replace(request, target="sagemaker", market="spot"), known)
    assert spot.price and spot.price.usd_per_hour_max == 7.1, "at most the price on demand"


@pytest.mark.parametrize("market", [None, "spot"])
def test_sagemaker_without_prices_of_its_own_is_ranked_at_those_of_ec2_on_demand(market: Market | None) -> None:
    """Spot machines of EC2 cost a fraction of what SageMaker asks: ranked at their price, a job costs twice its plan."""
    request = PlanRequest(instance="g5.12xlarge", nodes=1, region="us-east-2", target="sagemaker", market=market)
    price = CATALOG.price("g5.12xlarge", "us-east-2", "on-demand")
    [offer] = offers_for(CONFIG, request)
    assert price and offer.price and offer.price.usd_per_hour_max == price.usd_per_hour_max
    assert offer.machine == "ml.g5.12xlarge" and offer.market == (market or "on-demand")


def test_machines_on_demand_fail_as_often_as_llama_3s_did() -> None:
    few = estimate(work(), 3600.0, "measured", CATALOG.instance("p5.48xlarge"), 1, price())
    many = estimate(work(), 3600.0, "measured", CATALOG.instance("p5.48xlarge"), 2048, price())
    assert many.interruptions == pytest.approx(419 * 1000 / (54 * 24), rel=0.05)  # in 1,000 hours
    assert few.interruptions == pytest.approx(1000 / 6334, rel=0.2)
    assert many.parts_usd["restarts"] > 0


def test_several_types_are_asked_for_with_commas() -> None:
    found = offers_for(CONFIG, PlanRequest(instance="g5.xlarge, p5.4xlarge", nodes=1, market="spot"))
    assert {offer.instance.type for offer in found} == {"g5.xlarge", "p5.4xlarge"}


def test_the_table_has_eight_columns_unless_it_is_wide(everything: list[Offer]) -> None:
    able = [offer for offer in everything if offer.problem is None][:3]
    narrow, wide = (offers_table(able, able[0], wide).splitlines()[0] for wide in (False, True))
    assert len(narrow.split("  ")) < len(wide.split("  "))
    assert "quota" in wide and "quota" not in narrow
    unable = next(offer for offer in everything if offer.problem)
    assert str(unable.problem) in offers_table([*able, unable], able[0], False)
