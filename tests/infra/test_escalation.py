"""From each role: what can it write that another role runs, and whom can it end or take over? Searched by program."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from botocore.session import get_session

from skytrain.aws import Call, Tags
from skytrain.targets.ec2.serve import key_parameter
from tests.infra.conftest import RenderedBase
from tests.infra.permissions import BUCKET, NUMBER, OURS, PROJECT, REGION, ROLES_PATH, existing, machine_tags
from tests.infra.test_base import may, subnet_of
from tests.support.iam.policy import Authorization, Decision, decide

BEFORE = Path(__file__).parent / "policies-before.json"  # of the base before machines and people were kept apart
MACHINES = {"node": "gpt2", "prepare": "prepare-pile", "serve": "serve-tiny"}  # role -> a run of its machines
ROLES = (*MACHINES, "viewer", "operator")
# Objects that are run as code by whoever reads them, or decide what is paid for, key -> role; {run} is a run of that
# role's machines.
RUN_NOW = {
    "launches/{run}/00001/config.tar.gz": tuple(MACHINES),
    "launches/{run}/00001/start.sh": ("node",),
    "launches/{run}/00001/bootstrap.sh": ("prepare",),
    "bundles/0123/x.whl": tuple(MACHINES),
    "launches/{run}/00001/launch.json": ("operator",),
    "launches/{run}/pipeline.json": ("operator",),
}
RUN_BEFORE = {
    "runs/{run}/run.json": ("operator",),  # it named classes and repositories, which people's commands imported
    "runs/{run}/launches/00001/config.tar.gz": tuple(MACHINES),
    "runs/{run}/launches/00001/emr/submit.sh": ("prepare",),
    "bundles/0123/x.whl": tuple(MACHINES),
}
# Actions by which one becomes somebody else, or lets somebody else run one's code. No role of the base needs them but
# for what is listed: an operator passes the roles of machines to the services that run machines, and opens shells there.
POWERS = (
    "iam:AddUserToGroup", "iam:AttachRolePolicy", "iam:AttachUserPolicy", "iam:CreateAccessKey", "iam:CreateLoginProfile",
    "iam:CreatePolicyVersion", "iam:PutRolePolicy", "iam:PutUserPolicy", "iam:SetDefaultPolicyVersion", "iam:UpdateAssumeRolePolicy",
    "iam:UpdateLoginProfile", "iam:DeleteRolePermissionsBoundary", "iam:PutRolePermissionsBoundary", "iam:AddRoleToInstanceProfile",
    "sts:AssumeRole", "sts:GetFederationToken", "lambda:CreateFunction", "lambda:UpdateFunctionCode", "lambda:InvokeFunction",
    "cloudformation:CreateStack", "cloudformation:UpdateStack", "glue:CreateDevEndpoint", "codebuild:StartBuild",
    "datapipeline:CreatePipeline", "ecs:RunTask", "ecs:RegisterTaskDefinition", "ssm:SendCommand", "ssm:CreateAssociation",
    "ec2:ModifyInstanceAttribute", "ec2:CreateLaunchTemplateVersion", "ec2:ModifyLaunchTemplate", "ec2:ReplaceIamInstanceProfileAssociation",
    "ec2:AssociateIamInstanceProfile", "ec2-instance-connect:SendSSHPublicKey", "autoscaling:CreateLaunchConfiguration",
    "ecr:SetRepositoryPolicy", "s3:PutBucketPolicy", "s3:PutLifecycleConfiguration", "kms:PutKeyPolicy", "kms:ScheduleKeyDeletion",
    "sagemaker:CreateNotebookInstance", "sagemaker:CreateProcessingJob", "elasticmapreduce:AddJobFlowSteps",
)  # fmt: skip
# Services of which viewers and operators read, by the names of policies -> those of botocore.
SERVICES = {
    "autoscaling": "autoscaling", "ec2": "ec2", "eks": "eks", "elasticmapreduce": "emr", "emr-serverless": "emr-serverless",
    "fsx": "fsx", "iam": "iam", "kms": "kms", "logs": "logs", "s3": "s3", "sagemaker": "sagemaker", "scheduler": "scheduler",
    "secretsmanager": "secretsmanager", "ssm": "ssm", "sts": "sts", "tag": "resourcegroupstaggingapi",
}  # fmt: skip
SECRET_FIELDS = {"CustomerGatewayConfiguration", "Environment", "Input", "UserData"}
HARMLESS = {"NextToken", "IPAddress"}
SHOWN_TO_VIEWERS = {
    "ec2:DescribeSpotInstanceRequests": "`gc` and `doctor` ask; only requests of the form before templates have user data",
    "fsx:DescribeFileSystems": "`gc` asks; a password can be set there, and is not shown",
}
SHOWN = {
    "viewer": SHOWN_TO_VIEWERS,
    "operator": {
        **SHOWN_TO_VIEWERS,
        "ec2:DescribeLaunchTemplateVersions": "a launch reads its own, and versions know no tags",
        **dict.fromkeys(
            ("elasticmapreduce:DescribeCluster", "elasticmapreduce:ListSteps", "emr-serverless:GetApplication",
             "emr-serverless:GetJobRun", "sagemaker:DescribeTrainingJob"),
            "an operator asks about jobs that do not exist yet, which have no tags to be told by",
        ),
    },
}  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One way from a role to another."""

    source: str
    target: str
    via: str


