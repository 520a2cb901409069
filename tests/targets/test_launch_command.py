"""`skytrain launch` as it is typed, against a local control plane."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import re
import shlex
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skytrain.aws import cloud_files
from skytrain.cli.main import main
from skytrain.config import Config, SkytrainError, compose, source_hash
from skytrain.jobs import NodeRequest
from skytrain.pipelines.node import take_part
from skytrain.planning import read_plan, write_plan
from skytrain.planning.plan_file import PlannedCode
from skytrain.runs import launches_of, read_spend, stopped_key
from skytrain.storage import Store, open_store
from skytrain.targets import bundle as bundles, config_files
from skytrain.targets.bundle import packed
from skytrain.targets.ec2.machines import set_size
from skytrain.targets.ec2.target import Ec2Launcher
from skytrain.tuning import sweep_spent_usd
from tests.support.token_manifests import store_manifests

from .conftest import StubbedSession, record_spend, use_session, use_store
from .ground import Ground
from .plans import offer, plan
from .test_checks import G_SPOT, quotas

STANDARD_SPOT, STANDARD_ON_DEMAND = "L-34B43A08", "L-1216C47A"
G_ON_DEMAND = "L-DB2E81BA"

WORDS = ["run=gpt2-typed", "budget.usd=40"]


class Typed:
    """A user's folder after `skytrain cloud init` and `skytrain plan`."""

    def __init__(self, folder: Path, ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
        outputs = {
            "project": "demo", "account_id": "123456789012", "region": "us-east-2", "bucket": "bucket",
            "private_subnets": ground.subnets, "public_subnets": {}, "node_subnets": "private",
            "security_group_id": ground.group, "operator_role_arn": ground.roles.operator,
            "node_role_arn": ground.roles.node, "viewer_role_arn": ground.roles.viewer,
            "machine_roles": ground.machine_roles, "instance_profile_name": "demo-node", "prepare_instance_profile_name": "demo-prepare",
            "serve_instance_profile_name": "demo-serve",
        }  # fmt: skip
        for path, text in cloud_files(outputs, "ada").items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text(text)
        monkeypatch.chdir(folder)
        self.folder, self._monkeypatch = folder, monkeypatch
        self.store, code = open_store(str(folder / "objects")), PlannedCode("0", source_hash())
        use_store(monkeypatch, lambda: self.store)
        store_manifests(self.store, compose(WORDS).config)
        use_session(monkeypatch, ground.open)
        self.packages: list[str] = []  # that machines were given
        monkeypatch.setattr(bundles, "fetch_wheels", lambda folder, needed, image: self.packages.extend(needed))
        made = plan(offer("g5.xlarge", 1))
        write_plan(replace(made, code=code, words=WORDS, config=compose(WORDS).values), folder / "plan.json")

    def __call__(self, *words: str) -> int:
        self._monkeypatch.setattr(sys, "argv", ["skytrain", "launch", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0)


@pytest.fixture
def typed(tmp_path: Path, ground: Ground, stubbed: StubbedSession, monkeypatch: pytest.MonkeyPatch) -> Typed:
    quotas(stubbed, *((G_SPOT, 96.0) for _ in range(3)))
    return Typed(tmp_path, ground, monkeypatch)


def groups(ground: Ground) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ground.session.client("autoscaling").describe_auto_scaling_groups()[
        "AutoScalingGroups"
    ]
    return found


def node_config(template: dict[str, Any], folder: Path) -> Config:
    """The configuration that a machine composes: the command of its boot script, and the files that it unpacks."""
    script = base64.b64decode(template["parameters"]["LaunchTemplateData"]["UserData"]).decode()
    [command] = re.findall(r"^ExecStart=\S+ (.*)$", script, re.MULTILINE)
    verb, *words = shlex.split(command)
    assert verb == "node" and words[-6:] == ["--nodes", "1", "--processes", "1", "--launch", "00001"]
    machine = folder / "machine"
    with tarfile.open(fileobj=io.BytesIO(packed(config_files([folder])))) as archive:
        archive.extractall(machine, filter="data")
    with contextlib.chdir(machine):
        return compose(words[:-6]).config


def test_a_dry_run_prints_the_requests_and_yes_makes_them(
    typed: Typed, ground: Ground, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed("train", "--plan", "plan.json", "cloud=ec2", "--dry-run") == 0
    shown = json.loads(capsys.readouterr().out)
    assert [one["operation"] for one in shown] == [
        "CreateRole",
        "AttachRolePolicy",
        "CreateInstanceProfile",
        "AddRoleToInstanceProfile",
        "CreateLaunchTemplate",
        "CreateAutoScalingGroup",
        "PutScheduledUpdateGroupAction",
        "SetDesiredCapacity",
    ]
    assert groups(ground) == [] and typed.store.list("runs") == []
    started = node_config(shown[4], typed.folder)
    assert (started.run, started.cloud.target, started.store.root) == ("gpt2-typed", "ec2", "s3://bucket/demo")
    assert (started.budget.usd, started.trainer) == (40, compose(WORDS).config.trainer)
    assert typed("--plan", "plan.json", "cloud=ec2") == 2  # no terminal to ask in
    assert groups(ground) == [] and typed.store.list("runs") == []
    capsys.readouterr()
    assert typed("--plan", "plan.json", "cloud=ec2", "--yes") == 0
    said = capsys.readouterr().out
    assert "1 x g5.xlarge (spot) in us-east-2" in said and "kill time" in said
    assert "skytrain stop gpt2-typed cloud=ec2" in said
    [group] = groups(ground)
    assert (group["AutoScalingGroupName"], group["DesiredCapacity"]) == ("skytrain-demo-gpt2-typed-00001-0", 1)
    log = Ec2Launcher().job_log(compose(["cloud=ec2"]).config, "gpt2-typed", None)
    assert log is not None and "1 x g5.xlarge (spot)" in log.lines[0] and not log.ended


def test_one_machine_without_gpus_prepares_data_with_a_role_that_may_write_it(
    tmp_path: Path, ground: Ground, stubbed: StubbedSession, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    asked = [(STANDARD_SPOT, 96.0)] * 3 + [(STANDARD_ON_DEMAND, 96.0)]
    quotas(stubbed, *asked, *asked)
    typed = Typed(tmp_path, ground, monkeypatch)
    words = ["prepare", "data=synthetic", "data.target_tokens=1B", "cloud=ec2", "budget.usd=5"]
    assert typed(*words, "--dry-run") == 0
    shown = json.loads(capsys.readouterr().out)
    [role] = [call["parameters"]["RoleName"] for call in shown if call["operation"] == "CreateRole"]
    attached = [call["parameters"]["PolicyArn"] for call in shown if call["operation"] == "AttachRolePolicy"]
    assert attached == ground.machine_roles["prepare"]
    template = next(call for call in shown if call["operation"] == "CreateLaunchTemplate")["parameters"][
        "LaunchTemplateData"
    ]
    assert template["IamInstanceProfile"] == {"Name": role} and template["ImageId"] == ground.plain_image
    assert template["InstanceType"].startswith("c7i.")
    script = base64.b64decode(template["UserData"]).decode()
    assert '"--job" "prepare"' in script and "/usr/bin/python3 -m venv" in script and "image.pth" not in script
    assert typed(*words, "--yes") == 0
    assert any(package.startswith("skytrain[aws,data]") for package in typed.packages)
    said = capsys.readouterr().out
    assert "costs" in said and "kill time" in said and "tokens/synthetic" in said
    [first, *others] = groups(ground)
    assert first["DesiredCapacity"] == 1 and not any(group["DesiredCapacity"] for group in others)
    assert first["AutoScalingGroupName"].startswith("skytrain-demo-prepare-synthetic-")


def test_a_sweep_is_launched_on_machines_of_its_own_that_share_it(
    tmp_path: Path, ground: Ground, stubbed: StubbedSession, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    quotas(stubbed, *([(G_SPOT, 96.0), (G_ON_DEMAND, 96.0)] * 8))
    typed = Typed(tmp_path, ground, monkeypatch)
    words = ["tune", "recipe=tune-hw5", "cloud=ec2", "tune.machines=2", "tune.name=hw", "budget.usd=40"]
    store_manifests(typed.store, compose(words[1:2]).config)
    assert typed(*words, "--dry-run") == 0
    shown = json.loads(capsys.readouterr().out)
    scripts = [
        base64.b64decode(one["parameters"]["LaunchTemplateData"]["UserData"]).decode()
        for one in shown
        if one["operation"] == "CreateLaunchTemplate"
    ]
    commands = [line for text in scripts for line in text.splitlines() if line.startswith("ExecStart")]
    for number in (1, 2):
        own = [line for line in commands if f"run=hw-machine-{number}" in line]
        assert own and all(
            word in line for line in own for word in ('"--job" "tune"', "tune.name=hw", "tune.parallel=1")
        )
    assert groups(ground) == [] and typed.store.list("runs") == []
    assert typed(*words, "--yes") == 0
    said = capsys.readouterr().out
    assert "2 x g5.xlarge" in said and "kept for the final run" in said and "skytrain status hw cloud=ec2" in said
    started = {group["AutoScalingGroupName"] for group in groups(ground) if group["DesiredCapacity"]}
    assert started == {"skytrain-demo-hw-machine-1-00001-0", "skytrain-demo-hw-machine-2-00001-0"}
    assert typed(*words, "--plan", "plan.json") == 2 and "leave out --plan" in capsys.readouterr().err
    assert typed("tune", "recipe=quickstart", "cloud=ec2") == 2
    assert "tune.instance: is not set" in capsys.readouterr().err
    assert typed(*words, "tune.parallel=2", "--dry-run") == 2
    assert "need as many GPUs, and g5.xlarge has 1" in capsys.readouterr().err  # before it is rented


def test_a_sweep_that_is_launched_again_rents_machines_for_what_is_left_only(
    tmp_path: Path, ground: Ground, stubbed: StubbedSession, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    quotas(stubbed, *([(G_SPOT, 96.0), (G_ON_DEMAND, 96.0)] * 8))
    typed = Typed(tmp_path, ground, monkeypatch)
    words = ["tune", "recipe=tune-hw5", "cloud=ec2", "tune.machines=1", "tune.name=hw", "budget.usd=40", "--yes"]
    store_manifests(typed.store, compose(words[1:2]).config)

    def launch_again(usd: float) -> int:
        """End the machines of the last launch when they have cost so much, and launch."""
        newest = launches_of(typed.store, "hw-machine-1")[-1]
        typed.store.write(stopped_key(newest), b"{}")
        for group in newest.groups:
            ground.session.perform(set_size(group, 0))
        record_spend(typed.store, "hw-machine-1", usd)
        return typed(*words)

    assert typed(*words) == 0
    known = list[int]()  # machines, when what is left is divided

    def spent(store: Store, name: str) -> float:
        known.append(len(read_spend(store, "hw-machine-1").counts))
        return sweep_spent_usd(store, name)

    monkeypatch.setattr("skytrain.targets.ec2.launch.sweep_spent_usd", spent)
    assert launch_again(10.0) == 0 and "$10.00 spent, " in capsys.readouterr().out
    assert known == [2]  # one has recorded its cost, of the other EC2 told
    first, second = (one.groups[0] for one in launches_of(typed.store, "hw-machine-1"))
    assert second.kill_at < first.kill_at
    assert launch_again(40.0) == 2 and "has cost $40.00 already" in capsys.readouterr().err
    assert not any(group["DesiredCapacity"] for group in groups(ground))


def test_preparing_files_of_this_computer_is_refused(typed: Typed, capsys: pytest.CaptureFixture[str]) -> None:
    (typed.folder / "book.txt").write_text("Call me Ishmael.")
    assert typed("prepare", "data=text", "data.source.paths=book.txt", "cloud=ec2") == 2
    assert "book.txt is a file of this computer" in capsys.readouterr().err


REFUSED = {
    "add cloud=ec2": ["--plan", "plan.json"],
    "rented machines reach only a bucket": ["--plan", "plan.json", "cloud=ec2", "store.root=here"],
    "the settings under trainer are not those of the plan": ["--plan", "plan.json", "cloud=ec2", "trainer.steps=7"],
    "launch prepair: no such job": ["prepair", "--plan", "plan.json"],
    "engine=spark: launch prepare rents one machine": ["prepare", "data=synthetic", "engine=spark", "cloud=ec2"],
    "launch prepare makes its plan itself": ["prepare", "--plan", "plan.json", "cloud=ec2"],
    "gone.json is not a plan": ["--plan", "gone.json", "cloud=ec2"],
    "--replan needs --plan": ["--replan", "cloud=ec2"],
    "--replan: cloud=slurm takes a plan as it is": ["--plan", "plan.json", "--replan", "cloud=slurm"],
    "budget.usd=0: rented machines cost money": ["--plan", "plan.json", "cloud=ec2", "budget.usd=0"],
    "for example: --smoke 20M": ["--plan", "plan.json", "cloud=ec2", "--smoke", ""],
    "put long ones into a file": ["--plan", "plan.json", "cloud=ec2", f"cloud.packages=[{'x' * 17000}]"],
}


def test_what_cannot_work_is_refused_before_anything_is_created(
    typed: Typed, ground: Ground, capsys: pytest.CaptureFixture[str]
) -> None:
    for problem, words in REFUSED.items():
        assert typed(*words) == 2
        assert problem in capsys.readouterr().err
    assert groups(ground) == [] and typed.store.list("runs") == []


def test_a_dry_run_that_plans_again_leaves_the_plan_as_it_is(typed: Typed, capsys: pytest.CaptureFixture[str]) -> None:
    file, words = typed.folder / "plan.json", ["--plan", "plan.json", "--replan", "cloud=ec2", "store.root=here"]
    before = file.read_text()
    assert typed(*words, "--dry-run") == 2 and "only a bucket" in capsys.readouterr().err
    assert file.read_text() == before
    assert typed(*words) == 2 and file.read_text() != before


def test_a_plan_that_asks_for_what_no_plan_can_is_damaged(typed: Typed, capsys: pytest.CaptureFixture[str]) -> None:
    file = typed.folder / "plan.json"
    write_plan(replace(read_plan(file), request={"machines": "all"}), file)
    assert typed("--plan", "plan.json", "--replan", "cloud=ec2", "--dry-run") == 9
    assert "plan.json is damaged" in capsys.readouterr().err


def test_a_plan_that_was_changed_by_hand_is_refused(typed: Typed, capsys: pytest.CaptureFixture[str]) -> None:
    file = typed.folder / "plan.json"
    file.write_text(file.read_text().replace('"nodes": 1', '"nodes": 8'))
    assert typed("--plan", "plan.json", "cloud=ec2") == 2
    assert "was changed after it was made" in capsys.readouterr().err


@pytest.mark.parametrize("job", ["serve", "tune", "prepare", "finish"])
def test_a_plan_of_another_job_gives_a_run_neither_its_rights_nor_its_time(
    typed: Typed, ground: Ground, capsys: pytest.CaptureFixture[str], job: Any
) -> None:
    """Machines of an endpoint or a sweep have a kill time of their own, which the run's budget does not cut."""
    code = PlannedCode("0", source_hash())
    made = plan(offer("g5.xlarge", 1, kill_after_seconds=30 * 86400.0))
    write_plan(replace(made, code=code, words=WORDS, config=compose(WORDS).values, job=job), typed.folder / "plan.json")
    for target in ("ec2", "slurm", "sagemaker"):
        assert typed("train", "--plan", "plan.json", f"cloud={target}", "budget.usd=1", "--yes", "--no-follow") == 2
        assert f"plan.json is a plan for launch {job}" in capsys.readouterr().err
    assert groups(ground) == []


def test_a_plan_of_somebody_else_names_no_code_that_the_person_has_not_typed(
    typed: Typed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (typed.folder / "attack.py").write_text("open('attacked', 'w').close()\nclass Logger: pass\nclass Source: pass\n")
    monkeypatch.syspath_prepend(typed.folder)
    code = PlannedCode("0", source_hash())
    hostile = {
        "trainer.callbacks.target=attack.Logger": "trainer.callbacks=[{target: attack.Logger}]",
        "data.source.target=attack.Source": "data.source.target=attack.Source",
        "trainer.loggers=attack.Logger": "trainer.loggers=[attack.Logger]",
        "'trainer.callbacks.target=${wandb.project}'": "trainer.callbacks=[{target: '${wandb.project}'}]",
        "'wandb.project=${oc.env:HOME}'": "wandb={project: '${oc.env:HOME}'}",
        "cloud.packages=attack": "cloud.packages=[attack]",
        "cloud.packages=7attack": "cloud.packages=[7attack]",  # which is no number with a unit
        "cloud.packages=12": "cloud.packages=[12]",
        "store.root=s3://theirs/x": "store.root=s3://theirs/x",
        "budget.usd_per_hour=0.001": "budget.usd_per_hour=0.001",  # a budget would never be spent
        "cloud.machine_roles.boundary=None": "cloud.machine_roles.boundary=null",
        "cloud.kms_key=None": "cloud.kms_key=null",
    }
    for name, word in hostile.items():
        words = [*WORDS, word]
        made = replace(plan(offer("g5.xlarge", 1)), code=code, words=words, config=compose(words).values)
        write_plan(made, typed.folder / "plan.json")
        ways = (["train", "cloud=ec2"], ["pipeline", "cloud=ec2"], ["train", "cloud=slurm"])
        for arguments in ways if word.startswith("data") else ways[:1]:
            assert typed(*arguments, "--plan", "plan.json", "--dry-run") == 2
            said = capsys.readouterr().err
            assert f"plan.json names code or files that you have not named: {shlex.split(name)[0]}" in said
            assert f"--trust {name}" in said
        own = [word] if word.startswith("trainer") else ["--trust", shlex.split(name)[0]]
        typed("train", "cloud=ec2", "--plan", "plan.json", "--dry-run", *own)
        assert "that you have not named" not in capsys.readouterr().err
        if word.startswith("trainer"):
            assert not (typed.folder / "attacked").exists()


def test_machines_whose_agent_cannot_start_are_counted_and_not_replaced_for_ever(
    typed: Typed, ground: Ground, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed("--plan", "plan.json", "cloud=ec2", "--yes", "budget.usd=10") == 0
    assert "budget     $10.00, less than the $25.00 planned" in capsys.readouterr().out
    config = compose([*WORDS, "cloud=ec2", "parallel=fsdp"]).config
    request, seen = NodeRequest("gpt2-typed", [], 1, 7, launch="00001"), list[str]()
    for _ in range(5):
        [group] = groups(ground)
        [machine] = group["Instances"]
        seen.append(machine["InstanceId"])
        monkeypatch.setattr(Ec2Launcher, "instance", lambda *_: seen[-1])
        with pytest.raises(SkytrainError):
            take_part(config, request, print)
    assert len(set(seen)) == 4  # three grants, and then none
    reason = typed.store.read(f"runs/gpt2-typed/launches/00001/unfit/{seen[0]}.json")
    assert b"its agent failed: " in reason
