"""`skytrain launch pipeline`: stages that start one another, one budget for all of them, and what is left out."""

from __future__ import annotations

import base64
import json
import re
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from skytrain.aws import Call, CloudError
from skytrain.cli.main import main
from skytrain.config import Composed, SkytrainError, source_hash
from skytrain.jobs import NodeRequest
from skytrain.planning import Plan
from skytrain.planning.plan_file import PlannedCode
from skytrain.runs import (
    LaunchedStage,
    PipelineRecord,
    Silent,
    launch_starts,
    pipeline_ledger,
    read_launch,
    write_billed,
    write_pipeline,
)
from skytrain.storage import open_store
from skytrain.targets import PlannedJob, find_status, ledger_rows
from skytrain.targets.account import machines_of
from skytrain.targets.ec2.launch import PreparedLaunch, prepare_stages, start_launch
from skytrain.targets.ec2.machines import Ec2Machines, set_size
from skytrain.targets.ec2.target import Ec2Launcher
from skytrain.targets.stopping import stop

from .conftest import StubbedSession, use_session
from .ground import Ground
from .plans import cpu_offer, offer, plan
from .test_checks import G_SPOT, quotas
from .test_launch import config_of, groups_of, s3_root, without_packages  # noqa: F401

RUN = "gpt2-whole"
STANDARD_SPOT = "L-34B43A08"


