"""The role of each launch: what it is called and tagged, and that nothing of it is left."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import botocore.session
import pytest

from skytrain.aws import KINDS, AwsSession, Call, CloudError, CloudResource, Tags
from skytrain.config import MachineRolesConfig, SkytrainError, compose
from skytrain.runs import Silent
from skytrain.storage import Retry
from skytrain.targets import leftovers as collecting
from skytrain.targets.checks.account import roles
from skytrain.targets.checks.check import Failed
from skytrain.targets.ec2.launch import start_launch
from skytrain.targets.machine_roles import MachineRole, machine_role, perform_with_role, role_name
from skytrain.targets.stopping import end_machines, stop_calls

from .conftest import StubbedSession
from .ground import ROLES_PATH, Ground
from .test_launch import RUN, config_of, prepared, s3_root, without_packages  # noqa: F401
from .test_pipeline import stages  # noqa: F401

TAGS = Tags("demo", "ada", "gpt2", datetime(2026, 12, 1, tzinfo=UTC))
SETTINGS = MachineRolesConfig(
    path="/skytrain/us-east-2/demo/",
    boundary="arn:aws-us-gov:iam::123456789012:policy/machines",
    node=["arn:aws:iam::1:policy/node"],
    prepare=["arn:aws:iam::1:policy/prepare"],
    serve=["arn:aws:iam::1:policy/serve"],
    sagemaker=["arn:aws:iam::1:policy/sagemaker"],
    vault=["arn:aws:iam::1:policy/vault"],
)
AT_ONCE = Retry(seconds=5.0, first_wait_seconds=0.0, longest_wait_seconds=0.0)


def role_of(job: Any = "train", *, secrets: dict[str, str] | None = None, **options: Any) -> MachineRole:
    cloud = replace(compose().config.cloud, region="us-east-2", machine_roles=SETTINGS, secrets=secrets or {})
    role = machine_role(cloud, job, "00001", TAGS, **options)
    assert role is not None
    return role


def tags_of(role: MachineRole) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in role.calls[0].parameters["Tags"]}


def roles_in(ground: Ground) -> dict[str, dict[str, str]]:
    """The tags of the roles that launches have made."""
    iam = ground.session.client("iam")
    found = iam.list_roles(PathPrefix=ROLES_PATH)["Roles"]
    return {
        role["RoleName"]: {tag["Key"]: tag["Value"] for tag in iam.list_role_tags(RoleName=role["RoleName"])["Tags"]}
        for role in found
    }


def profiles_in(ground: Ground) -> list[Any]:
    """The instance profiles that launches have made."""
    found = ground.session.client("iam").list_instance_profiles()["InstanceProfiles"]
    return [profile for profile in found if profile["Path"] == ROLES_PATH]


def resources_of(ground: Ground) -> list[CloudResource]:
    """What `stop` finds, in one region."""
    kinds = ("Auto Scaling group", "instance", "machine role")
    return [each for kind in kinds for each in KINDS[kind].find(ground.session, "us-east-2")]


def test_a_role_is_made_below_the_boundary_with_its_policies_and_its_profile() -> None:
    role = role_of()
    calls = [(call.operation, call.body()) for call in role.calls]
    assert [operation for operation, _ in calls] == [
        "CreateRole", "AttachRolePolicy", "CreateInstanceProfile", "AddRoleToInstanceProfile",
    ]  # fmt: skip
    created = calls[0][1]
    assert created["Path"] == SETTINGS.path and created["PermissionsBoundary"] == SETTINGS.boundary
    [trusted] = json.loads(created["AssumeRolePolicyDocument"])["Statement"]
    assert trusted["Principal"] == {"Service": "ec2.amazonaws.com"} and trusted["Action"] == "sts:AssumeRole"
    assert calls[2][1]["Path"] == SETTINGS.path and calls[3][1]["RoleName"] == created["RoleName"] == role.name


@pytest.mark.parametrize(
    "partition, trusted",
    [("aws", "ec2.amazonaws.com"), ("aws-cn", ["ec2.amazonaws.com", "ec2.amazonaws.com.cn"])],
)
def test_a_role_trusts_ec2_by_its_names_in_the_partition(partition: str, trusted: str | list[str]) -> None:
    role = role_of()
    settings = replace(SETTINGS, boundary=f"arn:{partition}:iam::123456789012:policy/machines")
    trust = json.loads(replace(role, settings=settings).calls[0].parameters["AssumeRolePolicyDocument"])
    assert [statement["Principal"] for statement in trust["Statement"]] == [{"Service": trusted}]


def test_tags_say_whose_machines_they_are_and_every_one_has_a_value() -> None:
    assert tags_of(role_of()) == {
        **TAGS.mapping(), "skytrain:joined-1": "gpt2", "skytrain:joined-2": "gpt2",
    }  # fmt: skip
    joined = tags_of(role_of(joined=["gpt2-smoke", "gpt2"]))
    assert (joined["skytrain:joined-1"], joined["skytrain:joined-2"]) == ("gpt2-smoke", "gpt2")
    assert tags_of(role_of("tune", sweep="lr"))["skytrain:sweep"] == "lr"


@pytest.mark.parametrize(
    ("job", "service", "secrets", "policies"),
    [
        ("train", "ec2.amazonaws.com", {}, ["arn:aws:iam::1:policy/node"]),
        ("tune", "ec2.amazonaws.com", {}, ["arn:aws:iam::1:policy/node"]),
        (
            "finish",
            "ec2.amazonaws.com",
            {"HF_TOKEN": "skytrain/hf"},
            ["arn:aws:iam::1:policy/node", "arn:aws:iam::1:policy/vault"],
        ),
        ("prepare", "ec2.amazonaws.com", {}, ["arn:aws:iam::1:policy/prepare"]),
        ("prepare", "emr-serverless.amazonaws.com", {}, ["arn:aws:iam::1:policy/prepare"]),
        ("serve", "ec2.amazonaws.com", {"HF_TOKEN": "skytrain/hf"}, ["arn:aws:iam::1:policy/serve"]),
        ("train", "sagemaker.amazonaws.com", {}, ["arn:aws:iam::1:policy/node", "arn:aws:iam::1:policy/sagemaker"]),
    ],
)
def test_machines_get_the_policies_of_their_kind_and_secrets_only_where_the_launch_names_some(
    job: str, service: str, secrets: dict[str, str], policies: list[str]
) -> None:
    role = role_of(job, service=service, secrets=secrets)
    attached = [call.parameters["PolicyArn"] for call in role.calls if call.operation == "AttachRolePolicy"]
    assert attached == policies
    [trusted] = json.loads(role.calls[0].parameters["AssumeRolePolicyDocument"])["Statement"]
    from_elsewhere = {"StringEquals": {"aws:SourceAccount": "123456789012"}}
    assert trusted.get("Condition") == (None if service.startswith("ec2.") else from_elsewhere)
    assert any("InstanceProfile" in call.operation for call in role.calls) is service.startswith("ec2.")
    assert role.arn == f"arn:aws-us-gov:iam::123456789012:role/skytrain/us-east-2/demo/{role.name}"


def test_names_fit_iam_and_differ_between_regions_projects_runs_and_launches() -> None:
    long = "x" * 300
    names = {
        role_name(project, region, run, launch)
        for project in ("demo", "a-name-of-24-letters-abc")
        for region in ("us-east-2", "us-isof-south-1")
        for run in ("gpt2", "gpt2 ", "gpt2/", "мой-прогон", long, f"{long}y")
        for launch in ("00001", "00002")
    }
    assert len(names) == 48
    for name in names:
        Call("iam", "CreateRole", {"RoleName": name, "AssumeRolePolicyDocument": "{}"}).body()
        assert len(name) <= 64 and set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-")


def test_a_run_with_letters_of_any_script_has_a_role_that_iam_takes() -> None:
    model = botocore.session.Session().get_service_model("iam").operation_model("CreateRole").input_shape
    for run in ("日本-1", "größe", "a" * 250):
        cloud = replace(compose().config.cloud, region="us-east-2", machine_roles=SETTINGS)
        made = machine_role(cloud, "train", "00001", replace(TAGS, run=run))
        assert made is not None
        created = made.calls[0].parameters
        for name in ("Description", "RoleName", "Path"):
            assert re.fullmatch(model.members[name].metadata["pattern"], created[name]), name
        assert {"Key": "skytrain:run", "Value": run} in created["Tags"]


def test_a_kind_without_policies_is_refused_before_anything_is_created() -> None:
    cloud = replace(compose().config.cloud, machine_roles=replace(SETTINGS, serve=[]))
    with pytest.raises(SkytrainError, match=r"cloud.machine_roles.serve names no policies\n.*cloud init --force"):
        machine_role(cloud, "serve", "00001", TAGS)


class Unready:
    """A session that does not know a profile for a while."""

    region = "us-east-2"

    def __init__(self, problem: str, times: int) -> None:
        self.problem, self.times, self.asked = problem, times, 0

    def perform(self, call: Call) -> dict[str, Any]:
        self.asked += 1
        if self.asked <= self.times:
            raise CloudError(self.problem, fix="", code="ValidationError")
        return {"done": True}


PROBLEMS = [
    "Value (x) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile name",
    "Invalid InstanceProfile: x.",
    "Could not assume role arn:aws:iam::1:role/x. Please ensure that the role exists",
]


@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_request_waits_until_aws_knows_the_new_role_and_asks_each_time_whether_it_may(problem: str) -> None:
    session: Any = Unready(problem, 3)
    asked: list[int] = []
    answer = perform_with_role(session, Call("ec2", "DescribeRegions"), lambda: asked.append(1), AT_ONCE)
    assert answer == {"done": True} and session.asked == len(asked) == 4


def test_another_failure_is_raised_at_once_and_the_wait_has_an_end() -> None:
    session: Any = Unready("the quota is exhausted", 1)
    with pytest.raises(CloudError, match="quota"):
        perform_with_role(session, Call("ec2", "DescribeRegions"), lambda: None, AT_ONCE)
    assert session.asked == 1
    never: Any = Unready(PROBLEMS[0], 10**9)
    with pytest.raises(CloudError, match="Invalid IAM"):
        perform_with_role(
            never, Call("ec2", "DescribeRegions"), lambda: None, Retry(seconds=0.05, first_wait_seconds=0.001)
        )


def test_a_launch_has_a_role_of_its_own_which_gc_deletes_when_the_run_is_over(
    ground: Ground,
    stubbed: StubbedSession,
    s3_root: str,  # noqa: F811
    without_packages: None,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launch = prepared(ground, stubbed, s3_root)
    start_launch(launch, {}, Silent())
    iam = ground.session.client("iam")
    [(name, tags)] = roles_in(ground).items()
    assert tags["skytrain:run"] == RUN and tags["skytrain:project"] == "demo" and tags["skytrain:expires-at"]
    assert iam.get_role(RoleName=name)["Role"]["PermissionsBoundary"]["PermissionsBoundaryArn"].endswith("machines")
    [profile] = profiles_in(ground)
    assert [role["RoleName"] for role in profile["Roles"]] == [name]
    ec2 = ground.session.client("ec2")
    for template in ec2.describe_launch_templates()["LaunchTemplates"]:
        [version] = ec2.describe_launch_template_versions(LaunchTemplateId=template["LaunchTemplateId"])[
            "LaunchTemplateVersions"
        ]
        assert version["LaunchTemplateData"]["IamInstanceProfile"] == {"Name": name}
    config = config_of(ground, s3_root)
    found = resources_of(ground)
    with_instances = [call.operation for _, call in stop_calls(found)]
    assert "TerminateInstances" in with_instances and "DeleteRole" not in with_instances  # the last lines of its log
    assert end_machines(ground.session, found, Silent()) == []
    assert [call.operation for _, call in stop_calls(resources_of(ground))][-1] == "DeleteRole"
    garbage = collecting.find_garbage(
        config, ground.session, collecting.GcSelection(run=RUN), Silent(), regions=["us-east-2"], project="demo"
    )
    assert "machine role" in {verdict.resource.kind for verdict in garbage.doomed}
    assert collecting.delete_garbage(config, ground.session, garbage, Silent()) == []
    assert roles_in(ground) == {} and profiles_in(ground) == []


@pytest.mark.parametrize(
    "failing", ["AttachRolePolicy", "AddRoleToInstanceProfile", "CreateLaunchTemplate", "SetDesiredCapacity"]
)
def test_a_launch_that_fails_leaves_no_role(
    ground: Ground, stubbed: StubbedSession, s3_root: str, without_packages: None,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch, failing: str,
) -> None:  # fmt: skip
    launch = prepared(ground, stubbed, s3_root)
    fail_at(monkeypatch, ground.session, failing)
    with pytest.raises(CloudError, match="said AWS"):
        start_launch(launch, {}, Silent())
    assert roles_in(ground) == {}
    assert profiles_in(ground) == []


def fail_at(monkeypatch: pytest.MonkeyPatch, session: AwsSession, operation: str) -> None:
    perform: Callable[..., dict[str, Any]] = session.perform

    def failing(call: Call, region: str | None = None) -> dict[str, Any]:
        if call.operation == operation:
            raise CloudError("said AWS", fix="", code="Boom")
        return perform(call, region)

    monkeypatch.setattr(session, "perform", failing)


def test_stages_of_a_pipeline_write_and_end_each_other_and_each_has_its_kind(stages: Any) -> None:  # noqa: F811
    chain = [stages.first.first, stages.first, stages]
    roles = [each.role for each in chain]
    assert [role.kind for role in roles] == ["prepare", "node", "node"] and len({role.name for role in roles}) == 3
    runs = {each.run for each in chain}
    for each in chain:
        tags = tags_of(each.role)
        assert {tags[key] for key in ("skytrain:run", "skytrain:joined-1", "skytrain:joined-2")} == runs
        assert tags["skytrain:run"] == each.run
    operations = [call.operation for call in stages.calls]
    assert operations.count("CreateRole") == 3 and operations[0] == "CreateRole"


def test_an_account_of_an_older_base_keeps_its_shared_role(
    ground: Ground,
    stubbed: StubbedSession,
    s3_root: str,  # noqa: F811
    without_packages: None,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    none = MachineRolesConfig(path=None, boundary=None, node=[], prepare=[], serve=[], sagemaker=[], vault=[])
    monkeypatch.setattr(Ground, "machine_roles", property(lambda self: none.__dict__), raising=False)
    launch = prepared(ground, stubbed, s3_root)
    assert launch.role is None and not any(call.service == "iam" for call in launch.calls)
    [template, *_] = [call for call in launch.calls if call.operation == "CreateLaunchTemplate"]
    assert template.parameters["LaunchTemplateData"]["IamInstanceProfile"] == {"Name": "demo-node"}


def test_gc_of_one_region_does_not_see_the_roles_of_another(ground: Ground) -> None:
    for call in replace(role_of(), settings=replace(SETTINGS, boundary=ground.machine_roles["boundary"])).calls[:1]:
        ground.session.perform(call)
    assert [each.tags.run for each in KINDS["machine role"].find(ground.session, "us-east-2")] == ["gpt2"]
    assert list(KINDS["machine role"].find(ground.session, "us-east-1")) == []


def test_settings_of_before_in_a_base_with_roles_of_launches_are_refused_with_what_to_do(ground: Ground) -> None:
    iam = ground.session.client("iam")
    preflight = ground.preflight()
    assert "each launch gets a role below /skytrain/us-east-2/demo/" in roles(preflight)
    old = ground.preflight(machine_roles=replace(preflight.config.cloud.machine_roles, boundary=None))
    assert "machines of all runs share demo-node" in roles(old)
    iam.put_role_permissions_boundary(RoleName="demo-node", PermissionsBoundary=ground.machine_roles["boundary"])
    assert "each launch gets a role" in roles(preflight)
    with pytest.raises(Failed, match="machines could write nothing") as refused:
        roles(old)
    assert "skytrain cloud init --force" in str(refused.value.__dict__)
