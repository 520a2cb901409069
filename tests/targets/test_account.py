"""status, stop and shell across an account: machines found by their tags in moto."""

from __future__ import annotations

import functools
import json
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from skytrain import config as config_package
from skytrain.aws import Call, CloudError, GcSelection, Tags
from skytrain.cli.main import app
from skytrain.config import Config, SkytrainError
from skytrain.jobs import generation_key
from skytrain.pipelines.costs import sweep_costs
from skytrain.pipelines.dashboard import StoreWatch
from skytrain.pipelines.runs import delete_run, rename_run
from skytrain.report import machine_notes, machine_rows
from skytrain.runs import (
    LaunchedGroup,
    LaunchId,
    LaunchRecord,
    RunStatus,
    Silent,
    claim_attempt,
    create_launch,
    create_run,
    end_launch,
    launch_key,
    launches_of,
    may_grow,
    new_record,
    outcome_key,
    read_launch,
    read_stop,
    stopped_key,
    write_outcome,
)
from skytrain.runs.launches import order_key
from skytrain.storage import AccessDenied, DamagedRecord, Retry, StoreUnreachable, open_store
from skytrain.storage.folder import FolderStore
from skytrain.targets import account_state, stop_whole_sweep
from skytrain.targets.account import machines_of
from skytrain.targets.jobs import group_name
from skytrain.targets.leftovers import delete_garbage, find_garbage
from skytrain.targets.shell import choose_machine
from skytrain.targets.stopping import StoppedRun, end_machines, stop, stop_calls, stop_with_machines
from skytrain.tuning import Ledger, find_sweep_status
from tests.support.actions import COMMAND_ACTIONS
from tests.support.tiny import tiny_config
from tests.targets.conftest import use_session
from tests.targets.seeding import AMI, complete_moto, hours_from_now

REGIONS = ["us-east-1", "us-east-2"]
GROUP_OF_A = group_name("demo", "a", "00001", 0)
CLOUD = "# @package _global_\ndefaults:\n  - none@cloud\n  - _self_\ncloud:\n  project: demo\n  region: us-east-2\n"


def launch(session, region: str, run: str | None, project: str = "demo", count: int = 1) -> None:
    """Instances of a run in an Auto Scaling group, as `launch` makes them."""
    tags = Tags(project, "ada", run, hours_from_now(3))
    ec2, name = session.client("ec2", region), group_name(project, str(run), "00001", 0)
    data = {"ImageId": AMI, "InstanceType": "g5.xlarge"}
    template = ec2.create_launch_template(LaunchTemplateName=name, LaunchTemplateData=data)["LaunchTemplate"]
    session.client("autoscaling", region).create_auto_scaling_group(
        AutoScalingGroupName=name,
        MinSize=0,
        MaxSize=4,
        DesiredCapacity=count,
        LaunchTemplate={"LaunchTemplateId": template["LaunchTemplateId"]},
        AvailabilityZones=[f"{region}a"],
        Tags=tags.for_group(name),
    )


@pytest.fixture
def config(tmp_path: Path, no_aws: pytest.MonkeyPatch):
    """A folder that `skytrain cloud init` has connected, with a store in it."""
    (tmp_path / "cloud").mkdir()
    (tmp_path / "cloud" / "aws.yaml").write_text(CLOUD)
    no_aws.chdir(tmp_path)
    return connected()


@functools.cache
def connected() -> Config:
    return tiny_config("store", "cloud=aws")


@pytest.fixture
def machines(account, config, monkeypatch):
    """Two machines of run `a`, one of run `b`, one of another project."""
    monkeypatch.setattr("skytrain.aws.scan.enabled_regions", lambda session: (REGIONS, []))
    use_session(monkeypatch, lambda *_: account)
    compose_once(monkeypatch)
    launch(account, "us-east-2", "a", count=2)
    launch(account, "us-east-1", "b")
    launch(account, "us-east-1", "a", project="other")
    return account