def pipeline_words(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["skytrain", "launch", "pipeline", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.fixture
def stages(
    ground: Ground,
    stubbed: StubbedSession,
    s3_root: str,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    without_packages: None,  # noqa: F811
) -> PreparedLaunch:
    """The last of three stages, checked against the account. Nothing is created."""
    use_session(monkeypatch, ground.open)
    quotas(stubbed, (STANDARD_SPOT, 96.0), (G_SPOT, 96.0), (G_SPOT, 96.0))
    config = replace(config_of(ground, s3_root), run=RUN)
    plans: dict[str, Plan] = {
        "prepare": plan(cpu_offer(kill_after_seconds=3600.0)),
        "train": plan(offer("g5.xlarge", 1, kill_after_seconds=7200.0)),
        "finish": plan(offer("g5.xlarge", 1, kill_after_seconds=1800.0)),
    }
    jobs = [
        PlannedJob(
            Composed(replace(config, run=None if job == "prepare" else RUN), {}, {}),
            replace(made, job=job, code=PlannedCode("0", source_hash())),  # type: ignore[arg-type]
        )
        for job, made in plans.items()
    ]
    return prepare_stages(jobs, lambda _: None)


def in_order(last: PreparedLaunch) -> list[PreparedLaunch]:
    return [*(in_order(last.first) if last.first else []), last]


def test_each_stage_waits_for_the_one_before_and_has_a_later_kill_time(stages: PreparedLaunch, ground: Ground) -> None:
    prepare, train, finish = in_order(stages)
    assert (train.run, finish.run) == (RUN, f"{RUN}-finish") and prepare.run.startswith("prepare-")
    assert [one.record.verb for one in (prepare, train, finish)] == ["prepare", "train", "finish"]
    waits = [(one.record.over_at - prepare.record.over_at).total_seconds() for one in (train, finish)]
    assert waits == pytest.approx([7200, 9000], abs=120)  # kill times are whole minutes
    start_launch(stages, {}, Silent())
    sizes = groups_of(ground)
    assert sizes == {one.record.groups[0].name: int(one is prepare) for one in (finish, train, prepare)}
    assert f"after {prepare.run}" in str(find_status(train.store, RUN).host)


def test_a_stage_that_ends_well_starts_the_next_one_only(stages: PreparedLaunch, ground: Ground) -> None:
    start_launch(stages, {}, Silent())
    prepare, train, finish = (read_launch(stages.store, one.run, "00001") for one in in_order(stages))
    ended = Ec2Machines(ground.session, stages.store, prepare, "i-0", lambda _: None)
    ended.end_run(0)
    ended.set_desired(0)
    assert groups_of(ground)[train.groups[0].name] == 1 and groups_of(ground)[finish.groups[0].name] == 0
    Ec2Machines(ground.session, stages.store, train, "i-1", lambda _: None).end_run(0)
    assert groups_of(ground)[finish.groups[0].name] == 1


def test_a_stage_that_aws_did_not_start_is_asked_for_again(
    stages: PreparedLaunch, ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_launch(stages, {}, Silent())
    prepare, train, _ = (read_launch(stages.store, one.run, "00001") for one in in_order(stages))
    perform, told = ground.session.perform, list[str]()

    def throttled(call: Call, region: str | None = None) -> Any:
        if call.operation == "SetDesiredCapacity":
            raise CloudError("Rate exceeded", fix="wait", code="Throttling")
        return perform(call, region)

    ended = Ec2Machines(ground.session, stages.store, prepare, "i-0", told.append)
    monkeypatch.setattr(ground.session, "perform", throttled)
    assert not ended.end_run(0) and launch_starts(stages.store, train) is None
    monkeypatch.setattr(ground.session, "perform", perform)
    assert ended.end_run(0) and launch_starts(stages.store, train)
    assert groups_of(ground)[train.groups[0].name] == 1


def test_a_stage_that_fails_removes_all_that_wait(stages: PreparedLaunch, ground: Ground) -> None:
    start_launch(stages, {}, Silent())
    prepare, train, finish = (read_launch(stages.store, one.run, "00001") for one in in_order(stages))
    Ec2Machines(ground.session, stages.store, prepare, "i-0", lambda _: None).end_run(1)
    assert set(groups_of(ground)) == {prepare.groups[0].name}
    assert [launch_starts(stages.store, one) for one in (train, finish)] == [False, False]


def test_stop_withdraws_every_stage_that_waits(stages: PreparedLaunch, ground: Ground, s3_root: str) -> None:  # noqa: F811
    start_launch(stages, {}, Silent())
    first = in_order(stages)[0].run
    stop(replace(config_of(ground, s3_root), run=None), first, 0.0, Silent())
    assert [read_launch(stages.store, one.run, "00001").failed for one in in_order(stages)[1:]] == [True, True]


def test_a_stage_that_is_stopped_while_its_machines_are_asked_for_has_none(
    stages: PreparedLaunch,
    ground: Ground,
    s3_root: str,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start_launch(stages, {}, Silent())
    prepare, train, _ = (read_launch(stages.store, one.run, "00001") for one in in_order(stages))
    perform, told = ground.session.perform, list[str]()

    def stopped_meanwhile(call: Call, region: str | None = None) -> Any:
        if call.operation == "SetDesiredCapacity" and call.parameters["DesiredCapacity"]:
            stop(replace(config_of(ground, s3_root), run=None), prepare.run, 0.0, Silent())
        return perform(call, region)

    monkeypatch.setattr(ground.session, "perform", stopped_meanwhile)
    assert Ec2Machines(ground.session, stages.store, prepare, "i-0", told.append).end_run(0)
    assert groups_of(ground)[train.groups[0].name] == 0 and launch_starts(stages.store, train) is False
    assert told[-1] == f"{RUN} was stopped: it is not started"


def test_machines_of_a_stage_that_was_withdrawn_are_found_by_stop_and_end_themselves(
    stages: PreparedLaunch,
    ground: Ground,
    s3_root: str,  # noqa: F811
) -> None:
    """AWS was asked for them, and then the machine that asked was lost."""
    start_launch(stages, {}, Silent())
    prepare, train, _ = (read_launch(stages.store, one.run, "00001") for one in in_order(stages))
    ground.session.perform(set_size(train.groups[0], 1))
    config = replace(config_of(ground, s3_root), run=None)
    stop(config, prepare.run, 0.0, Silent())
    found = machines_of(config, ground.session, prepare.run, pytest.fail)
    assert train.groups[0].name in {each.id for each in found}
    node = NodeRequest(run=RUN, arguments=[], nodes=1, processes=1, launch=train.id)
    with pytest.raises(SkytrainError, match="was ended or superseded before this machine started"):
        Ec2Launcher().machines(config, node, "i-0", lambda _: None)
    assert groups_of(ground)[train.groups[0].name] == 0


def test_a_failed_launch_of_the_first_stage_leaves_no_stage(
    stages: PreparedLaunch, ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    perform = ground.session.perform

    def without_capacity(call: Any, *more: Any) -> Any:
        if call.operation == "SetDesiredCapacity":
            raise SkytrainError("no")
        return perform(call, *more)

    monkeypatch.setattr(ground.session, "perform", without_capacity)
    with pytest.raises(SkytrainError, match="no"):
        start_launch(stages, {}, Silent())
    assert groups_of(ground) == {}
    assert all(read_launch(stages.store, one.run, "00001").failed for one in in_order(stages))


def test_the_ledger_is_what_ec2_says_when_all_machines_have_ended(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    stage = LaunchedStage(name="train", run=RUN, machines="1 x g5.xlarge (spot)", hours=1.0, usd=2.0, most_usd=9.0)
    write_pipeline(store, PipelineRecord(RUN, 10.0, [stage]))
    counts = {"i-1 2026": {"usd": 2.0, "seconds": 3613.0, "boot": "", "boot_seconds": 3613.0}}
    counts |= {"i-2 2026": {"usd": 1.0, "seconds": 1800.0, "boot": "", "boot_seconds": 1800.0}}
    spend = {"usd": 3.0, "usd_per_hour": 2.0, "machines": counts}
    store.write(f"runs/{RUN}/meeting/boot/i-1.json", json.dumps({"spend": spend}).encode())
    write_billed(store, RUN, "i-1", 3600.0, 1.9)
    [cost] = pipeline_ledger(store, PipelineRecord(RUN, 10.0, [stage]))
    assert (cost.machines, cost.seconds, cost.usd) == (2, 5413.0, 3.0)  # it does not fall while one of them runs
    write_billed(store, RUN, "i-2", 1790.0, 0.9)
    [cost] = pipeline_ledger(store, PipelineRecord(RUN, 10.0, [stage]))
    assert (cost.machines, cost.seconds, cost.usd) == (2, 5390.0, pytest.approx(2.8))
    assert ledger_rows(store, RUN)[-1] == ("all", "", "", "1.50", "2.00", "2.80", "10.00")


def commands(requests: list[dict[str, Any]]) -> dict[str, str]:
    """The command of each stage's machines, by the stage's job."""
    found = {}
    for one in requests:
        if one["operation"] == "CreateLaunchTemplate":
            script = base64.b64decode(one["parameters"]["LaunchTemplateData"]["UserData"]).decode()
            [command] = re.findall(r"^ExecStart=\S+ (.*)$", script, re.MULTILINE)
            job = re.search(r"\"--job\" \"(\w+)\"", command)
            found[job[1] if job else "train"] = command
    return found


def test_a_dry_run_without_an_account_shows_stages_that_share_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert pipeline_words(monkeypatch, "recipe=gpt2-124m-pile", "budget.usd=150", "cloud=ec2", "--dry-run") == 0
    said = capsys.readouterr()
    requests = json.loads(said.out)
    assert [one["operation"] for one in requests].count("SetDesiredCapacity") == 1
    shares = {job: float(re.findall(r"budget\.usd=([\d.]+)", text)[-1]) for job, text in commands(requests).items()}
    assert set(shares) == {"prepare", "train", "finish"} and sum(shares.values()) == pytest.approx(150, abs=0.01)
    kills = [datetime.fromisoformat(text) for text in re.findall(r"AWS ends its machines at (\S+)", said.err)]
    assert kills == sorted(kills) and len(kills) == 3
    assert "of $150.00" in said.err and "placeholders" in said.err


@pytest.mark.parametrize("usd", [0.5, 7.5])
def test_a_budget_that_is_too_small_for_the_whole_job_is_refused_with_one_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], usd: float
) -> None:
    """Training alone needs $6.80 at its p90, and the other stages keep some $2."""
    monkeypatch.chdir(tmp_path)
    words = ("recipe=gpt2-124m-pile", "cloud=ec2", "--dry-run")
    assert pipeline_words(monkeypatch, *words, f"budget.usd={usd}") == 2
    said = capsys.readouterr().err
    assert f"budget.usd={usd} is too small: training costs up to $" in said
    enough = re.findall(r"try: (budget\.usd=\d+),", said)[0]
    assert not pipeline_words(monkeypatch, *words, enough)


def test_only_ec2_runs_a_pipeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert pipeline_words(monkeypatch, "recipe=gpt2-124m-pile", "cloud=sagemaker", "--dry-run") == 2
    assert "a pipeline runs on machines of EC2" in capsys.readouterr().err
