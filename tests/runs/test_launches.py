"""The record of a launch: what operators have written counts, whatever machines of the run write beside it."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from skytrain.config import SkytrainError
from skytrain.runs import (
    LaunchedGroup,
    LaunchedStage,
    LaunchId,
    LaunchRecord,
    PipelineRecord,
    copy_launches,
    create_launch,
    following_launches,
    launch_key,
    launched_runs,
    launches_of,
    mark_failed,
    mark_withdrawn,
    next_launch,
    read_launch,
    read_pipeline,
    write_pipeline,
)
from skytrain.runs.launches import order_key
from skytrain.runs.pipeline_record import pipeline_key
from skytrain.storage import Store, open_store

GROUP = LaunchedGroup(
    name="g", zone="z", instance_type="t", market="spot", nodes=1, usd_per_hour=1.0,
    kill_at="2030-01-01T00:00:00+00:00", placement_group=False,
)  # fmt: skip
LAUNCH = LaunchRecord(
    id="00001", run="r", verb="train", launched_at="2029-12-31T00:00:00+00:00", launched_by="ada", account="1",
    region="us-east-2", patience_seconds=1.0, plan_hash="", image="", bundle="", words=["budget.usd=40"], groups=[GROUP],
)  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path))


def write_as_machine(store: Store, record: LaunchRecord) -> None:
    store.write(launch_key(record.run, record.id), json.dumps(asdict(record)).encode())


def test_a_record_that_machines_add_is_never_the_newest(store: Store) -> None:
    """`stop` marks the newest launch, which nobody lets grow any more."""
    create_launch(store, LAUNCH)
    write_as_machine(store, replace(LAUNCH, id="00009", target="slurm"))
    assert [record.id for record in launches_of(store, "r")] == ["00009", "00001"]
    assert next_launch(launches_of(store, "r")) == "00010"


@pytest.mark.parametrize(
    "lie",
    [
        {"words": ["budget.usd=0"]},
        {"groups": [replace(GROUP, kill_at="2020-01-01T00:00:00+00:00")]},
        {"groups": [replace(GROUP, usd_per_hour=0.0)]},
        {"then": LaunchId("other", "00001")},
        {"failed": True},
    ],
    ids=["budget", "kill time", "price", "next stage", "failed"],
)
def test_what_machines_write_of_their_launch_changes_nothing(store: Store, lie: dict[str, object]) -> None:
    create_launch(store, LAUNCH)
    write_as_machine(store, replace(LAUNCH, **lie))  # type: ignore[arg-type]
    assert launches_of(store, "r") == [LAUNCH]


def test_a_launch_whose_machines_delete_its_record_or_damage_it_is_still_seen(store: Store) -> None:
    create_launch(store, LAUNCH)
    store.write(launch_key("r", "00001"), b"{")
    assert launches_of(store, "r") == [LAUNCH]
    store.delete_all("runs/r")
    assert launched_runs(store) == ["r"] and next_launch(launches_of(store, "r")) == "00002"
    with pytest.raises(SkytrainError, match="launched by someone else"):
        create_launch(store, LAUNCH)


def test_a_launch_that_waits_is_withdrawn_by_machines_that_it_waits_for(store: Store) -> None:
    waits = replace(LAUNCH, id="00002", after=LaunchId("r", "00001"))
    create_launch(store, replace(LAUNCH, then=LaunchId("r", "00002")))
    create_launch(store, waits)
    assert following_launches(store, read_launch(store, "r", "00001")) == [waits]
    mark_withdrawn(store, waits)
    assert read_launch(store, "r", "00002") == replace(waits, failed=True)
    write_as_machine(store, waits)
    mark_failed(store, waits)
    write_as_machine(store, waits)
    assert read_launch(store, "r", "00002").failed, "an operator has ended it"


def test_a_launch_of_an_earlier_version_is_read_from_the_folder_of_its_run(store: Store) -> None:
    write_as_machine(store, LAUNCH)
    assert launches_of(store, "r") == [LAUNCH] and launched_runs(store) == ["r"]
    mark_failed(store, LAUNCH)
    assert read_launch(store, "r", "00001").failed
    assert not store.exists(order_key("r", "00001")), (
        "what machines may have written does not become an operator's word"
    )


def test_the_launches_of_a_run_keep_their_records_under_its_new_name(store: Store) -> None:
    write_as_machine(store, LAUNCH)
    create_launch(store, replace(LAUNCH, id="00002"))
    copy_launches(store, "r", "new")
    assert [record.id for record in launches_of(store, "new")] == ["00001", "00002"]
    assert store.exists(order_key("new", "00002")) and not store.exists(order_key("new", "00001"))


def test_what_a_pipeline_may_spend_is_not_what_its_machines_say(store: Store) -> None:
    stage = LaunchedStage("train", "r", "1 x t", hours=1.0, usd=1.0, most_usd=2.0)
    former = PipelineRecord("r", 10.0, [stage])
    store.write("runs/r/pipeline.json", json.dumps(asdict(former)).encode())
    assert read_pipeline(store, "r") == former, "of an earlier version"
    write_pipeline(store, replace(former, budget_usd=20.0))
    assert pipeline_key("r") == "launches/r/pipeline.json"
    assert read_pipeline(store, "r") == replace(former, budget_usd=20.0)