class Noted(Silent):
    """What people are told."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)


COMPOSED: dict[tuple[str, ...], Any] = {}


def compose_once(patch: pytest.MonkeyPatch) -> None:
    """Composing takes longer than anything else here, and the same words give the same configuration."""
    compose = config_package.compose

    def composed(words, *rest, **more):
        key = tuple(words)
        if key not in COMPOSED:
            COMPOSED[key] = compose(words, *rest, **more)
        return COMPOSED[key]

    patch.setattr(config_package, "compose", composed, raising=False)


def record_run(config, name: str, *, ended: bool = False) -> None:
    store = open_store(config.store)
    create_run(store, new_record(config, name=name, data={}, tokenizer_id="x", parameters=1, hardware={}))
    claim_attempt(store, name)
    if ended:
        write_outcome(store, name, 0, "done", 20)


def skytrain(*words: str):
    return CliRunner().invoke(app, words, catch_exceptions=False)


def test_the_dashboard_lists_the_machines_of_the_account_and_survives_one_that_does_not_answer(
    machines, config, monkeypatch
) -> None:
    watch = StoreWatch(config)
    watch.refresh()
    shown = watch.data()
    assert len(shown["machines"]) == 1 + 3 and {row[0].split()[0] for row in shown["machines"][1:]} == {"a", "b"}
    assert dict(shown["tiles"])["machines"].startswith("3, $")
    unknown = CloudError("AWS does not answer", fix="ask later")
    use_session(monkeypatch, lambda region, account: (_ for _ in ()).throw(unknown))
    watch = StoreWatch(config)
    watch.refresh()
    assert watch.data()["machines"] == [] and "machines unknown: AWS does not answer" in watch.data()["note"]


def test_machines_are_matched_with_runs_by_tag_with_price_and_kill_time(machines, config):
    state = account_state(config, machines, runs=["a"])
    assert [(each.run, each.region, each.in_store) for each in state.machines] == [
        ("a", "us-east-2", True),
        ("a", "us-east-2", True),
        ("b", "us-east-1", False),
    ]
    assert all(each.usd_per_hour and each.type == "g5.xlarge" and each.ends_at for each in state.machines)
    assert [each.run for each in account_state(config, machines, ["a"], run="b").machines] == ["b"]
    rows = machine_rows(state)
    assert rows[3][0] == "b (not in this store)" and rows[1][1].startswith("i-")
    notes = machine_notes(state, [RunStatus("c", "stale"), RunStatus("a", "stale")])
    assert notes[0].startswith("3 machines, $") and notes[1] == "c: stale, but none of the machines here"


def test_status_shows_runs_and_machines_and_without_an_account_only_runs(machines, config):
    record_run(config, "a")
    shown = skytrain("status", f"store.root={config.store.root}", "cloud=aws").stdout
    assert "RUN  STATE" in shown and "a    i-" not in shown.splitlines()[1]
    assert shown.count("g5.xlarge") == 3 and "3 machines, $" in shown
    plain = skytrain("status", f"store.root={config.store.root}").stdout
    assert "g5.xlarge" not in plain and "starting" in plain
    one = json.loads(skytrain("status", "a", f"store.root={config.store.root}", "cloud=aws", "--json").stdout)
    assert one["runs"]["run"] == "a" and [each["run"] for each in one["machines"]] == ["a", "a"]


def test_status_of_an_account_whose_store_has_no_run_still_shows_the_machines(machines, config):
    shown = skytrain("status", f"store.root={config.store.root}", "cloud=aws").stdout
    assert shown.startswith("no run in file://") and shown.count("(not in this store)") == 3


def test_watching_shows_the_machines_again_until_it_is_interrupted(machines, config, monkeypatch):
    waited = []

    def sleep(seconds):
        waited.append(seconds)
        if len(waited) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("skytrain.cli.status.pause", sleep)
    shown = skytrain("status", f"store.root={config.store.root}", "cloud=aws", "--watch")
    assert shown.stdout.count("3 machines, $") == 2 and waited == [10.0, 10.0]


def test_stop_ends_the_groups_and_machines_of_its_run_and_no_others(machines, config, monkeypatch):
    actions = set()
    for name in ("perform", "items"):
        real = getattr(machines, name)
        monkeypatch.setattr(
            machines, name, lambda call, *rest, real=real: actions.add(call.action) or real(call, *rest)
        )
    found = machines_of(config, machines, "a", pytest.fail)
    operations = [(region, call.operation) for region, call in stop_calls(found)]
    assert operations == [("us-east-2", "UpdateAutoScalingGroup"), *[("us-east-2", "TerminateInstances")] * 2]
    assert end_machines(machines, found, Silent()) == []
    left = account_state(config, machines, [])
    assert [each.run for each in left.machines] == ["b"]
    assert actions <= set(COMMAND_ACTIONS["stop"])
    (group,) = machines_of(config, machines, "a", pytest.fail)
    assert group.facts["wanted"] == 0
    assert len(account_state(replace(config, cloud=replace(config.cloud, project="other")), machines, []).machines) == 1


def test_the_stop_command_asks_prints_requests_and_does_not_kill_what_may_be_saving(machines, config):
    record_run(config, "a")
    root = f"store.root={config.store.root}"
    planned = json.loads(skytrain("stop", "a", root, "cloud=aws", "--dry-run").stdout)
    assert planned["store"]["attempt"] == 0 and planned["store"]["write"].endswith("/runs/a/stop.json")
    operations = [each["operation"] for each in planned["requests"]]
    assert operations == ["UpdateAutoScalingGroup", "TerminateInstances", "TerminateInstances"]
    assert read_stop(open_store(config.store), "a") is None
    with pytest.raises(SkytrainError, match="Stop a and terminate 2 machines"):
        skytrain("stop", "a", root, "cloud=aws")
    asked = skytrain("stop", "a", root, "cloud=aws", "--yes", "--wait", "0s")
    assert asked.exit_code == 3 and "still starting" in asked.output and "its machines still run" in asked.output
    assert read_stop(open_store(config.store), "a") is not None
    assert len(account_state(config, machines, [], run="a").machines) == 2
    forced = skytrain("stop", "a", root, "cloud=aws", "--yes", "--wait", "0s", "--force")
    assert forced.exit_code == 0 and "2 machines terminated" in forced.output
    assert account_state(config, machines, [], run="a").machines == ()


def test_a_run_that_has_ended_only_loses_its_machines(machines, config):
    record_run(config, "a", ended=True)
    done = skytrain("stop", "a", f"store.root={config.store.root}", "cloud=aws", "--yes")
    assert done.exit_code == 0 and "nothing to stop, it is done" in done.output
    assert read_stop(open_store(config.store), "a") is None
    assert account_state(config, machines, [], run="a").machines == ()


def test_a_machine_is_chosen_by_number_or_id(machines, config):
    found = machines_of(config, machines, "a", pytest.fail)
    first, second = (choose_machine("a", found, node) for node in ("0", "1"))
    assert first.instance != second.instance and choose_machine("a", found, second.instance) == second
    assert first.command() == ["aws", "ssm", "start-session", "--target", first.instance, "--region", "us-east-2"]
    with pytest.raises(SkytrainError, match=r"has 2 machines: 0: i-\w+, 1: i-\w+\n  choose one: --node N"):
        choose_machine("a", found, None)
    with pytest.raises(SkytrainError, match="--node 7: run 'a' has 0: "):
        choose_machine("a", found, "7")
    with pytest.raises(SkytrainError, match="no running machine"):
        choose_machine("c", [], None)


def test_shell_starts_a_session_and_names_the_program_that_is_missing(machines, tmp_path, monkeypatch):
    shown = skytrain("shell", "b", "cloud=aws", "--dry-run").stdout
    assert shown.startswith("aws ssm start-session --target i-") and "--region us-east-1" in shown
    tools = tmp_path / "bin"
    tools.mkdir()
    monkeypatch.setenv("PATH", str(tools))
    with pytest.raises(SkytrainError, match="there is no `aws` here"):
        skytrain("shell", "b", "cloud=aws")
    (tools / "aws").write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/called\nexit 4\n')
    (tools / "aws").chmod(0o755)
    with pytest.raises(SkytrainError, match=r"no `session-manager-plugin` here\n  install it: https://"):
        skytrain("shell", "b", "cloud=aws")
    (tools / "session-manager-plugin").write_text("#!/bin/sh\n")
    (tools / "session-manager-plugin").chmod(0o755)
    assert skytrain("shell", "b", "cloud=aws").exit_code == 4
    assert (tmp_path / "called").read_text().startswith("ssm start-session --target i-")


def test_gc_lists_what_it_would_delete_and_deletes_on_request(machines, config, monkeypatch):
    complete_moto(monkeypatch)
    record_run(config, "a", ended=True)
    words = ("gc", f"store.root={config.store.root}", "cloud=aws", "--region", "us-east-2", "--region", "us-east-1")
    listed = json.loads(skytrain(*words, "--json").stdout)["resources"]
    assert {(each["tags"]["skytrain:run"], each["delete"]) for each in listed} == {("a", True), ("b", False)}
    calls = json.loads(skytrain(*words, "--delete", "--dry-run").stdout)
    assert [call["operation"] for call in calls] == ["DeleteAutoScalingGroup", *["TerminateInstances"] * 2]
    done = skytrain(*words, "--delete", "--yes", "--json")
    assert json.loads(done.stdout) and "deleted 3 of 3 resources" in done.stderr
    assert "account 123456789012" in done.output and "per hour less" in done.output
    assert [each.run for each in account_state(config, machines, []).machines] == ["b"]


def test_gc_keeps_what_another_project_runs_under_the_name_of_a_run_of_ours_that_has_ended(
    machines, config, monkeypatch
):
    complete_moto(monkeypatch)
    record_run(config, "a", ended=True)
    found = find_garbage(config, machines, GcSelection(), Silent(), regions=["us-east-1"])
    (other,) = [
        each for each in found.verdicts if each.resource.tags.project == "other" and "group" in each.resource.kind
    ]
    assert not other.delete and other.reason == "its run is not in this store"


def test_gc_keeps_the_machines_of_a_run_that_was_resumed_while_the_question_stood(machines, config, monkeypatch):
    complete_moto(monkeypatch)
    record_run(config, "a", ended=True)
    found = find_garbage(config, machines, GcSelection(), Silent(), regions=["us-east-2"], project="demo")
    assert found.count == 3
    claim_attempt(open_store(config.store), "a")
    kept = delete_garbage(config, machines, found, Silent())
    assert {each.problem for each in kept} == {"its run is active now"} and len(kept) == 3
    assert len(account_state(config, machines, [], run="a").machines) == 2


@pytest.mark.parametrize("over", [False, True])
def test_gc_keeps_a_run_whose_hosts_wait_for_another_machine_until_its_launch_is_over(
    machines, config, monkeypatch, over
):
    """After a spot notice the last attempt has ended, and the host that is left waits, rented."""
    complete_moto(monkeypatch)
    record_run(config, "a")
    store, now = open_store(config.store), datetime.now(UTC)
    create_launch(store, launch_of("a", launched_at=now - timedelta(minutes=30), kill_at=now + timedelta(hours=3)))
    write_outcome(store, "a", 0, "interrupted", 20)
    store.create(generation_key("a", 1), json.dumps({"members": ["i-1.a", "i-2.b"]}).encode())
    ending = {"by": "i-2.b", "reason": "spot notice", "exit_code": 7 if over else None, "launch": "00001"}
    store.create(generation_key("a", 1, "over" if over else "ended"), json.dumps(ending).encode())
    found = find_garbage(config, machines, GcSelection(), Silent(), regions=["us-east-2"], project="demo")
    assert found.count == (3 if over else 0)
    assert {each.reason for each in found.verdicts} == {"its run has ended" if over else "its run is active"}


def test_gc_keeps_a_run_that_was_launched_after_its_end_by_the_stores_clock(machines, config):
    """The clock of the machine that ended it was a day ahead."""
    record_run(config, "a", ended=True)
    store = open_store(config.store)
    key = outcome_key("a", 0)
    outcome = json.loads(store.read(key))
    store.write(key, json.dumps({**outcome, "ended_at": hours_from_now(24).isoformat()}).encode())
    record = launched(config, "a", GROUP_OF_A)

    def doomed() -> int:
        return find_garbage(config, machines, GcSelection(), Silent(), regions=["us-east-2"], project="demo").count

    assert doomed() == 0
    end_launch(store, record, "all machines ended")
    assert doomed() == 3


def launch_of(run: str, *, launched_at: datetime, kill_at: datetime) -> LaunchRecord:
    group = LaunchedGroup(
        name=run,
        zone="us-east-2a",
        instance_type="g5.xlarge",
        market="spot",
        nodes=2,
        usd_per_hour=0.5,
        kill_at=kill_at.isoformat(timespec="seconds"),
        placement_group=False,
    )
    return LaunchRecord(
        id="00001",
        run=run,
        verb="train",
        launched_at=launched_at.isoformat(timespec="seconds"),
        launched_by="ada",
        account="123456789012",
        region="us-east-2",
        patience_seconds=60.0,
        plan_hash="",
        image="",
        bundle="",
        words=[],
        groups=[group],
    )


def test_stop_ends_a_group_whose_tags_someone_removed(machines, config):
    """Its instances keep theirs: ended alone, the group would replace them, and the run would train to its end."""
    record_run(config, "a", ended=True)
    forget_tags(machines, GROUP_OF_A)
    done = skytrain("stop", "a", f"store.root={config.store.root}", "cloud=aws", "--yes")
    assert done.exit_code == 0 and "2 machines terminated" in done.output
    assert sizes(machines)[GROUP_OF_A] == (0, 0)


def test_stop_ends_machines_of_which_only_the_launch_knows(machines, config):
    store, now = open_store(config.store), datetime.now(UTC)
    record_run(config, "a", ended=True)
    launch = launch_of("a", launched_at=now, kill_at=now + timedelta(hours=3))
    create_launch(store, replace(launch, groups=[replace(launch.groups[0], name=GROUP_OF_A)]))
    forget_tags(machines, GROUP_OF_A, instances=True)
    done = skytrain("stop", "a", f"store.root={config.store.root}", "cloud=aws", "--yes")
    assert done.exit_code == 0 and "2 machines terminated" in done.output
    assert sizes(machines)[GROUP_OF_A] == (0, 0)


def test_stop_leaves_a_group_of_another_project_alone_that_has_the_same_name(machines, config):
    """Run `x-y` of `demo` and run `y` of `demo-x`: whose account may do both must not end what it was not asked to end."""
    launch(machines, "us-east-2", "y", project="demo-x")
    name = group_name("demo-x", "y", "00001", 0)
    assert name == group_name("demo", "x-y", "00001", 0)
    store, now = open_store(config.store), datetime.now(UTC)
    record_run(config, "x-y", ended=True)
    planned = launch_of("x-y", launched_at=now, kill_at=now + timedelta(hours=3))
    create_launch(store, replace(planned, groups=[replace(planned.groups[0], name=name)]))
    done = skytrain("stop", "x-y", f"store.root={config.store.root}", "cloud=aws", "--yes")
    assert done.exit_code == 0 and "terminated" not in done.output
    assert sizes(machines)[name][1] == 1


def test_stop_ends_the_machines_of_the_smoke_run_that_comes_first(machines, config):
    store, now = open_store(config.store), datetime.now(UTC)
    smoke = launch_of("b", launched_at=now, kill_at=now + timedelta(hours=3))
    group = replace(smoke.groups[0], name=group_name("demo", "b", "00001", 0))
    create_launch(store, replace(smoke, region="us-east-1", groups=[group], then=LaunchId("c", "00001")))
    whole = launch_of("c", launched_at=now, kill_at=now + timedelta(hours=9))
    create_launch(store, replace(whole, after=LaunchId("b", "00001")))
    done = skytrain("stop", "c", f"store.root={config.store.root}", "cloud=aws", "--yes")
    assert done.exit_code == 0 and "1 machine terminated" in done.output
    assert sizes(machines, "us-east-1")[group_name("demo", "b", "00001", 0)] == (0, 0)
    assert read_launch(store, "c", "00001").failed  # the smoke run's last act would have started it
    assert not may_grow(store, read_launch(store, "b", "00001"))  # a machine of it that boots now ends itself


@pytest.mark.parametrize("lie", ["group", "then", "after"])
def test_a_record_that_a_machine_has_changed_ends_no_machines_of_another_run(machines, config, monkeypatch, lie):
    """A machine of run `c` writes runs/c, and so the record that `stop c` and `gc` read."""
    complete_moto(monkeypatch)
    store, now = open_store(config.store), datetime.now(UTC)
    record_run(config, "a")
    create_launch(store, launch_of("a", launched_at=now, kill_at=now + timedelta(hours=3)))
    forged = launch_of("c", launched_at=now, kill_at=now + timedelta(hours=3))
    if lie == "group":
        forged = replace(forged, groups=[replace(forged.groups[0], name=GROUP_OF_A)])
    create_launch(store, replace(forged, **({} if lie == "group" else {lie: LaunchId("a", "00001")})))
    done = skytrain("stop", "c", f"store.root={config.store.root}", "cloud=aws", "--yes", "--force")
    assert sizes(machines)[GROUP_OF_A] == (2, 2), done.output
    assert not read_launch(store, "a", "00001").failed
    found = find_garbage(config, machines, GcSelection(run="c"), Silent(), regions=["us-east-2"], project="demo")
    assert found.count == 0


def test_a_record_speaks_for_no_other_run(config):
    store, now = open_store(config.store), datetime.now(UTC)
    record = launch_of("a", launched_at=now, kill_at=now + timedelta(hours=3))
    create_launch(store, record)
    store.write("runs/c/launches/00001.json", store.read("runs/a/launches/00001.json"))
    with pytest.raises(DamagedRecord, match="launch 00001 of run a"):
        launches_of(store, "c")


def test_a_smoke_run_that_is_stopped_does_not_start_the_run_after_it(machines, config):
    store, now = open_store(config.store), datetime.now(UTC)
    record_run(config, "b")
    smoke = launch_of("b", launched_at=now, kill_at=now + timedelta(hours=3))
    create_launch(store, replace(smoke, then=LaunchId("c", "00001")))
    whole = launch_of("c", launched_at=now, kill_at=now + timedelta(hours=9))
    create_launch(store, replace(whole, after=LaunchId("b", "00001")))
    stop(config, "b", 0.0, Silent())
    assert read_launch(store, "c", "00001").failed


@pytest.mark.parametrize("launched", [False, True])
def test_an_edited_expiry_does_not_let_gc_delete_a_run_that_trains(machines, config, monkeypatch, launched):
    complete_moto(monkeypatch)
    record_run(config, "a")
    if launched:
        now = datetime.now(UTC)
        record = launch_of("a", launched_at=now, kill_at=now + timedelta(hours=3))
        create_launch(open_store(config.store), replace(record, groups=[replace(record.groups[0], name=GROUP_OF_A)]))
    scaling = machines.client("autoscaling", "us-east-2")
    edited = {"ResourceId": GROUP_OF_A, "ResourceType": "auto-scaling-group", "PropagateAtLaunch": True}
    scaling.create_or_update_tags(Tags=[{**edited, "Key": "skytrain:expires-at", "Value": "2020-01-01T00:00:00Z"}])
    found = find_garbage(config, machines, GcSelection(), Silent(), regions=["us-east-2"], project="demo")
    assert len(found.verdicts) == 3 and not found.doomed
    assert all("its run is active" in each.reason for each in found.verdicts)


def test_gc_keeps_what_belongs_to_a_run_where_the_store_does_not_answer(machines, config, monkeypatch):
    """Its tag says that it expired: somebody may have edited it, and it may train."""
    complete_moto(monkeypatch)
    record_run(config, "a")
    edited = {"ResourceId": GROUP_OF_A, "ResourceType": "auto-scaling-group", "PropagateAtLaunch": True}
    machines.client("autoscaling", "us-east-2").create_or_update_tags(
        Tags=[{**edited, "Key": "skytrain:expires-at", "Value": "2020-01-01T00:00:00Z"}]
    )

    def silent(*_: object, **__: object) -> None:
        raise StoreUnreachable("list", "s3://bucket/project", "no answer", tried_seconds=1.0)

    for verb in ("list", "read", "exists", "stat", "folders"):
        monkeypatch.setattr(FolderStore, verb, silent)
    found = find_garbage(config, machines, GcSelection(), Silent(), regions=["us-east-2"], project="demo")
    assert not found.doomed and any("gc --run a" in each.reason for each in found.verdicts)
    named = find_garbage(config, machines, GcSelection(run="a"), Silent(), regions=["us-east-2"], project="demo")
    assert len(named.doomed) == 3


def test_gc_says_what_a_group_costs_that_it_deletes_with_its_instances(machines, config, monkeypatch):
    complete_moto(monkeypatch)
    scaling = machines.client("autoscaling", "us-east-2")
    edited = {"ResourceId": GROUP_OF_A, "ResourceType": "auto-scaling-group", "PropagateAtLaunch": True}
    scaling.create_or_update_tags(Tags=[{**edited, "Key": "skytrain:expires-at", "Value": "2020-01-01T00:00:00Z"}])
    found = find_garbage(config, machines, GcSelection(), Silent(), regions=["us-east-2"], project="demo")
    assert [each.resource.kind for each in found.doomed] == ["Auto Scaling group"] and found.usd_per_hour > 1


def test_gc_ends_machines_without_tags_of_a_launch_that_is_over(machines, config, monkeypatch):
    complete_moto(monkeypatch)
    record_run(config, "a", ended=True)
    store, now = open_store(config.store), datetime.now(UTC)
    record = launch_of("a", launched_at=now - timedelta(hours=4), kill_at=now + timedelta(hours=3))
    create_launch(store, replace(record, groups=[replace(record.groups[0], name=GROUP_OF_A)]))
    store.write(stopped_key(record), b"{}")
    forget_tags(machines, GROUP_OF_A, instances=True)
    found = find_garbage(config, machines, GcSelection(), Silent(), regions=["us-east-2"], project="demo")
    assert delete_garbage(config, machines, found, Silent()) == []
    assert GROUP_OF_A not in sizes(machines)


class Unanswered:
    """Every first request that changes something is not answered: not even botocore knows why."""

    def __init__(self, session, times: int) -> None:
        self.real, self.times, self.failed = session.perform, times, Counter[str]()

    def __call__(self, call, region=None):
        if call.mutates and self.failed[repr(call.parameters)] < self.times:
            self.failed[repr(call.parameters)] += 1
            raise AttributeError("'NoneType' object has no attribute 'get'")
        return self.real(call, region)


def test_stop_survives_any_error_and_asks_again(machines, config, monkeypatch):
    record_run(config, "a", ended=True)
    monkeypatch.setattr("skytrain.aws.removal.time.sleep", lambda _: None)
    monkeypatch.setattr(machines, "perform", Unanswered(machines, 1))
    done = skytrain("stop", "a", f"store.root={config.store.root}", "cloud=aws", "--yes")
    assert done.exit_code == 0 and "2 machines terminated" in done.output
    assert sizes(machines)[GROUP_OF_A] == (0, 0)


@pytest.mark.parametrize("code", ["Throttling", "RequestLimitExceeded", "ServiceUnavailable"])
def test_stop_asks_again_where_aws_limits_requests_or_fails(machines, config, monkeypatch, code):
    record_run(config, "a", ended=True)
    monkeypatch.setattr("skytrain.aws.removal.time.sleep", lambda _: None)
    real, left = machines.perform, [3]

    def perform(call, region=None):
        if call.mutates and left[0]:
            left[0] -= 1
            raise CloudError("Rate exceeded", fix="wait", code=code)
        return real(call, region)

    monkeypatch.setattr(machines, "perform", perform)
    done = skytrain("stop", "a", f"store.root={config.store.root}", "cloud=aws", "--yes")
    assert done.exit_code == 0 and "2 machines terminated" in done.output
    assert sizes(machines)[GROUP_OF_A] == (0, 0)


def test_stop_that_cannot_end_machines_names_them_and_what_ends_them(machines, config, monkeypatch):
    record_run(config, "a", ended=True)
    real = machines.perform
    seen = list[str]()

    def perform(call, region=None):
        if call.mutates:
            seen.append(call.operation)
            raise ConnectionResetError("reset by peer")
        return real(call, region)

    monkeypatch.setattr(machines, "perform", perform)
    found = machines_of(config, machines, "a", pytest.fail)
    left = end_machines(machines, found, Silent(), Retry(seconds=0.0))
    assert seen == ["UpdateAutoScalingGroup", "TerminateInstances", "TerminateInstances"] and len(left) == 3
    planned = stop_with_machines(config, "a", pytest.fail)
    monkeypatch.setattr("skytrain.targets.stopping.end_machines", lambda *_: left)
    result = planned.end(0.0, False, Silent())
    assert result.exit_code == 3 and result.warning is not None
    assert GROUP_OF_A in result.warning and "skytrain stop a cloud=aws" in result.warning


def launched(config, run: str, group: str) -> LaunchRecord:
    now = datetime.now(UTC)
    record = launch_of(run, launched_at=now - timedelta(hours=1), kill_at=now + timedelta(hours=3))
    record = replace(record, groups=[replace(record.groups[0], name=group)])
    create_launch(open_store(config.store), record)
    return record


def test_a_run_whose_machines_may_wait_for_others_is_neither_deleted_nor_renamed(config):
    record_run(config, "a", ended=True)  # its last attempt has ended, and its machines have not
    record, store = launched(config, "a", GROUP_OF_A), open_store(config.store)
    with pytest.raises(SkytrainError, match="end it first: skytrain stop a cloud=ec2"):
        delete_run(config, "a")
    with pytest.raises(SkytrainError, match="cannot be renamed"):
        rename_run(config, "a", "b")
    store.write(stopped_key(record), b"{}")
    delete_run(config, "a")
    assert store.list("runs/a") == []


def test_stop_sets_groups_to_zero_that_aws_does_not_describe_and_says_that_it_did_not_see_them(
    machines, config, monkeypatch
):
    record_run(config, "a", ended=True)
    launched(config, "a", GROUP_OF_A)
    real = machines.items

    def items(call, key, region=None):
        if call.operation == "DescribeAutoScalingGroups":
            raise CloudError("no answer", fix="try again", code="ConnectionClosedError")
        return real(call, key, region)

    monkeypatch.setattr(machines, "items", items)
    done = skytrain("stop", "a", f"store.root={config.store.root}", "cloud=aws", "--yes")
    assert done.exit_code == 3 and GROUP_OF_A in done.output and "run this again" in done.output
    assert sizes(machines)[GROUP_OF_A] == (0, 0)


def test_stop_without_any_answer_of_aws_names_what_may_run_on_and_what_ends_it(machines, config, monkeypatch):
    record_run(config, "a", ended=True)
    launched(config, "a", GROUP_OF_A)

    def unreachable(*_: object) -> None:
        raise CloudError("no answer", fix="try again", code="EndpointConnectionError")

    monkeypatch.setattr("skytrain.targets.stopping.machines_of", unreachable)
    told = list[str]()
    with pytest.raises(CloudError):
        stop_with_machines(config, "a", told.append)
    assert GROUP_OF_A in told[0] and "ends at" in told[0] and "skytrain stop a cloud=aws" in told[0]
    assert f"skytrain stop a store.root={config.store.root}" in told[0]


def test_stop_by_force_ends_machines_of_a_run_that_cannot_be_asked_to_save(machines, config):
    record_run(config, "a")
    record = launched(config, "a", GROUP_OF_A)
    open_store(config.store).write(order_key("a", record.id), b"{")
    words = ("stop", "a", f"store.root={config.store.root}", "cloud=aws", "--yes", "--wait", "0s")
    with pytest.raises(SkytrainError):
        skytrain(*words)
    assert sizes(machines)[GROUP_OF_A] == (2, 2)
    done = skytrain(*words, "--force")
    assert "2 machines terminated" in done.output and sizes(machines)[GROUP_OF_A] == (0, 0)


def test_stop_without_a_store_names_the_command_that_ends_the_machines(machines, config, monkeypatch):
    """The bucket was deleted, or its key: machines still carry their tags."""

    def closed(*_: object, **__: object) -> None:
        raise AccessDenied("list", "s3://bucket/project", "Access Denied")

    for verb in ("list", "read", "exists", "stat", "write", "folders"):
        monkeypatch.setattr(FolderStore, verb, closed)
    words = (f"store.root={config.store.root}", "cloud=aws", "--yes")
    with pytest.raises(SkytrainError, match="gc --run a --delete"):
        skytrain("stop", "a", *words)
    done = skytrain("gc", "--run", "a", "--delete", *words)
    assert done.exit_code == 0 and GROUP_OF_A not in sizes(machines)


@pytest.mark.parametrize("during", ["the question", "the wait"])
def test_stop_ends_nothing_of_a_launch_that_a_colleague_has_made_since(machines, config, monkeypatch, during):
    record_run(config, "a", ended=True)
    first, store = launched(config, "a", GROUP_OF_A), open_store(config.store)
    planned = stop_with_machines(config, "a", pytest.fail)
    again = replace(first, id="00002", launched_by="bob")
    if during == "the question":
        create_launch(store, again)
    else:
        waited = StoppedRun(run="a", state="done", asked=True, step=20, total_steps=20, checkpoint_step=20)
        monkeypatch.setattr("skytrain.targets.stopping.stop", lambda *_: [create_launch(store, again), waited][1])
    result = planned.end(0.0, False, Silent())
    assert result.exit_code == 3 and result.warning is not None and "bob launched a" in result.warning
    assert sizes(machines)[GROUP_OF_A] == (2, 2) and may_grow(store, again)


GROUP_OF_SWEEP = group_name("demo", "hw-machine-1", "00001", 0)


@pytest.fixture
def sweep(machines, config) -> LaunchRecord:
    """A sweep whose machine boots: it has written nothing yet."""
    launch(machines, "us-east-2", "hw-machine-1")
    return launched(config, "hw-machine-1", GROUP_OF_SWEEP)


def test_a_sweep_is_stopped_by_its_name_before_its_machines_have_begun(machines, config, sweep):
    words = (f"store.root={config.store.root}", "cloud=aws")
    assert "hw" in skytrain("status", "hw", *words).stdout
    done = skytrain("stop", "hw", *words, "--yes")
    assert done.exit_code == 0 and "1 machine terminated" in done.output
    assert sizes(machines)[GROUP_OF_SWEEP] == (0, 0) and sizes(machines)[GROUP_OF_A] == (2, 2)
    assert not may_grow(open_store(config.store), sweep)  # a machine that boots now ends itself


def test_a_sweep_costs_what_its_machines_do_also_what_no_trial_is_charged(config, sweep):
    store = open_store(config.store)
    store.write("sweeps/hw/spec.json", b"{}")
    Ledger(store, "sweeps/hw", 5.0).charge("trial-000", 0.4)
    count = {"usd": 0.75, "seconds": 900.0, "boot": "b", "boot_seconds": 900.0}
    spend = {"usd": 0.75, "usd_per_hour": 3.0, "machines": {"i-1 2026": count}}
    store.write("runs/hw-machine-1/meeting/boot/i-1.json", json.dumps({"spend": spend}).encode())
    rows = sweep_costs(config, "hw", None)
    assert rows is not None and rows[-2:] == [("machines beyond these", "", "0.35"), ("all", "", "0.75")]
    status = find_sweep_status(config, "hw")
    assert status is not None and status.spent_usd == 0.75


def test_a_machine_of_a_sweep_that_started_while_the_question_stood_is_ended(machines, config, sweep):
    status = find_sweep_status(config, "hw")
    assert status is not None
    planned = stop_whole_sweep(config, status, pytest.fail, lambda: None)
    scaling = machines.client("autoscaling", "us-east-2")
    scaling.set_desired_capacity(AutoScalingGroupName=GROUP_OF_SWEEP, DesiredCapacity=2)
    seen, real = list[str](), machines.perform

    def perform(call, region=None):
        seen.extend(call.parameters.get("InstanceIds", ()))
        return real(call, region)

    machines.perform = perform
    assert planned.end(0.0, False, Silent()).exit_code == 0
    assert len(seen) == 2 and sizes(machines)[GROUP_OF_SWEEP] == (0, 0)


def test_stop_of_a_sweep_whose_records_are_damaged_ends_its_machines_by_force_and_names_them_without(
    machines, config, sweep
):
    status = find_sweep_status(config, "hw")
    assert status is not None
    planned = stop_whole_sweep(config, status, lambda _: None, lambda: None)
    open_store(config.store).write("sweeps/hw/decisions/00001.json", b"{")
    noted = Noted()
    with pytest.raises(DamagedRecord):
        planned.end(0.0, False, noted)
    assert GROUP_OF_SWEEP in noted.texts[-1] and "skytrain stop hw cloud=aws --force" in noted.texts[-1]
    assert sizes(machines)[GROUP_OF_SWEEP] == (1, 1)
    words = ("stop", "hw", f"store.root={config.store.root}", "cloud=aws", "--yes")
    with pytest.raises(DamagedRecord):
        skytrain(*words)
    done = skytrain(*words, "--force")
    assert done.exit_code == 0 and sizes(machines)[GROUP_OF_SWEEP] == (0, 0)


def test_stop_of_a_sweep_without_a_store_names_the_commands_that_end_its_machines(machines, config, sweep, monkeypatch):
    def closed(*_: object, **__: object) -> None:
        raise AccessDenied("list", "s3://bucket/project", "Access Denied")

    for verb in ("list", "read", "exists", "stat", "write", "folders"):
        monkeypatch.setattr(FolderStore, verb, closed)
    with pytest.raises(SkytrainError, match="gc --run hw-machine-1 --delete"):
        skytrain("stop", "hw", f"store.root={config.store.root}", "cloud=aws", "--yes")


def test_a_record_that_is_damaged_or_deleted_does_not_end_the_machines_that_have_read_it(config):
    record, store = launched(config, "a", GROUP_OF_A), open_store(config.store)
    store.write(order_key("a", "00001"), b"{")
    assert may_grow(store, record)
    for key in (order_key("a", "00001"), launch_key("a", "00001")):
        store.delete(key)
    assert may_grow(store, record) and not may_grow(store, replace(record, failed=True))


def test_a_launch_that_was_stopped_is_marked_before_its_machines_are_ended(machines, config, monkeypatch):
    record_run(config, "a", ended=True)
    record = launched(config, "a", GROUP_OF_A)
    store, seen, real = open_store(config.store), list[bool](), machines.perform

    def perform(call, region=None):
        if call.mutates:
            seen.append(may_grow(store, record))
        return real(call, region)

    assert may_grow(store, record)
    monkeypatch.setattr(machines, "perform", perform)
    skytrain("stop", "a", f"store.root={config.store.root}", "cloud=aws", "--yes")
    assert seen and not any(seen)


def test_gc_survives_any_error_of_one_deletion(machines, config, monkeypatch):
    complete_moto(monkeypatch)
    record_run(config, "a", ended=True)
    found = find_garbage(config, machines, GcSelection(), Silent(), regions=["us-east-2"], project="demo")
    real = machines.perform

    def perform(call, region=None):
        if call.operation == "DeleteAutoScalingGroup":
            raise AttributeError("a defect of a library")
        return real(call, region)

    monkeypatch.setattr(machines, "perform", perform)
    (failed,) = delete_garbage(config, machines, found, Silent())
    assert failed.resource.kind == "Auto Scaling group" and "a defect of a library" in failed.problem


def forget_tags(session, group: str, *, instances: bool = False) -> None:
    """Remove all tags that a person can remove from a group, and from its instances."""
    scaling, ec2 = session.client("autoscaling", "us-east-2"), session.client("ec2", "us-east-2")
    (found,) = scaling.describe_auto_scaling_groups(AutoScalingGroupNames=[group])["AutoScalingGroups"]
    named = {"ResourceId": group, "ResourceType": "auto-scaling-group"}
    scaling.delete_tags(Tags=[{**named, "Key": tag["Key"]} for tag in found["Tags"]])
    if instances:
        keys = [{"Key": tag["Key"]} for tag in found["Tags"]]
        ec2.delete_tags(Resources=[one["InstanceId"] for one in found["Instances"]], Tags=keys)


def sizes(session, region: str = "us-east-2") -> dict[str, tuple[int, int]]:
    found = session.client("autoscaling", region).describe_auto_scaling_groups()["AutoScalingGroups"]
    return {one["AutoScalingGroupName"]: (one["DesiredCapacity"], len(one["Instances"])) for one in found}


def test_a_mistyped_region_is_not_reported_as_empty(machines, config):
    with pytest.raises(SkytrainError, match=r"us-esat-2 is not a region .* enabled\n  one of us-east-1, us-east-2"):
        find_garbage(config, machines, GcSelection(), Silent(), regions=["us-esat-2"])


def test_a_tag_that_someone_edited_does_not_end_the_scan(machines, config):
    ec2 = machines.client("ec2", "us-east-2")
    (machine, _) = machines_of(config, machines, "a", pytest.fail)[1:]
    ec2.create_tags(Resources=[machine.id], Tags=[{"Key": "skytrain:owner", "Value": "Ada (ML), <ada@example.com>"}])
    owners = [each.owner for each in account_state(config, machines, [], run="a").machines]
    assert sorted(owners) == ["Ada (ML), <ada@example.com>", "ada"]


def test_stop_of_a_run_whose_machines_are_here_and_whose_record_is_not(machines, config):
    with pytest.raises(SkytrainError, match=r"no run 'b' .*(\n.*)*1 machine with its tag .*(\n.*)*gc --run b --delete"):
        skytrain("stop", "b", f"store.root={config.store.root}", "cloud=aws", "--yes")
    assert len(account_state(config, machines, [], run="b").machines) == 1


def test_stop_ends_the_machines_that_are_there_after_the_wait(machines, config, monkeypatch):
    record_run(config, "a")
    gone, *_ = [each.id for each in machines_of(config, machines, "a", pytest.fail) if each.kind == "instance"]
    ended: list[str] = []
    perform = machines.perform

    def meanwhile(*_: object) -> StoppedRun:
        machines.client("ec2", "us-east-2").terminate_instances(InstanceIds=[gone])
        return StoppedRun(run="a", state="stopped", asked=True, step=3, total_steps=20, checkpoint_step=3)

    def recorded(call: Call, region: str | None = None) -> dict[str, Any]:
        ended.extend(call.parameters.get("InstanceIds", []))
        return perform(call, region)

    monkeypatch.setattr("skytrain.targets.stopping.stop", meanwhile)
    monkeypatch.setattr(machines, "perform", recorded)
    assert skytrain("stop", "a", f"store.root={config.store.root}", "cloud=aws", "--yes").exit_code == 0
    assert len(ended) == 2 and gone not in ended  # the group has replaced it
