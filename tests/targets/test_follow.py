"""The terminal that has launched a run: what it shows of machines and offers, and what it does without capacity."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from skytrain.cli.screen import follow_launch
from skytrain.config import compose
from skytrain.jobs import generation_key
from skytrain.report import view_line, view_rows
from skytrain.runs import LaunchRecord, Silent, launch_key, launches_of, read_spend
from skytrain.runs.launches import _body, order_key
from skytrain.storage import Store
from skytrain.targets import RunFollower, RunView, follow as following
from skytrain.targets.ec2.launch import start_launch
from skytrain.targets.ec2.machines import LaunchKeeper, set_size
from skytrain.targets.ec2.target import _follow_first

from .conftest import StubbedSession
from .ground import Ground
from .test_launch import RUN, config_of, groups_of, prepared, s3_root, without_packages  # noqa: F401
from .test_launch_command import Typed, typed  # noqa: F401


class Launched:
    """A run that was just launched, with the first offer's machine and a fallback."""

    def __init__(self, ground: Ground, stubbed: StubbedSession, root: str) -> None:
        self.ready = prepared(ground, stubbed, root)
        self.record: LaunchRecord = start_launch(self.ready, {}, Silent())
        self.ground, self.store, self.config = ground, self.ready.store, config_of(ground, root)

    def follower(self, *, launched: bool = True) -> RunFollower:
        record = self.record if launched else None
        return RunFollower(self.config, RUN, self.ground.session, launched=launched, record=record)


@pytest.fixture
def launched(
    ground: Ground,
    stubbed: StubbedSession,
    s3_root: str,  # noqa: F811
    without_packages: None,  # noqa: F811
) -> Launched:
    return Launched(ground, stubbed, s3_root)


def test_a_machine_that_boots_the_offer_its_price_and_the_kill_time_are_shown(launched: Launched) -> None:
    view = launched.follower().look()
    [node], rows = view.nodes, dict(view_rows(view))
    assert node.state == "boots" and node.machine.startswith("i-")
    assert rows["run"] == f"{RUN}: 0 of 1 node ready" and rows["node"].startswith(f"{node.machine} boots")
    assert rows["machines"].startswith("1 x g5.xlarge (spot) in us-east-2") and rows["machines"].endswith(
        "offer 1 of 2"
    )
    assert rows["kill time"].startswith(launched.record.groups[0].kill_at) and rows["planned"].startswith("$")
    assert f"kill time {launched.record.groups[0].kill_at}" in view_line(view)
    assert view.status.usd is not None  # it costs money before it registers


