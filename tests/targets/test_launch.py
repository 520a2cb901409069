"""A launch against a local control plane: what it creates, what it refuses, and that nothing is left."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import platform
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from moto.ec2.models import ec2_backends
from moto.ec2.models.instances import StateReason

import skytrain
from skytrain.aws import AwsSession, Call, CloudError, open_session, remove_all
from skytrain.config import Composed, Config, SkytrainError, compose, source_hash
from skytrain.corpus import InputFile
from skytrain.jobs import NodeRequest, generation_key
from skytrain.pipelines.costs import costs
from skytrain.planning import PrepareWork
from skytrain.planning.plan_file import PlannedCode
from skytrain.runs import (
    LaunchedGroup,
    LaunchRecord,
    Silent,
    create_launch,
    current_offer,
    final_usd,
    is_settled,
    launches_of,
    read_launch,
    read_spend,
    started_key,
    stopped_key,
    supersede_launch,
    user_name,
)
from skytrain.runs.launches import LaunchOrigin
from skytrain.storage import DamagedRecord, StoreUnreachable, open_store
from skytrain.targets import (
    PlannedJob,
    RunEnd,
    RunFollower,
    bundle as bundles,
    leftovers as collecting,
    limits as launch_limits,
    prepare_work,
    run_status as statuses,
    stopping,
)
from skytrain.targets.account import machines_of
from skytrain.targets.bundle import BundleContents, bundle_of, make_bundle
from skytrain.targets.ec2 import launch as launching, machines as rented, requests
from skytrain.targets.ec2.boot import ENDS
from skytrain.targets.ec2.history import started_machines, why_ended
from skytrain.targets.ec2.launch import (
    PreparedLaunch,
    prepare_launch,
    smoke_job,
    smoke_text,
    start_launch,
    start_launches,
    wait_for_start,
)
from skytrain.targets.ec2.machines import Ec2Machines, LaunchKeeper, Replacer, removal_calls, trouble, try_next_offer
from skytrain.targets.ec2.replacement import most_machines
from skytrain.targets.ec2.target import Ec2Launcher
from skytrain.targets.wheels import PLATFORMS, ImagePython
from tests.support.scaling import ScalingStandIn

from .conftest import StubbedSession, record_spend, use_store
from .ground import Ground
from .plans import offer, plan
from .test_checks import G_ON_DEMAND, G_SPOT, quotas

RUN = "gpt2-launch"


@pytest.fixture
def s3_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A bucket's URL, whose objects are in a folder: the store has tests of its own, against a real S3."""
    folder = open_store(str(tmp_path / "store"))
    use_store(monkeypatch, lambda: folder)
    return "s3://bucket/demo"