def steps(base: RenderedBase, run_as_code: Mapping[str, tuple[str, ...]]) -> set[Step]:
    """Return every way by which a role reaches what it should not."""
    found = (_ended, _written_runs, _read_keys, _taken, _read, _secrets, _powers)
    return {*_written_code(base, run_as_code), *(step for search in found for step in search(base))}


def _written_code(base: RenderedBase, run_as_code: Mapping[str, tuple[str, ...]]) -> Iterator[Step]:
    account = existing(subnet_of(base))
    for source in set(ROLES) - {"operator"}:
        for key, readers in run_as_code.items():
            for reader in readers:
                full = f"{PROJECT}/{key.format(run=MACHINES.get(reader, 'gpt2'))}"
                if may(base, source, Call("s3", "PutObject", {"Bucket": BUCKET, "Key": full, "Body": b""}), account):
                    yield Step(source, reader, f"writes {key}")


def _ended(base: RenderedBase) -> Iterator[Step]:
    """Machines end those of their own run only, whatever the kind of the other run."""
    call = Call("ec2", "TerminateInstances", {"InstanceIds": ["i-1"]})
    for source, target, run in _others():
        tags = {f"arn:aws:ec2:{REGION}:{NUMBER}:instance/i-1": replace(OURS, run=run).mapping()}
        account = replace(existing(subnet_of(base)), tags=tags)
        if may(base, source, call, account, machine_tags(MACHINES[source])):
            yield Step(source, target, "ends its machines")


def _others() -> Iterator[tuple[str, str, str]]:
    """A role of machines, the kind of another run, and its name."""
    for source in MACHINES:
        for target, run in MACHINES.items():
            yield source, target, f"{run}-of-others"


def _written_runs(base: RenderedBase) -> Iterator[Step]:
    """Machines write their own run only."""
    account = existing(subnet_of(base))
    for source, target, run in _others():
        put = Call("s3", "PutObject", {"Bucket": BUCKET, "Key": f"{PROJECT}/runs/{run}/run.json", "Body": b""})
        if may(base, source, put, account, machine_tags(MACHINES[source])):
            yield Step(source, target, "writes its run")


def _read_keys(base: RenderedBase) -> Iterator[Step]:
    """Machines of an endpoint read its key, and nobody reads that of another one."""
    name = key_parameter(PROJECT, "serve-other", "00001")
    tags = {f"arn:aws:ssm:{REGION}:{NUMBER}:parameter{name}": replace(OURS, run="serve-other").mapping()}
    account = replace(existing(subnet_of(base)), tags=tags)
    for source, run in MACHINES.items():
        if may(base, source, Call("ssm", "GetParameter", {"Name": name}), account, machine_tags(run)):
            yield Step(source, "serve", "reads the key of another endpoint")


def _taken(base: RenderedBase) -> Iterator[Step]:
    """Nobody makes a thing of others their own by tagging it."""
    managed = {"for-use-with-amazon-emr-managed-policies": "true"}
    cluster = f"arn:aws:elasticmapreduce:{REGION}:{NUMBER}:cluster/j-1"
    asked = {f"aws:RequestTag/{key}": value for key, value in OURS.mapping().items()}
    for role in ROLES:
        for owner, tags in {"another project": Tags("other", "bob", "x").mapping(), "others": managed}.items():
            context = {**asked, **{f"aws:ResourceTag/{key}": value for key, value in tags.items()}}
            if _allows(base, role, "elasticmapreduce:AddTags", cluster, context):
                yield Step(role, owner, "tags a cluster as its own, and may end it then")


def _read(base: RenderedBase) -> Iterator[Step]:
    """Viewers see no start scripts and environments of others."""
    for action, resource in {
        "ec2:DescribeLaunchTemplateVersions": "*",
        "autoscaling:DescribeLaunchConfigurations": "*",
        "ec2:DescribeSpotFleetRequests": "*",
        "sagemaker:DescribeTrainingJob": f"arn:aws:sagemaker:{REGION}:{NUMBER}:training-job/theirs",
        "emr-serverless:GetJobRun": f"arn:aws:emr-serverless:{REGION}:{NUMBER}:/applications/1/jobruns/1",
        "elasticmapreduce:DescribeCluster": f"arn:aws:elasticmapreduce:{REGION}:{NUMBER}:cluster/j-1",
    }.items():
        if _allows(base, "viewer", action, resource, {"aws:ResourceTag/skytrain:project": "other"}):
            yield Step("viewer", "others", f"{action} shows a start script or an environment")