def test_the_terminal_tries_the_next_offer_after_the_patience_and_once_a_minute(
    launched: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = [0.0]
    monkeypatch.setattr(following.time, "monotonic", lambda: seconds[0])
    first, *others = launched.record.groups
    long_ago = (datetime.now(UTC) - timedelta(hours=2)).isoformat()
    record = replace(launched.record, groups=[replace(first, nodes=2), *others], launched_at=long_ago)
    turns = LaunchKeeper(launched.ground.session, launched.store, record)
    assert turns() is None  # one of two machines is there; hours after the launch it may be a replacement
    seconds[0] = record.patience_seconds - 1
    assert turns() is None and list(groups_of(launched.ground).values()) == [1, 0]
    seconds[0] += 30
    assert turns() is None  # asked a moment ago
    seconds[0] += 60
    assert "trying 1 x g6.xlarge (on-demand)" in str(turns())
    assert list(groups_of(launched.ground).values()) == [0, 1]
    assert dict(view_rows(launched.follower().look()))["machines"].endswith("offer 2 of 2")
    seconds[0] += 3600
    assert turns() is None  # the second offer has its machine
    assert launched.follower()._try_next_offer is not None
    assert launched.follower(launched=False)._try_next_offer is None


def test_a_terminal_grows_and_ends_no_group_that_a_machine_has_written_into_the_record_of_its_launch(
    launched: Launched,
) -> None:
    """A stage's machines may write the record of the stage after it, which the terminal then follows."""
    first, second = launched.record.groups
    launched.ground.session.client("autoscaling").create_auto_scaling_group(
        AutoScalingGroupName="somebody-elses",
        LaunchTemplate={"LaunchTemplateName": first.name},
        AvailabilityZones=[first.zone],
        MinSize=0,
        MaxSize=9,
        DesiredCapacity=1,
    )
    lie = replace(launched.record, groups=[replace(first, nodes=2), replace(second, name="somebody-elses", nodes=3)])
    launched.store.write(launch_key(RUN, lie.id), _body(replace(lie, patience_seconds=0.0)))
    launched.store.delete(order_key(RUN, lie.id))  # as of a launch of an earlier version
    before = groups_of(launched.ground)

    def show(follower: RunFollower, detached: str) -> None:
        assert follower._try_next_offer is not None and follower._try_next_offer() is None

    _follow_first(launched.config, replace(launched.ready, first=launched.ready), show, print)
    assert groups_of(launched.ground) == before and before["somebody-elses"] == 1


def end(store: Store, launch: str, code: int, run: str = RUN) -> None:
    store.write(generation_key(run, 1), b'{"members": ["i-0.a"]}')
    body = f'{{"by": "i-0.a", "reason": "the run is over", "exit_code": {code}, "saves": false, "launch": "{launch}"}}'
    store.write(generation_key(run, 1, "over"), body.encode())


def test_the_end_of_an_earlier_launch_is_not_the_end_of_this_one(launched: Launched) -> None:
    follower = launched.follower()
    end(launched.store, "00000", 0)
    assert follower.end_of(follower.look()) is None
    assert dict(view_rows(follower.look()))["run"] == f"{RUN}: 0 of 1 node ready"
    end(launched.store, launched.record.id, 6)
    view = follower.look()
    ended = follower.end_of(view)
    assert ended is not None and (ended.exit_code, ended.reason) == (6, "the run is over")
    assert dict(view_rows(view))["run"] == f"{RUN}: over, exit code 6"


def test_a_launch_whose_machines_have_all_failed_to_boot_ends_the_view(launched: Launched) -> None:
    follower = launched.follower()
    launched.store.write(f"runs/{RUN}/launches/{launched.record.id}/boot-failures/i-0.log", b"no space left on device")
    for group in launched.record.groups:
        launched.ground.session.client("autoscaling").set_desired_capacity(
            AutoScalingGroupName=group.name, DesiredCapacity=0
        )
    view: RunView = follower.look()
    assert follower.end_of(view) is None  # it is asked twice
    ended = follower.end_of(view)
    assert ended is not None and ended.exit_code == 12
    assert "1 failed to boot, see" in ended.reason and "boot-failures" in ended.reason


def test_when_the_view_ends_the_last_machines_are_counted_while_ec2_knows_them(launched: Launched) -> None:
    follower, screen = launched.follower(), Screen()
    end(launched.store, launched.record.id, 0)
    for group in launched.record.groups:
        launched.ground.session.perform(set_size(group, 0))
    assert follower.follow(screen).exit_code == 0
    [count] = read_spend(launched.store, RUN).counts.values()
    assert count.seconds >= 60


class Screen:
    def show(self, view: RunView) -> None:
        return

    def note(self, text: str) -> None:
        raise AssertionError(text)


def test_after_the_kill_time_the_view_ends(launched: Launched) -> None:
    past = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    record = launches_of(launched.store, RUN)[-1]
    over = replace(record, groups=[replace(group, kill_at=past) for group in record.groups])
    launched.store.write(order_key(RUN, record.id), _body(over))
    follower = launched.follower(launched=False)
    view = replace(follower.look(), nodes=())
    ended = follower.end_of(view)
    assert ended is not None and ended.exit_code == 12 and "kill time" in ended.reason


def test_a_launch_is_followed_with_its_exit_code_and_ctrl_c_detaches(
    typed: Typed,  # noqa: F811
    ground: Ground,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def detach(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("skytrain.cli.screen.pause", detach)
    assert typed("--plan", "plan.json", "cloud=ec2", "--yes", "--follow") == 0
    shown = capsys.readouterr()
    assert "nodes: 1 boots" in shown.out and "detached: gpt2-typed continues without this terminal" in shown.err
    next_commands = [
        "status gpt2-typed cloud=ec2 --watch",
        "logs gpt2-typed cloud=ec2 --follow",
        "stop gpt2-typed cloud=ec2",
    ]
    assert shown.out.splitlines()[-3:] == [f"  skytrain {command}" for command in next_commands]
    assert len(groups_of(ground)) == 1
    end(typed.store, "00001", 6, "gpt2-typed")
    ec2 = ground.session.client("ec2")

    def give_back(_: float) -> None:
        ids = [one["InstanceId"] for each in ec2.describe_instances()["Reservations"] for one in each["Instances"]]
        ec2.terminate_instances(InstanceIds=ids)

    monkeypatch.setattr("skytrain.cli.screen.pause", give_back)
    follower = RunFollower(compose(["cloud=ec2"]).config, "gpt2-typed", ground.session, launched=True)
    assert follow_launch(follower) == 6
    shown = capsys.readouterr()
    assert "gpt2-typed: the run is over (exit code 6)" in shown.out
    assert "by EC2's own times" in shown.out.splitlines()[-5]  # it waits for the machines' end, and says what they cost