@pytest.fixture
def without_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The packages themselves have a test of their own; a package index takes minutes."""
    monkeypatch.setattr(bundles, "fetch_wheels", lambda folder, requirements, image: None)


def config_of(ground: Ground, root: str) -> Config:
    config = ground.preflight().config
    return replace(config, run=RUN, store=replace(config.store, root=root), cloud=replace(config.cloud, target="ec2"))


def prepared(
    ground: Ground, stubbed: StubbedSession, root: str, *offers: Any, budget_usd: float | None = None
) -> PreparedLaunch:
    offers = offers or (offer("g5.xlarge", 1), offer("g6.xlarge", 1, "on-demand", max_usd_per_hour_each=3.0))
    quotas(stubbed, *((G_SPOT if one.market == "spot" else G_ON_DEMAND, 96.0) for one in offers))
    made = replace(plan(*offers), code=PlannedCode("0", source_hash()))
    config = config_of(ground, root)
    config = replace(config, budget=replace(config.budget, usd=budget_usd))
    preflight = replace(ground.preflight(made), config=config)
    return prepare_launch(PlannedJob(Composed(preflight.config, {}, {}), made), preflight, lambda _: None)


def user_data_of(ground: Ground) -> str:
    """The user data of the first launch template."""
    ec2 = ground.session.client("ec2")
    [template, *_] = ec2.describe_launch_templates()["LaunchTemplates"]
    [version] = ec2.describe_launch_template_versions(LaunchTemplateId=template["LaunchTemplateId"])[
        "LaunchTemplateVersions"
    ]
    return base64.b64decode(version["LaunchTemplateData"]["UserData"]).decode()


def groups_of(ground: Ground) -> dict[str, int]:
    found = ground.session.client("autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"]
    return {group["AutoScalingGroupName"]: len(group["Instances"]) for group in found}


def test_a_run_with_a_job_on_another_target_is_launched_when_that_is_over(
    ground: Ground, stubbed: StubbedSession, s3_root: str
) -> None:
    store = launching.open_store(s3_root)
    for number, target in enumerate(("eks", "slurm"), 1):
        group = LaunchedGroup(
            name="job",
            zone="",
            instance_type="node",
            market=target,
            nodes=2,
            usd_per_hour=0.0,
            kill_at="",
            placement_group=False,
        )
        record = LaunchRecord(
            id=f"{number:05d}",
            run=RUN,
            verb="train",
            launched_at="2026-11-16T00:00:00+00:00",
            launched_by="ada",
            account="",
            region="",
            patience_seconds=9.0,
            plan_hash="",
            image="",
            bundle="",
            words=[],
            groups=[group],
            target=target,
        )
        create_launch(store, record)
        with pytest.raises(
            SkytrainError, match=f"by ada with cloud={target}, .*\n.* skytrain stop {RUN} cloud={target}"
        ):
            prepared(ground, stubbed, s3_root)
        config = config_of(ground, s3_root)
        stopped = stopping.stop_with_machines(compose([f"store.root={s3_root}"]).config, RUN, print)
        result = stopped.end(0.0, False, Silent())
        assert result.exit_code == 3 and f"skytrain stop {RUN} cloud={target}" in str(result.warning)
        stopping.mark_stopped(config, RUN)  # of EC2's launches, of which there is none
        with pytest.raises(SkytrainError, match="may not be complete yet"):
            prepared(ground, stubbed, s3_root)
        stopping.mark_stopped(replace(config, cloud=replace(config.cloud, target=target)), RUN)
    assert prepared(ground, stubbed, s3_root).record.id == "00003"


def test_a_launch_whose_run_is_over_after_a_moment_is_not_under_way(s3_root: str) -> None:
    store, now = launching.open_store(s3_root), datetime.now(UTC)
    group = LaunchedGroup(
        name="job",
        zone="",
        instance_type="node",
        market="ec2",
        nodes=1,
        usd_per_hour=0.0,
        kill_at="",
        placement_group=False,
    )
    at = now.isoformat()
    record = LaunchRecord(
        id="00001",
        run=RUN,
        verb="train",
        launched_at=at,
        launched_by="ada",
        account="",
        region="",
        patience_seconds=9.0,
        plan_hash="",
        image="",
        bundle="",
        words=[],
        groups=[group],
    )
    create_launch(store, record)
    assert launch_limits.live_launch([record], store, now, lambda _: False) == record  # its requests may be under way
    store.write(generation_key(RUN, 1), b'{"members": []}')
    store.write(generation_key(RUN, 1, "over"), b'{"launch": "00001", "exit_code": 2, "reason": "settings"}')
    assert launch_limits.live_launch([record], store, now, lambda _: False) is None


@pytest.mark.usefixtures("without_packages")
def test_a_launch_starts_the_first_offer_and_gives_everything_back(
    ground: Ground, stubbed: StubbedSession, s3_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = prepared(ground, stubbed, s3_root)
    record = start_launch(ready, {"cloud/aws.yaml": b"x: 1"}, Silent())
    assert list(groups_of(ground).values()) == [1, 0]
    ends = ground.session.client("autoscaling").describe_scheduled_actions()["ScheduledUpdateGroupActions"]
    assert {(one["AutoScalingGroupName"], one["MaxSize"]) for one in ends} == {(one.name, 0) for one in record.groups}
    assert read_launch(ready.store, RUN, record.id) == record and record.image == ground.image
    assert {stat.key.rpartition("/")[2] for stat in ready.store.list(record.bundle)} >= {"SHA256SUMS"}
    with pytest.raises(SkytrainError, match="may not be complete yet"):
        prepared(ground, stubbed, s3_root)
    monkeypatch.setattr(launch_limits, "BEGIN_SECONDS", 0)
    with pytest.raises(SkytrainError, match=f"{RUN} was launched in us-east-2 .* is not over"):
        prepared(ground, stubbed, s3_root)
    machines = Ec2Machines(ground.session, ready.store, record, "i-0", lambda text: pytest.fail(text))
    machines.set_desired(0)
    assert list(groups_of(ground).values()) == [0, 0]
    again = prepared(ground, stubbed, s3_root)  # the same run, whose empty groups are still there
    assert again.record.id == "00002" and not {one.name for one in again.groups} & set(groups_of(ground))
    machines.delete_groups()
    Ec2Machines(ground.session, ready.store, record, "i-1", lambda _: None).delete_groups()  # a second node
    ec2 = ground.session.client("ec2")
    assert groups_of(ground) == {} and ec2.describe_launch_templates()["LaunchTemplates"] == []


@pytest.mark.usefixtures("without_packages")
def test_a_launch_records_who_launched_from_where_and_with_what(
    ground: Ground, stubbed: StubbedSession, s3_root: str
) -> None:
    ready = prepared(ground, stubbed, s3_root)
    record = ready.record
    caller = ground.session.client("sts").get_caller_identity()["Arn"]
    assert record.origin == LaunchOrigin(caller, user_name(), platform.node(), skytrain.__version__)
    before = {name: value for name, value in asdict(record).items() if name != "origin"}
    ready.store.write(f"runs/{RUN}/launches/00009.json", json.dumps({**before, "id": "00009"}).encode())
    assert read_launch(ready.store, RUN, "00009") == replace(record, id="00009", origin=None), "of the version before"
    agent = ground.session.client("ec2").meta.config.user_agent_extra
    assert agent == f"skytrain/{skytrain.__version__}", "CloudTrail shows it with every request"


@pytest.mark.usefixtures("without_packages")
def test_a_machine_that_ended_before_its_first_record_is_counted_once(
    ground: Ground, stubbed: StubbedSession, s3_root: str
) -> None:
    ready = prepared(ground, stubbed, s3_root)
    record, ec2 = start_launch(ready, {}, Silent()), ground.session.client("ec2")
    [found] = ec2.describe_instances()["Reservations"][0]["Instances"]
    said: list[str] = []
    machines = Ec2Machines(ground.session, ready.store, record, "i-0", said.append)
    machines.count_ended()
    assert said == [] and read_spend(ready.store, RUN).counts == {}  # it runs, and may record its cost itself
    ec2.terminate_instances(InstanceIds=[found["InstanceId"]])
    machines.count_ended()
    [(key, count)] = read_spend(ready.store, RUN).counts.items()
    assert key == f"{found['InstanceId']} {found['LaunchTime'].isoformat()}" and count.seconds >= 60
    assert count.usd == pytest.approx(count.seconds * record.groups[0].usd_per_hour / 3600)
    machines.count_ended()
    assert len(said) == 1 and found["InstanceId"] in said[0]


@pytest.mark.usefixtures("without_packages")
def test_a_machine_that_ec2_has_forgotten_is_counted_as_a_minute_by_its_groups_history(
    ground: Ground, stubbed: StubbedSession, s3_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = prepared(ground, stubbed, s3_root)
    record = start_launch(ready, {}, Silent())
    later = datetime.now(UTC) + timedelta(hours=3)
    monkeypatch.setattr("skytrain.targets.ec2.machines._instances", lambda *_: ({}, later))
    for _ in range(2):
        Ec2Launcher().count_machines(ground.session, ready.store, record)
        [count] = read_spend(ready.store, RUN).counts.values()
        assert count.seconds == 60 and count.usd == pytest.approx(record.groups[0].usd_per_hour / 60)


@pytest.mark.usefixtures("without_packages")
def test_what_a_machine_recorded_of_itself_is_not_less_than_what_ec2_bills(
    ground: Ground, stubbed: StubbedSession, s3_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = prepared(ground, stubbed, s3_root)
    record, ec2 = start_launch(ready, {}, Silent()), ground.session.client("ec2")
    [found] = ec2.describe_instances()["Reservations"][0]["Instances"]
    name, key = found["InstanceId"], f"{found['InstanceId']} {found['LaunchTime'].isoformat()}"

    def record_own(seconds: float) -> None:
        own = {"usd": seconds, "seconds": seconds, "boot": "b", "boot_seconds": 12.0}
        heartbeat = {"spend": {"usd": seconds, "usd_per_hour": 3600.0, "machines": {key: own}}}
        ready.store.write(f"runs/{RUN}/meeting/left/1x1/{name}.a.json", json.dumps(heartbeat).encode())

    record_own(12.0)
    target = Ec2Launcher()
    target.count_machines(ground.session, ready.store, record)
    assert read_spend(ready.store, RUN).counts[key].seconds == 12.0  # it runs, and records more itself
    ec2.terminate_instances(InstanceIds=[name])
    target.count_machines(open_session("us-west-2"), ready.store, record)  # set up for another region since
    assert read_spend(ready.store, RUN).counts[key].seconds == 60.0
    record_own(75.0)  # it counted ahead, and while it was shut down
    with monkeypatch.context() as patched:
        patched.setattr("skytrain.targets.ec2.machines.ended_at", lambda _: None)  # of a spot machine that AWS took
        ready.store.delete(f"runs/{RUN}/billed/{name}.json")
        target.count_machines(ground.session, ready.store, record)
    assert is_settled(ready.store, RUN) and final_usd(ready.store, RUN) == 75.0
    ready.store.delete(f"runs/{RUN}/billed/{name}.json")
    target.count_machines(ground.session, ready.store, record)
    assert read_spend(ready.store, RUN).counts[key].seconds == 75.0
    assert final_usd(ready.store, RUN) == pytest.approx(record.groups[0].usd_per_hour / 60)
    assert len([one for one in read_spend(ready.store, RUN).counts if one.startswith(name)]) == 1


@pytest.mark.usefixtures("without_packages")
def test_the_next_launch_and_costs_know_machines_that_never_wrote(
    ground: Ground, stubbed: StubbedSession, s3_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = prepared(ground, stubbed, s3_root, offer("g5.xlarge", 1, "on-demand"))
    start_launch(ready, {}, Silent())
    shown = costs(config_of(ground, s3_root), RUN, ground.session)
    [(name, seconds)] = [(one.machine.partition(" ")[0], one.seconds) for one in shown.machines]
    assert name.startswith("i-") and seconds >= 60 and shown.usd >= 60 * ready.record.groups[0].usd_per_hour / 3600
    remove_all(ground.session, [(ground.session.region, call) for call in removal_calls(ready.record)], pytest.fail)
    monkeypatch.setattr(launch_limits, "BEGIN_SECONDS", 0)
    with pytest.raises(SkytrainError, match=r"has cost .* already"):
        prepared(ground, stubbed, s3_root, offer("g5.xlarge", 1, "on-demand"), budget_usd=shown.usd)


@pytest.mark.usefixtures("without_packages")
def test_of_two_launches_at_the_same_moment_one_creates_nothing(
    ground: Ground, stubbed: StubbedSession, s3_root: str
) -> None:
    first, second = prepared(ground, stubbed, s3_root), prepared(ground, stubbed, s3_root)
    record = start_launch(first, {"cloud/aws.yaml": b"first"}, Silent())
    written = {stat.key: first.store.read(stat.key) for stat in first.store.list("")}
    given = f"launches/{RUN}/{record.id}/config.tar.gz"
    assert given in written
    assert user_data_of(ground).count(hashlib.sha256(written[given]).hexdigest()) == 1
    with pytest.raises(SkytrainError, match="is being launched by someone else"):
        start_launch(second, {"cloud/aws.yaml": b"second"}, Silent())
    assert list(groups_of(ground).values()) == [1, 0]
    assert {key: first.store.read(key) for key in written} == written  # the machines' configuration, too


@pytest.mark.usefixtures("without_packages")
@pytest.mark.parametrize("late", [False, True])
def test_a_run_of_the_same_name_in_another_store_keeps_its_machines_and_its_role(
    ground: Ground, stubbed: StubbedSession, s3_root: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, late: bool
) -> None:
    """Two people train the same recipe, each with a store of their own: names and numbers of the launches are the same."""
    first = prepared(ground, stubbed, s3_root)
    other = open_store(str(tmp_path / "another"))
    use_store(monkeypatch, lambda: other)
    second = (
        prepared(ground, stubbed, s3_root) if late else None
    )  # both have read the account before the other launched
    start_launch(first, {}, Silent())
    before = groups_of(ground)
    with pytest.raises(SkytrainError, match="was launched with another store"):
        start_launch(second or prepared(ground, stubbed, s3_root), {}, Silent())
    assert groups_of(ground) == before and list(before.values()) == [1, 0]
    assert first.role is not None and ground.session.client("iam").get_role(RoleName=first.role.name)


@pytest.mark.usefixtures("without_packages")
def test_status_stop_and_gc_find_a_launch_that_has_not_begun_to_train(
    ground: Ground, stubbed: StubbedSession, s3_root: str
) -> None:
    ready = prepared(ground, stubbed, s3_root)
    start_launch(ready, {}, Silent())
    config = config_of(ground, s3_root)
    [found] = statuses.status(config, None)
    assert (found.run, found.state) == (RUN, "launched") and "1 x g5.xlarge (spot)" in str(found.host)
    assert statuses.status(config, RUN) == [found]
    assert collecting._active_runs(config, Silent()) == {RUN: True}
    groups = [one for one in machines_of(config, ground.session, RUN, pytest.fail) if one.kind == "Auto Scaling group"]
    assert {one.id for one in groups} == set(groups_of(ground))
    stopped = stopping.stop(config, RUN, 0.0, Silent())
    stopping.end_machines(ground.session, machines_of(config, ground.session, RUN, pytest.fail), Silent())
    assert not stopped.asked and list(groups_of(ground).values()) == [0, 0]


@pytest.mark.usefixtures("without_packages")
def test_a_launch_that_fails_half_way_leaves_nothing(
    ground: Ground, stubbed: StubbedSession, s3_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = prepared(ground, stubbed, s3_root)
    perform = ground.session.perform

    def fail_at_second_group(call: Any, region: str | None = None) -> Any:
        if call.operation == "CreateAutoScalingGroup" and call.parameters["AutoScalingGroupName"].endswith("-1"):
            raise CloudError("no", fix="none", code="LimitExceeded")
        return perform(call, region)

    monkeypatch.setattr(ground.session, "perform", fail_at_second_group)
    with pytest.raises(CloudError, match="no"):
        start_launch(ready, {}, Silent())
    assert groups_of(ground) == {}
    assert ground.session.client("ec2").describe_launch_templates()["LaunchTemplates"] == []


@pytest.mark.usefixtures("without_packages")
def test_a_launch_whose_machines_could_not_be_removed_still_counts_as_one_that_has_machines(
    ground: Ground, stubbed: StubbedSession, s3_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready, perform, told = prepared(ground, stubbed, s3_root), ground.session.perform, list[str]()

    def may_only_create(call: Any, region: str | None = None) -> Any:
        if call.operation == "SetDesiredCapacity":  # it is done, and its answer lost
            perform(call, region)
        if call.operation in ("SetDesiredCapacity", "DeleteAutoScalingGroup"):
            raise CloudError("may not", fix="allow it", code="AccessDenied", cause="credentials")
        return perform(call, region)

    class Noted(Silent):
        def note(self, text: str) -> None:
            told.append(text)

    monkeypatch.setattr(ground.session, "perform", may_only_create)
    with pytest.raises(CloudError, match="may not"):
        start_launch(ready, {}, Noted())
    assert f"end them: skytrain stop {RUN} cloud=ec2" in told[-1]
    assert not read_launch(ready.store, RUN, ready.record.id).failed
    monkeypatch.setattr(ground.session, "perform", perform)
    monkeypatch.setattr(launch_limits, "BEGIN_SECONDS", 0)
    with pytest.raises(SkytrainError, match="is not over"):
        prepared(ground, stubbed, s3_root)


class ClosedLid:
    """The requests of a launch whose computer sleeps before one of them, while `meanwhile` happens elsewhere."""

    def __init__(self, session: AwsSession, before: str, meanwhile: Callable[[], None]) -> None:
        self._perform, self._before, self._meanwhile = session.perform, before, meanwhile
        self.asleep, self.slept = False, False

    def __call__(self, call: Any, region: str | None = None) -> Any:
        if call.operation == self._before and not self.slept and not self.asleep:
            self.asleep = True
            self._meanwhile()
            self.asleep, self.slept = False, True
        return self._perform(call, region)


@pytest.mark.usefixtures("without_packages")
@pytest.mark.parametrize("before", ["CreateAutoScalingGroup", "SetDesiredCapacity"])
def test_a_launch_that_slept_while_a_colleague_launched_leaves_only_the_colleagues_machines(
    ground: Ground, stubbed: StubbedSession, s3_root: str, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    """Even where it sleeps after its last look at the store, and makes one more request when it wakes."""
    mine, told = prepared(ground, stubbed, s3_root, offer("g5.xlarge", 1)), list[str]()

    class Noted(Silent):
        def note(self, text: str) -> None:
            told.append(text)

    def colleague() -> None:
        monkeypatch.setattr(launch_limits, "BEGIN_SECONDS", 0)  # two minutes later
        start_launch(prepared(ground, stubbed, s3_root, offer("g5.xlarge", 1)), {}, Silent())

    monkeypatch.setattr(ground.session, "perform", ClosedLid(ground.session, before, colleague))
    with pytest.raises(SkytrainError, match="has been launched by someone else since"):
        start_launch(mine, {}, Noted())
    assert {name[-7:]: size for name, size in groups_of(ground).items()} == {"00002-0": 1}
    assert [one.failed for one in launches_of(mine.store, RUN)] == [True, False]
    assert "the launch failed: removing what it had created" in told


@pytest.mark.usefixtures("without_packages")
def test_a_launch_that_makes_its_requests_is_not_taken_over(
    ground: Ground, stubbed: StubbedSession, s3_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, refused = prepared(ground, stubbed, s3_root, offer("g5.xlarge", 1)), list[str]()

    def colleague() -> None:
        with pytest.raises(SkytrainError, match="may not be complete yet") as error:
            prepared(ground, stubbed, s3_root, offer("g5.xlarge", 1))
        refused.append(str(error.value))

    monkeypatch.setattr(ground.session, "perform", ClosedLid(ground.session, "SetDesiredCapacity", colleague))
    start_launch(mine, {}, Silent())
    assert refused and list(groups_of(ground).values()) == [1]


@pytest.mark.usefixtures("without_packages")
def test_terminals_and_machines_of_a_launch_that_was_superseded_ask_for_nothing(
    ground: Ground, stubbed: StubbedSession, s3_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = prepared(ground, stubbed, s3_root)
    record = start_launch(ready, {}, Silent())
    supersede_launch(ready.store, record, "00002")
    short = replace(record, groups=[replace(record.groups[0], nodes=2), *record.groups[1:]])
    later = ready.groups[0].launched_at + timedelta(days=1)
    assert try_next_offer(ground.session, ready.store, short, later) is None
    assert list(groups_of(ground).values()) == [1, 0]
    monkeypatch.setattr("skytrain.targets.ec2.target.open_session", lambda _: ground.session)
    request = NodeRequest(run=RUN, arguments=[], nodes=1, processes=1, launch=record.id)
    with pytest.raises(SkytrainError, match="was ended or superseded before this machine started"):
        Ec2Launcher().machines(config_of(ground, s3_root), request, "i-0", lambda _: None)
    assert list(groups_of(ground).values()) == [0, 0]


@pytest.mark.usefixtures("without_packages")
def test_a_terminal_that_slept_while_the_launch_was_stopped_tries_no_other_offer(
    ground: Ground, stubbed: StubbedSession, s3_root: str
) -> None:
    ready = prepared(ground, stubbed, s3_root)
    record = start_launch(ready, {}, Silent())
    short = replace(record, groups=[replace(record.groups[0], nodes=2), *record.groups[1:]], patience_seconds=0.0)
    keeper = LaunchKeeper(ground.session, ready.store, short)  # it lacks a machine
    ground.session.perform(rented.set_size(record.groups[0], 0))
    ready.store.write(stopped_key(record), b"{}")
    assert keeper() is None and list(groups_of(ground).values()) == [0, 0]


@pytest.mark.usefixtures("without_packages")
def test_the_machines_of_a_sweep_are_launched_all_or_none(
    ground: Ground, stubbed: StubbedSession, s3_root: str
) -> None:
    first = prepared(ground, stubbed, s3_root, offer("g5.xlarge", 1))
    [group] = first.record.groups
    record = replace(first.record, run="other", groups=[replace(group, name="other")])
    second = replace(first, record=record, groups=())  # has nothing to launch
    with pytest.raises(IndexError):
        start_launches([first, second], {}, Silent())
    assert groups_of(ground) == {} and read_launch(first.store, RUN, first.record.id).failed


@pytest.mark.usefixtures("without_packages", "default_signals")
def test_a_second_ctrl_c_does_not_stop_the_removal(
    ground: Ground, stubbed: StubbedSession, s3_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready, perform, told = prepared(ground, stubbed, s3_root), ground.session.perform, list[str]()

    class Noted(Silent):
        def note(self, text: str) -> None:
            told.append(text)

    def impatient(call: Any, region: str | None = None) -> Any:
        answer = perform(call, region) if call.operation == "SetDesiredCapacity" else None
        if call.mutates and call.operation.startswith(("SetDesired", "Delete")):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0)  # lets Python call its handler
        return answer or perform(call, region)

    monkeypatch.setattr(ground.session, "perform", impatient)
    with pytest.raises(KeyboardInterrupt):
        start_launch(ready, {}, Noted())
    assert groups_of(ground) == {} and read_launch(ready.store, RUN, ready.record.id).failed
    assert "still removing what the launch had created: what is left costs money" in told
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


class ShortPatience:
    """Two more tries, without a wait."""

    def __init__(self) -> None:
        self._tries = 2

    def failed(self) -> float | None:
        self._tries -= 1
        return 0.0 if self._tries >= 0 else None


@pytest.mark.usefixtures("without_packages")
def test_a_removal_whose_requests_are_not_answered_names_what_may_be_left(
    ground: Ground, stubbed: StubbedSession, s3_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready, perform, told, seen = prepared(ground, stubbed, s3_root), ground.session.perform, list[str](), list[str]()

    class Noted(Silent):
        def note(self, text: str) -> None:
            told.append(text)

    def no_answer(call: Any, region: str | None = None) -> Any:
        if call.operation.startswith("Delete"):
            seen.append(call.operation)
        if call.operation in ("SetDesiredCapacity", "DeleteAutoScalingGroup"):
            perform(call, region) if call.operation == "SetDesiredCapacity" else None
            raise AttributeError("'NoneType' object has no attribute 'get'")
        return perform(call, region)

    monkeypatch.setattr("skytrain.aws.removal.Patience", lambda _: ShortPatience())
    monkeypatch.setattr(ground.session, "perform", no_answer)
    with pytest.raises(AttributeError):
        start_launch(ready, {}, Noted())
    assert seen.count("DeleteLaunchTemplate") == 2 and seen.count("DeleteAutoScalingGroup") > 2  # tried again
    group = ready.record.groups[0]
    assert group.name in told[-1] and f"end them: skytrain stop {RUN} cloud=ec2" in told[-1]


@pytest.mark.parametrize(
    ("budget", "words"), [(3.0, "has cost \\$3.00 already: nothing is left"), (3.05, "hardly boot")]
)
def test_a_run_whose_budget_is_spent_is_not_launched_again(
    ground: Ground, stubbed: StubbedSession, s3_root: str, budget: float, words: str
) -> None:
    record_spend(launching.open_store(s3_root), RUN, 3.0)
    with pytest.raises(SkytrainError, match=words):
        prepared(ground, stubbed, s3_root, offer("g5.xlarge", 1, "on-demand"), budget_usd=budget)
    assert groups_of(ground) == {}


def test_the_kill_time_of_a_plan_is_cut_to_what_is_left_of_the_budget(
    ground: Ground, stubbed: StubbedSession, s3_root: str
) -> None:
    record_spend(launching.open_store(s3_root), RUN, 3.0)
    ready = prepared(ground, stubbed, s3_root, offer("g5.xlarge", 2, "on-demand"), budget_usd=5.0)
    [group] = ready.record.groups
    seconds = (datetime.fromisoformat(group.kill_at) - ready.groups[0].launched_at).total_seconds()
    affordable = 2.0 / (2 * group.usd_per_hour) * 3600
    assert affordable <= seconds + 60 and seconds <= affordable + 60  # whole minutes, rounded down


@pytest.mark.usefixtures("without_packages")
def test_the_next_offer_is_tried_when_the_first_gives_no_machines_for_too_long(
    ground: Ground, stubbed: StubbedSession, s3_root: str
) -> None:
    ready = prepared(ground, stubbed, s3_root)
    record, store = start_launch(ready, {}, Silent()), ready.store
    start = ready.groups[0].launched_at
    later = start + timedelta(seconds=record.patience_seconds + 1)
    assert try_next_offer(ground.session, store, record, later) is None  # it has its machine
    short = replace(record, groups=[replace(record.groups[0], nodes=2), *record.groups[1:]])
    assert try_next_offer(ground.session, store, short, start) is None  # not yet
    short = replace(short, launched_at=(start - timedelta(hours=1)).isoformat())
    said: list[str] = []
    waiting = Ec2Machines(ground.session, store, short, "i-0", said.append)
    waiting.lack_nodes(1, 2, record.patience_seconds - 1)  # this host has not waited long enough
    assert said == [] and list(groups_of(ground).values()) == [1, 0]
    waiting.lack_nodes(1, 2, record.patience_seconds)
    assert "trying 1 x g6.xlarge (on-demand)" in said[0]
    assert list(groups_of(ground).values()) == [0, 1]
    assert try_next_offer(ground.session, store, short, later + timedelta(days=1)) is None  # there is no third
    assert [one.id for one in launches_of(store, RUN)] == [record.id]


@pytest.mark.usefixtures("without_packages")
def test_unfit_machines_are_replaced_three_times_without_a_committed_step(
    ground: Ground, stubbed: StubbedSession, s3_root: str
) -> None:
    ready = prepared(ground, stubbed, s3_root)
    record, scaling = start_launch(ready, {}, Silent()), ground.session.client("autoscaling")
    seen, said = list[str](), list[str]()

    def newest() -> Ec2Machines:
        machines = scaling.describe_auto_scaling_instances()["AutoScalingInstances"]
        seen.append(machines[-1]["InstanceId"])
        return Ec2Machines(ground.session, ready.store, record, seen[-1], said.append)

    for _ in range(3):
        newest().replace_me("no EFA")
    last = newest()
    last.replace_me("no EFA")
    assert len(set(seen)) == 4 and "is not replaced, because too many machines were: no EFA" in said[-1]
    last.terminate_me()
    assert newest().keep_waiting() and len(set(seen)) == 4  # it keeps its place, and costs nothing
    assert "4 machines ended" in str(trouble(ground.session, ready.store, record))


@pytest.mark.usefixtures("without_packages")
def test_a_group_that_aws_starts_no_machine_for_says_why_and_what_to_do(
    ground: Ground, stubbed: StubbedSession, s3_root: str, scaling: ScalingStandIn
) -> None:
    ready = prepared(ground, stubbed, s3_root)
    scaling.room = lambda zone: 0
    record = start_launch(ready, {}, Silent())
    [name, *_] = [group.name for group in record.groups]

    def told(said: str, status: str = "Failed") -> str | None:
        scaling.activities[name] = [
            {
                "ActivityId": "1",
                "AutoScalingGroupName": name,
                "Description": f"Launching a new EC2 instance.  Status Reason: {said}",
                "Cause": "a difference between desired and actual capacity",
                "StartTime": datetime.now(UTC),
                "StatusCode": status,
                "StatusMessage": said,
                "instance": "",
            }
        ]
        return trouble(ground.session, ready.store, record)

    assert trouble(ground.session, ready.store, record) is None  # it may take a minute
    free = str(told("The specified instance type is not eligible for Free Tier. Launching EC2 instance failed."))
    assert "could not start a machine: The specified" in free and "paid plan" in free
    spot = str(told("Could not launch Spot Instances. InsufficientInstanceCapacity - There is no Spot capacity."))
    assert "There is no Spot capacity" in spot and "another zone of us-east-2" in spot
    assert str(told("Something new.")).endswith("Something new.")
    assert told("", status="InProgress") is None


@pytest.mark.usefixtures("without_packages")
def test_a_machine_that_ec2_ends_before_it_boots_has_ec2s_reason_and_what_to_do(
    ground: Ground, stubbed: StubbedSession, s3_root: str, scaling: ScalingStandIn
) -> None:
    ready = prepared(ground, stubbed, s3_root)
    record = start_launch(ready, {}, Silent())
    [machine] = scaling.waits
    ground.session.client("ec2").terminate_instances(InstanceIds=[machine])
    assert "neither the store nor a console says why" in str(why_ended(ground.session, ready.store, record))
    ended = ec2_backends["123456789012"]["us-east-2"].get_instance(machine)
    ended.state_reason = StateReason("Client.InternalError: Client error on launch", "Client.InternalError")
    said = str(why_ended(ground.session, ready.store, record))
    assert "of their launch: Client.InternalError: Client error on launch" in said and "key of the disks" in said
    assert "\n" not in said


@pytest.mark.usefixtures("without_packages")
def test_a_proven_machine_is_replaced_by_aws_and_its_replacement_must_prove_itself(
    ground: Ground, stubbed: StubbedSession, s3_root: str, scaling: ScalingStandIn
) -> None:
    ready = prepared(ground, stubbed, s3_root)
    record, ec2 = start_launch(ready, {}, Silent()), ground.session.client("ec2")
    [first] = scaling.waits
    machines = Ec2Machines(ground.session, ready.store, record, first, pytest.fail)
    assert machines.keep_waiting()
    machines.prove(10)
    machines.prove(10)  # its answer was lost
    assert not scaling.waits and not machines.keep_waiting()
    ec2.terminate_instances(InstanceIds=[first])
    [second] = scaling.waits
    ec2.terminate_instances(InstanceIds=[second])
    assert list(scaling.waits) == [second]  # nothing replaces it
    view, decided = Replacer(ground.session, ready.store, record, lambda _: None)()
    assert view.started == 1 and [grant.instance for grant in decided.grants] == [second]
    [third] = scaling.waits
    assert third != second and list(groups_of(ground).values()) == [1, 0]


@pytest.mark.usefixtures("without_packages")
def test_machines_are_counted_behind_hundreds_of_failures_of_a_group_without_capacity(
    ground: Ground, stubbed: StubbedSession, s3_root: str, scaling: ScalingStandIn
) -> None:
    ready = prepared(ground, stubbed, s3_root)
    record = start_launch(ready, {}, Silent())
    history = scaling.activities[record.groups[0].name]
    failed = {**history[0], "Description": "Launching a new EC2 instance.  Status Reason: no capacity"}
    history += [{**failed, "StatusCode": "Failed", "EndTime": failed["StartTime"]}] * 250
    assert [machine.instance for machine in started_machines(ground.session, record)] == list(scaling.waits)


@pytest.mark.usefixtures("without_packages")
def test_a_terminal_replaces_dead_machines_and_ends_a_launch_whose_machines_all_die(
    ground: Ground, stubbed: StubbedSession, s3_root: str, scaling: ScalingStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rented, "OFFER_SECONDS", 0.0)
    denied = "fatal error: An error occurred (403) when calling the HeadObject operation: Forbidden"
    scaling.console = lambda instance: f"boots\n{denied}\n{ENDS}it could not read s3://b/bundles/1\n"
    ready = prepared(ground, stubbed, s3_root)
    record, ec2 = start_launch(ready, {}, Silent()), ground.session.client("ec2")
    follower = RunFollower(config_of(ground, s3_root), RUN, ground.session, launched=True)
    keeper = LaunchKeeper(ground.session, ready.store, record)
    started = set[str]()
    while scaling.waits:
        started |= set(scaling.waits)
        ec2.terminate_instances(InstanceIds=list(scaling.waits))
        keeper()
    assert len(started) == 4 <= most_machines(1)
    assert groups_of(ground) == {}
    end = [follower.end_of(follower.look()) for _ in range(2)][-1]
    assert end is not None and end.exit_code == 12
    assert end.reason.startswith("4 machines ended within 1s of their launch: it could not read s3://b/bundles/1")
    assert denied in end.reason and "last console lines" in end.reason
    assert (statuses.find_status(ready.store, RUN).state, statuses.find_status(ready.store, RUN).reason) == (
        "failed",
        end.reason,
    )


@pytest.mark.usefixtures("without_packages")
def test_a_launch_without_a_hook_is_seen_and_given_back(
    ground: Ground, stubbed: StubbedSession, s3_root: str, scaling: ScalingStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = requests.scaling_group
    monkeypatch.setattr(
        requests,
        "scaling_group",
        lambda group: Call(
            "autoscaling",
            "CreateAutoScalingGroup",
            {k: v for k, v in body(group).parameters.items() if k != "LifecycleHookSpecificationList"},
        ),
    )
    ready = prepared(ground, stubbed, s3_root)
    record, said = start_launch(ready, {}, Silent()), list[str]()
    [one] = ground.session.client("autoscaling").describe_auto_scaling_instances()["AutoScalingInstances"]
    assert one["LifecycleState"] == "InService" and not scaling.waits
    machines = Ec2Machines(ground.session, ready.store, record, one["InstanceId"], said.append)
    assert not machines.keep_waiting() and said == []
    assert machines.lack_nodes(0, 1, 0.0) is None and trouble(ground.session, ready.store, record) is None
    machines.replace_me("no EFA")
    assert list(groups_of(ground).values()) == [1, 0]  # AWS replaces it
    assert machines.set_desired(0) and list(groups_of(ground).values()) == [0, 0]


@pytest.mark.usefixtures("without_packages")
def test_a_node_that_lacks_others_ends_the_run_when_no_machine_may_start_any_more(
    ground: Ground, stubbed: StubbedSession, s3_root: str, scaling: ScalingStandIn
) -> None:
    ready = prepared(ground, stubbed, s3_root)
    record, ec2 = start_launch(ready, {}, Silent()), ground.session.client("ec2")
    node = Ec2Machines(ground.session, ready.store, record, "i-0", lambda _: None)
    answers = []
    for _ in range(4):
        ec2.terminate_instances(InstanceIds=list(scaling.waits))
        answers.append(node.lack_nodes(1, 2, 0.0))
    assert answers[:3] == [None] * 3
    assert str(answers[3]).startswith("4 machines have started since the last committed step: 4 machines ended")


def smoked(ground: Ground, stubbed: StubbedSession, root: str) -> PreparedLaunch:
    quotas(stubbed, (G_SPOT, 96.0))
    made, config = replace(plan(offer("g5.xlarge", 1)), code=PlannedCode("0", source_hash())), config_of(ground, root)
    job = PlannedJob(Composed(config, {}, {}), made, keep_seconds=1800.0)
    smoke = smoke_job(
        job, "20M", lambda words: Composed(replace(config, run=words[0].removeprefix("run=")), {}, {}, tuple(words))
    )
    return prepare_launch(job, replace(ground.preflight(made), config=config), lambda _: None, smoke)


@pytest.mark.usefixtures("without_packages")
@pytest.mark.parametrize("exit_code", [0, 1])
def test_a_run_starts_only_after_its_smoke_run_has_ended_well(
    ground: Ground, stubbed: StubbedSession, s3_root: str, exit_code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = smoked(ground, stubbed, s3_root)
    assert ready.first is not None and ready.first.run == f"{RUN}-smoke"
    assert ready.first.record.over_at < ready.record.over_at and "starts only if it ends well" in smoke_text(ready)
    command = ready.first.groups[0].boot.command
    batch = config_of(ground, s3_root).trainer.batch_tokens
    assert f"trainer.stop_at_step={-(-20_000_000 // batch)}" in command
    assert command[command.index("--keep-on-failure") + 1] == "1800s"
    record = start_launch(ready, {}, Silent())
    first = read_launch(ready.store, f"{RUN}-smoke", "00001")
    own, smoke = record.groups[0].name, first.groups[0].name
    assert groups_of(ground) == {own: 0, smoke: 1}
    assert f", after {RUN}-smoke" in str(statuses.find_status(ready.store, RUN).host)
    follower = RunFollower(config_of(ground, s3_root), RUN, ground.session)
    assert [follower.end_of(follower.look()) for _ in range(3)] == [None] * 3  # who watches it waits for that one, too
    monkeypatch.setattr(launch_limits, "BEGIN_SECONDS", 0)
    with pytest.raises(SkytrainError, match="is not over"):  # though the run has no machine yet
        prepared(ground, stubbed, s3_root)
    for node in ("i-0", "i-1"):
        machines = Ec2Machines(ground.session, ready.store, first, node, lambda _: None)
        machines.end_run(exit_code)
        machines.set_desired(0)
    if exit_code == 0:
        assert groups_of(ground) == {own: 1, smoke: 0} and wait_for_start(ready.store, record)
        started = datetime.fromtimestamp(ready.store.stat(started_key(record)).modified, UTC)  # type: ignore[union-attr]
        assert current_offer(ready.store, record) == (0, started)
    else:
        assert groups_of(ground) == {smoke: 0} and not wait_for_start(ready.store, record)
        assert statuses.find_status(ready.store, RUN).state == "launch failed"
        assert follower.end_of(follower.look()) == RunEnd(1, "launch failed: nothing of it is left")


@pytest.mark.usefixtures("without_packages")
def test_a_terminal_that_is_killed_before_it_launches_the_smoke_run_does_not_block_the_run(
    ground: Ground, stubbed: StubbedSession, s3_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_launch(replace(smoked(ground, stubbed, s3_root), first=None), {}, Silent())
    monkeypatch.setattr(launch_limits, "BEGIN_SECONDS", 0)
    assert smoked(ground, stubbed, s3_root).record.id == "00002"


def test_a_smoke_run_is_shorter_than_the_run_and_names_its_limits(ground: Ground, s3_root: str) -> None:
    job = PlannedJob(Composed(config_of(ground, s3_root), {}, {}), plan(offer("g5.xlarge", 1)))
    for tokens, problem in (("20 apples", "--smoke 20 apples"), ("900B", "of the run's"), ("0", "more than 0")):
        with pytest.raises(SkytrainError, match=problem):
            smoke_job(job, tokens, lambda words: pytest.fail("composed"))


def test_a_quota_of_zero_ends_with_exit_code_4_before_anything_is_created(
    ground: Ground, stubbed: StubbedSession, s3_root: str
) -> None:
    quotas(stubbed, (G_SPOT, 0.0))
    made = replace(plan(offer("g5.xlarge", 1)), code=PlannedCode("0", source_hash()))
    checked = ground.preflight(made, target="ec2")
    config = replace(checked.config, run=RUN, store=replace(checked.config.store, root=s3_root))
    with pytest.raises(CloudError) as error:
        prepare_launch(PlannedJob(Composed(config, {}, {}), made), replace(checked, config=config), lambda _: None)
    assert error.value.exit_code == 4 and groups_of(ground) == {}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"root": "skytrain-store"}, "rented machines reach only a bucket"),
        ({"target": None}, "add cloud=ec2"),
        ({"region": "us-west-2"}, "the plan is for us-east-2"),
    ],
)
def test_a_launch_to_a_place_that_cannot_work_is_refused(ground: Ground, changes: Any, words: str) -> None:
    made = replace(plan(offer("g5.xlarge", 1)), code=PlannedCode("0", source_hash()))
    checked = ground.preflight(made)
    cloud = replace(checked.config.cloud, target="ec2") if "target" not in changes else checked.config.cloud
    cloud = replace(cloud, region=changes.get("region", cloud.region))
    store = replace(checked.config.store, root=changes.get("root", "s3://bucket/demo"))
    config = replace(checked.config, run=RUN, cloud=cloud, store=store)
    with pytest.raises(SkytrainError, match=words):
        prepare_launch(PlannedJob(Composed(config, {}, {}), made), replace(checked, config=config), lambda _: None)


def test_settings_that_are_not_the_plans_are_refused(ground: Ground, s3_root: str) -> None:
    made = replace(plan(offer("g5.xlarge", 1)), code=PlannedCode("0", source_hash()), config={"trainer": {"steps": 5}})
    composed = Composed(config_of(ground, s3_root), {"trainer": {"steps": 6}, "cloud": {"target": "ec2"}}, {})
    with pytest.raises(SkytrainError, match="the settings under trainer are not those of the plan"):
        prepare_launch(
            PlannedJob(composed, made), replace(ground.preflight(made), config=composed.config), lambda _: None
        )


def test_a_plan_that_has_expired_is_refused_with_exit_code_3(ground: Ground, s3_root: str) -> None:
    old = plan(offer("g5.xlarge", 1), made_at=datetime.now(UTC) - timedelta(days=2))
    made, config = replace(old, code=PlannedCode("0", source_hash())), config_of(ground, s3_root)
    with pytest.raises(CloudError, match="expired") as error:
        prepare_launch(
            PlannedJob(Composed(config, {}, {}), made), replace(ground.preflight(made), config=config), lambda _: None
        )
    assert error.value.exit_code == 3


def test_the_status_of_preparing_is_what_its_machine_says(tmp_path: Path) -> None:
    store, at = open_store(str(tmp_path)), "2026-11-15T00:00:00+00:00"
    group = LaunchedGroup(
        name="g",
        zone="us-east-2a",
        instance_type="c7i.large",
        market="spot",
        nodes=1,
        usd_per_hour=0.02,
        kill_at="2026-11-16T00:00:00+00:00",
        placement_group=False,
    )
    record = LaunchRecord(
        id="00002",
        run="p",
        verb="prepare",
        launched_at=at,
        launched_by="ada",
        account="1",
        region="us-east-2",
        patience_seconds=900.0,
        plan_hash="",
        image="ami-1",
        bundle="",
        words=[],
        groups=[group],
    )
    create_launch(store, record)

    def state() -> tuple[str, str | None]:
        found = statuses.find_status(store, "p")
        return found.state, found.reason

    def over(number: int, launch: str, code: int) -> None:
        end = {"by": "i", "reason": "it is over", "exit_code": code, "saves": False, "launch": launch}
        store.write(generation_key("p", number), b"{}")
        store.write(generation_key("p", number, "over"), json.dumps(end).encode())

    assert state() == ("launched", None)
    over(1, "00001", 1)  # of an earlier launch
    assert state() == ("launched", None)
    store.write(generation_key("p", 2), b"{}")
    assert state() == ("preparing", None)
    over(2, "00002", 2)
    assert state() == ("failed", "it is over")
    over(3, "00002", 0)
    assert state() == ("prepared", None)


def test_a_damaged_launch_is_named_and_hides_no_other_run(ground: Ground, s3_root: str) -> None:
    config, store = config_of(ground, s3_root), launching.open_store(s3_root)
    group = LaunchedGroup(
        name="g",
        zone="us-east-2a",
        instance_type="g5.xlarge",
        market="spot",
        nodes=1,
        usd_per_hour=0.5,
        kill_at="2126-11-16T00:00:00+00:00",
        placement_group=False,
    )
    at = "2026-11-15T00:00:00+00:00"
    create_launch(
        store,
        LaunchRecord(
            id="00001",
            run=RUN,
            verb="train",
            launched_at=at,
            launched_by="ada",
            account="1",
            region="us-east-2",
            patience_seconds=9.0,
            plan_hash="",
            image="ami-1",
            bundle="",
            words=[],
            groups=[group],
        ),
    )
    for body in (b"", b'{"id": "00001"}', store.read(f"runs/{RUN}/launches/00001.json").replace(b'"groups"', b'"g"')):
        store.write("runs/bad/launches/00001.json", body)
        assert {one.run: one.state for one in statuses.status(config, None)} == {RUN: "launched", "bad": "damaged"}
        assert collecting._active_runs(config, Silent()) == {RUN: True, "bad": True}
        with pytest.raises(DamagedRecord, match=r"runs/bad/launches/00001.json is damaged") as error:
            statuses.find_status(store, "bad")
        assert error.value.exit_code == 9


class Pieces:
    """A source of files that are where `urls` say."""

    def __init__(self, urls: list[str]) -> None:
        self.urls = urls

    def pieces(self) -> list[InputFile]:
        return [InputFile(url.rpartition("/")[2], url, 1000) for url in self.urls]


def test_the_work_of_preparing_follows_from_the_bytes_of_the_source_and_the_target() -> None:
    source = f"data.source.target={__name__}.Pieces"
    web = "data.source.urls=[https://x.org/a.jsonl.gz,https://x.org/b.jsonl]"
    config = compose(["data=custom", "data.name=mine", source, web]).config
    assert prepare_work(config) == PrepareWork(4000.0, 2000.0, f"tokens/{config.data.name}")
    some = compose(
        ["data=custom", "data.name=mine", source, web, "data.target_tokens=60", "data.validation_fraction=0"]
    ).config
    share = 60 * some.data.bytes_per_token / 0.6 / 4000.0
    assert prepare_work(some).stored_bytes == pytest.approx(2000.0 * share)
    with pytest.raises(SkytrainError, match="is a file of this computer"):
        prepare_work(compose(["data=custom", "data.name=mine", source, "data.source.urls=[/data/a.jsonl]"]).config)
    with pytest.raises(SkytrainError, match="machines of this closed network cannot reach"):
        prepare_work(replace(config, cloud=replace(config.cloud, closed_network=True)))


IMAGE = ImagePython("3.12", PLATFORMS, {"torch": "2.12.0"})


def test_a_plug_in_module_that_is_not_found_is_named() -> None:
    with pytest.raises(SkytrainError, match="'no_such_module' cannot be found"):
        bundle_of(BundleContents((), ("no_such_module.Model",), (), IMAGE))


@pytest.mark.usefixtures("without_packages")
def test_an_upload_that_was_cut_off_is_repeated_and_a_complete_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plugged_in_for_launch.py").write_text("class Model: ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    store, contents = (
        open_store(str(tmp_path / "store")),
        BundleContents((), ("plugged_in_for_launch.Model",), (), IMAGE),
    )
    upload, sent = store.upload, list[str]()

    def cut_off(path: Path, key: str, progress: Any = None) -> str:
        sent.append(path.name)
        if len(sent) == 2:
            raise StoreUnreachable("write", key, "the connection was reset")
        return upload(path, key, progress)

    monkeypatch.setattr(store, "upload", cut_off)
    with pytest.raises(StoreUnreachable):
        make_bundle(store, contents, Silent())
    bundle = make_bundle(store, contents, Silent())
    assert store.exists(f"{bundle.key}/SHA256SUMS") and len(sent) == 4  # Skytrain and the plug-ins, twice
    assert make_bundle(store, contents, Silent()) == bundle and len(sent) == 4
    (tmp_path / "plugged_in_for_launch.py").write_text("class Model: x = 1\n")
    assert bundle_of(contents).key != bundle.key
