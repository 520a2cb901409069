"""`skytrain runs`: list, rename, delete."""

import dataclasses
import json
from datetime import UTC, datetime

import pytest

from skytrain.checkpoints import committed_steps, load_model
from skytrain.cli import runs as command, status as status_command
from skytrain.config import SkytrainError, compose
from skytrain.pipelines.runs import delete_run, list_entries, plan_deletion, rename_run
from skytrain.pipelines.train import train
from skytrain.runs import (
    LaunchedGroup,
    LaunchId,
    Silent,
    Start,
    check_not_renamed,
    claim_attempt,
    create_launch,
    launches_of,
    load_run,
    read_metrics,
    save_run,
)
from skytrain.storage import open_store
from skytrain.targets.jobs import launch_record
from tests.support.tiny import tiny_config

GROUP = LaunchedGroup(
    name="g", zone="z", instance_type="t", market="spot", nodes=1, usd_per_hour=1.0,
    kill_at="2020-01-01T00:00:00+00:00", placement_group=False,
)  # fmt: skip


@pytest.fixture
def store(root):
    """A run of two steps, and one that was started from its checkpoint."""
    train(tiny_config(root, "run=base", "trainer.stop_at_step=2"), Silent())
    train(tiny_config(root, "run=child", "trainer.stop_at_step=4"), Silent(), Start("base@2"))
    return open_store(str(root))


def where(store) -> list[str]:
    return [f"store.root='{store.root.removeprefix('file://')}'"]


def test_runs_are_listed_with_what_they_hold_the_newest_first(store, capsys):
    command.list_(where(store))
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["RUN", "STATE", "STEP", "VALIDATION", "CHECKPOINTS", "SIZE", "STARTED", "FROM"]
    assert {row.split()[0]: (row.split()[1:3], row.split()[-1]) for row in rows} == {
        "base": (["stopped", "2/20"], "-"),
        "child": (["stopped", "4/20"], "base@2"),
    }
    command.list_(where(store), as_json=True)
    listed = {each["run"]: each for each in json.loads(capsys.readouterr().out)}
    assert listed["base"]["bytes"] == sum(stat.size for stat in store.list("runs/base"))
    assert listed["child"]["checkpoints"] == 1


def test_a_renamed_run_resumes_under_its_new_name_and_its_children_know_it(root, store, capsys):
    before = read_metrics(store, "base")
    create_launch(store, launch_record(compose([]), LaunchId("base", "00001"), datetime.now(UTC), [GROUP]))
    command.rename("base", "baseline", where(store))
    assert "baseline; resume it with run=baseline" in capsys.readouterr().out
    assert [stat.key for stat in store.list("runs/base")] == ["runs/base/renamed.json"]
    assert read_metrics(store, "baseline") == before and committed_steps(store, "baseline") == [2]
    assert [each.run for each in launches_of(store, "baseline")] == ["baseline"] and store.list("launches/base") == []
    assert load_model(store, "baseline").label == "baseline@2"
    assert load_run(store, "child").started_from == "baseline@2"
    with pytest.raises(SkytrainError, match="it was renamed to baseline"):
        load_run(store, "base")
    with pytest.raises(SkytrainError, match=r"renamed to baseline\n  resume it with run=baseline") as refused:
        train(tiny_config(root, "run=base", "trainer.stop_at_step=3"), Silent())
    assert refused.value.exit_code == 2 and len(store.list("runs/base")) == 1
    assert train(tiny_config(root, "run=baseline", "trainer.stop_at_step=3"), Silent()).step == 3
    again = train(tiny_config(root, "run=child", "trainer.stop_at_step=5"), Silent(), Start("baseline@2"))
    assert again.step == 5


def test_a_run_claims_no_former_name_by_its_own_record(root, store):
    """A machine of one run could otherwise keep others, whose launches it can list, from ever starting."""
    record = load_run(store, "child")
    save_run(store, dataclasses.replace(record, former_names=["wanted"]))
    check_not_renamed(store, "wanted")
    with pytest.raises(SkytrainError, match="no run 'wanted'") as unknown:
        load_run(store, "wanted")
    assert "renamed" not in str(unknown.value)


def test_a_run_does_not_get_the_name_of_one_that_was_launched_and_has_not_begun(root, store):
    create_launch(store, launch_record(compose([]), LaunchId("wanted", "00001"), datetime.now(UTC), [GROUP]))
    with pytest.raises(SkytrainError, match="a run 'wanted' was launched"):
        rename_run(tiny_config(root), "base", "wanted")
    assert [each.run for each in launches_of(store, "wanted")] == ["wanted"]


def test_names_that_were_left_point_to_the_run_through_every_renaming_and_are_free_after_it(root, store):
    rename_run(tiny_config(root), "base", "second")
    rename_run(tiny_config(root), "second", "third")
    for name in ("base", "second"):
        with pytest.raises(SkytrainError, match="it was renamed to third"):
            load_run(store, name)
    rename_run(tiny_config(root), "third", "base")
    assert load_run(store, "base").former_names == ["base", "second", "third"]
    delete_run(tiny_config(root), "base")
    for note in (
        b"",
        b'{"to": "base"}',
        b'{"to": "third"}',
        b'{"to": "../../etc"}',
    ):  # machines of that run could write it
        store.write("runs/base/renamed.json", note)
        for name in ("base", "second", "third"):
            check_not_renamed(store, name)


def test_a_damaged_record_is_named_and_hides_no_other_run(root, store, capsys, caplog):
    store.write("runs/broken/run.json", b"")
    command.list_(where(store))
    listed = capsys.readouterr().out
    assert "base" in listed and "child" in listed and "broken/run.json is damaged" in listed
    status_command.status(where(store))
    shown = capsys.readouterr().out
    assert "base" in shown and "child" in shown and "broken/run.json is damaged" in shown
    assert load_model(store, None).label in ("base@2", "child@4")  # both may have started within one second
    assert "broken/run.json is damaged" in caplog.text


def test_a_name_that_is_taken_or_no_name_is_refused(root, store):
    with pytest.raises(SkytrainError, match="there is a run 'child' already"):
        rename_run(tiny_config(root), "base", "child")
    with pytest.raises(SkytrainError, match="try run=a-b"):
        rename_run(tiny_config(root), "base", "a/b")


def test_a_live_run_is_neither_renamed_nor_deleted(root, store):
    claim_attempt(store, "base")
    for change in (
        lambda: rename_run(tiny_config(root), "base", "new"),
        lambda: plan_deletion(tiny_config(root), "base"),
    ):
        with pytest.raises(SkytrainError, match=r"'base' is starting on .*so it cannot be"):
            change()
    assert committed_steps(store, "base") == [2]


def test_deleting_says_what_is_freed_and_asks_first(root, store, capsys):
    size = sum(stat.size for stat in store.list("runs/base"))
    with pytest.raises(SkytrainError, match="add --yes"):  # nobody sits at a test
        command.delete("base", where(store))
    assert "with 1 checkpoint" in capsys.readouterr().err and committed_steps(store, "base") == [2]
    command.delete("base", where(store), yes=True)
    assert f"deleted base: {size / 1e3:.2f} KB freed" in capsys.readouterr().out
    assert store.list("runs/base") == []
    assert [each.run for each in list_entries(tiny_config(root))] == ["child"]


def test_a_run_that_still_needs_the_deleted_one_is_named(root, store):
    store.delete_all("runs/child/checkpoints")
    assert plan_deletion(tiny_config(root), "base").needed_by == ["child"]
