"""What a corpus costs: one machine while it has the time, a cluster or EMR Serverless beyond."""

from __future__ import annotations

from dataclasses import replace

import pytest

from skytrain.config import SkytrainError
from skytrain.corpus import near
from skytrain.corpus.dedup import HASHED
from skytrain.corpus.minhash import MinHash
from skytrain.pipelines.plan import plan_corpus
from skytrain.planning import CorpusWork, PrepareWork, Price, scratch_bytes_per_document
from skytrain.planning.catalog import packaged_catalog
from skytrain.report.tables import corpus_lines
from skytrain.targets.emr import costs
from skytrain.targets.emr.costs import (
    cluster_price,
    fee_note,
    serverless_offer,
    serverless_usd_per_hour,
    sized_cluster,
)
from tests.support.settings import CLOUD_DEFAULTS
from tests.targets.ground import CONFIG


def test_one_machine_is_chosen_while_it_has_the_time_and_a_cluster_when_it_has_not() -> None:
    small = plan_corpus(CONFIG(), "us-east-2", None, 5e6, 15e9)
    assert small.offers[0].how == "one machine" and "One machine is cheaper" in small.advice
    assert {offer.how for offer in small.offers} == {"one machine", "emr", "emr-serverless"}
    large = plan_corpus(CONFIG(), "us-east-2", 2.0, 1e9, 3e12)
    assert large.offers[0].how == "emr" and large.offers[-1].how == "one machine"
    assert "longer than 2 h" in large.advice
    assert all(offer.hours_p90 <= 2.0 * 1.02 for offer in large.offers[:-1])


def test_the_price_of_a_cluster_counts_every_node_and_its_fee() -> None:
    wanted = replace(
        CLOUD_DEFAULTS.emr,
        primary="m7i.xlarge",
        core="r5.xlarge",
        task="r5.xlarge",
        core_nodes=2,
        task_nodes=3,
        disk_gb=73,
    )
    price = cluster_price(wanted, packaged_catalog(), "us-east-2")
    assert price.machines == pytest.approx(0.2016 + 2 * 0.252 + 3 * (0.066 + 0.0772) / 2)
    assert price.fee == pytest.approx(0.25 * (0.2016 + 5 * 0.252))  # spot nodes pay the fee of the price on demand
    assert price.disks == pytest.approx(6 * 73 * 0.08 / 730)


def test_an_hour_of_emr_serverless_is_its_vcpus_and_gigabytes() -> None:
    wanted = replace(CLOUD_DEFAULTS.emr, executor_cores=4, executor_gb=16, disk_gb=120)
    each = 4 * 0.052624 + 16 * 0.005786 + 100 * 0.000111
    assert serverless_usd_per_hour(wanted, 9, "us-east-2") == pytest.approx(10 * each)
    with pytest.raises(SkytrainError, match="no price of EMR Serverless is known for mars-1"):
        serverless_usd_per_hour(wanted, 9, "mars-1")


def test_more_documents_cost_more_and_more_executors_are_faster() -> None:
    few, many = CorpusWork(1e12, 1e6), CorpusWork(1e12, 1e9)
    wanted = replace(CLOUD_DEFAULTS.emr, executors=10)
    assert serverless_offer(many, wanted, "us-east-2").usd > serverless_offer(few, wanted, "us-east-2").usd
    faster = serverless_offer(few, replace(wanted, executors=40), "us-east-2")
    assert faster.hours < serverless_offer(few, wanted, "us-east-2").hours
    cluster = sized_cluster(many, CLOUD_DEFAULTS.emr, "r5.xlarge", packaged_catalog(), 6.0)
    assert cluster.core_nodes + cluster.task_nodes > 2 and cluster.core == cluster.task == "r5.xlarge"


def test_disks_hold_what_de_duplication_writes_and_a_deadline_that_nothing_meets_is_said() -> None:
    shipped = CONFIG().data.near_dedup
    wide = replace(shipped, bands=200, permutations=2000)
    for settings in (shipped, wide):
        written = near.scratch_bytes_per_document(MinHash.of(settings)) + 2 * HASHED.itemsize
        assert scratch_bytes_per_document(settings) == written
    per_document = scratch_bytes_per_document(shipped)
    assert (
        PrepareWork(
            text_bytes=1e9, stored_bytes=1e9, folder="tokens", documents=5e6, scratch_bytes_per_document=per_document
        ).disk_gb
        == 200
    )  # what every machine has
    assert (
        PrepareWork(
            text_bytes=1e9, stored_bytes=1e9, folder="tokens", documents=1e9, scratch_bytes_per_document=per_document
        ).disk_gb
        > 1000
    )
    assert (
        PrepareWork(
            text_bytes=1e9,
            stored_bytes=1e9,
            folder="tokens",
            documents=1e9,
            scratch_bytes_per_document=scratch_bytes_per_document(wide),
        ).disk_gb
        > 10_000
    )
    work = CorpusWork(1e11, 4e9)
    cluster = sized_cluster(work, CLOUD_DEFAULTS.emr, "r5.4xlarge", packaged_catalog(), 6.0)
    assert (cluster.core_nodes + cluster.task_nodes) * cluster.disk_gb * 1e9 > 4e9 * 383
    hopeless = plan_corpus(CONFIG(), "us-east-2", 0.01, None, 1e9)
    assert "Nothing is sure to be done within 36s" in hopeless.advice


def test_one_machine_that_is_late_is_offered_at_its_lower_price_and_regions_without_serverless_are_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(costs, "_serverless_prices", dict)
    late = plan_corpus(CONFIG(), "us-east-2", 2.0, 1e9, 3e12)
    assert "(spot)" in late.offers[-1].machines and all(offer.how != "emr-serverless" for offer in late.offers)
    assert any("no price is known for us-east-2" in line for line in corpus_lines(late.work, late.notes))


def test_a_fee_that_was_read_takes_the_place_of_the_assumed_one() -> None:
    catalog, wanted = packaged_catalog(), replace(CLOUD_DEFAULTS.emr, core_nodes=2, task_nodes=0)
    assumed = cluster_price(wanted, catalog, "us-east-2")
    fees = tuple(
        Price(
            type=kind,
            region="us-east-2",
            market="on-demand",
            usd_per_hour_min=usd,
            usd_per_hour_max=usd,
            date="2026-11-16",
            source="x",
        )
        for kind, usd in ((wanted.core, 0.01), (wanted.primary, 0.02))
    )
    read = cluster_price(wanted, replace(catalog, of_services={"emr_fees": fees}), "us-east-2")
    assert read.fee == pytest.approx(0.04) and read.machines == assumed.machines
    assert "AWS' price list (2026-11-16)" in fee_note(replace(catalog, of_services={"emr_fees": fees}), "us-east-2")
    assert "a quarter of the price on demand" in fee_note(catalog, "us-east-2")