def _secrets(base: RenderedBase) -> Iterator[Step]:
    """Nobody reads what AWS itself calls sensitive, of things of others: botocore's models mark such fields of answers."""
    session = get_session()
    for service in sorted(SERVICES):
        model = session.get_service_model(SERVICES[service])
        for operation in model.operation_names:
            action = f"{service}:{operation}"
            fields = _sensitive(model.operation_model(operation).output_shape, frozenset())
            for role in ("viewer", "operator") if fields else ():
                tags = {"aws:ResourceTag/skytrain:project": "other"}
                if action not in SHOWN[role] and _allows(base, role, action, "*", tags):
                    yield Step(role, "others", f"{action} shows {', '.join(sorted(fields))}")


def _sensitive(shape: Any, above: frozenset[str]) -> set[str]:
    """Return the fields of an answer that AWS calls sensitive, or that hold secrets whatever AWS calls them."""
    if shape is None or shape.name in above:
        return set()
    above |= {shape.name}
    if shape.type_name == "structure":
        inner = shape.members.items()
        named = {name for name, each in inner if each.metadata.get("sensitive") or name in SECRET_FIELDS}
        return (named - HARMLESS).union(*(_sensitive(each, above) for _, each in inner))
    if shape.type_name == "list":
        return _sensitive(shape.member, above)
    return _sensitive(shape.value, above) if shape.type_name == "map" else set()


def _powers(base: RenderedBase) -> Iterator[Step]:
    for role in ROLES:
        for action in POWERS:
            if any(
                _allows(base, role, action, resource, {})
                for resource in ("*", *(f"arn:aws:iam::{NUMBER}:role{path}admin" for path in ("/", ROLES_PATH)))
            ):
                yield Step(role, "anybody", action)


def _allows(base: RenderedBase, role: str, action: str, resource: str, context: Mapping[str, str]) -> bool:
    asked = Authorization(action, resource, dict(context))
    return decide(asked, base.policies(role), base.caller(role)) is Decision.ALLOWED


@pytest.fixture(scope="module")
def before() -> RenderedBase:
    return RenderedBase(json.loads(BEFORE.read_text()))


def test_no_role_reaches_another(full_base: RenderedBase) -> None:
    assert steps(full_base, RUN_NOW) == set()


def test_the_search_finds_the_holes_of_the_policies_before(before: RenderedBase) -> None:
    found = steps(before, RUN_BEFORE)
    for step in (
        Step("node", "operator", "writes runs/{run}/run.json"),
        Step("node", "prepare", "writes runs/{run}/launches/00001/config.tar.gz"),
        Step("node", "serve", "writes runs/{run}/launches/00001/config.tar.gz"),
        Step("node", "prepare", "writes runs/{run}/launches/00001/emr/submit.sh"),
        Step("serve", "node", "ends its machines"),
        Step("node", "serve", "ends its machines"),
        Step("node", "node", "ends its machines"),
        Step("serve", "serve", "ends its machines"),
        Step("node", "node", "writes its run"),
        Step("node", "prepare", "writes its run"),
        Step("serve", "serve", "reads the key of another endpoint"),
        Step("operator", "others", "tags a cluster as its own, and may end it then"),
        Step("operator", "another project", "tags a cluster as its own, and may end it then"),
        Step("viewer", "others", "ec2:DescribeLaunchTemplateVersions shows a start script or an environment"),
        Step("viewer", "others", "autoscaling:DescribeLaunchConfigurations shows a start script or an environment"),
        Step("viewer", "others", "sagemaker:DescribeTrainingJob shows a start script or an environment"),
        Step("viewer", "others", "ec2:DescribeVpnConnections shows CustomerGatewayConfiguration, PreSharedKey"),
        Step("operator", "others", "ec2:DescribeVpnConnections shows CustomerGatewayConfiguration, PreSharedKey"),
    ):
        assert step in found
    assert not {step for step in found if step.target == "anybody"}


def test_the_new_policies_alone_do_not_close_what_the_code_ran_from_the_runs_folder(full_base: RenderedBase) -> None:
    """Records of a run are written by its machines: what was moved is what is run as code."""
    assert Step("node", "operator", "writes runs/{run}/run.json") in steps(full_base, RUN_BEFORE)
