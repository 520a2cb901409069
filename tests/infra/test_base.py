"""The base without an account: Terraform's own tests, and what its roles may and may not do."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

import skytrain
from skytrain.aws import KINDS, Call, CloudResource, MachineImage, Tags, scale_to_zero
from skytrain.config import compose
from skytrain.config.schema.tuning import TuneConfig
from skytrain.planning.images import BASE_LINE
from skytrain.runs import LaunchId, create_launch
from skytrain.storage import open_store
from skytrain.targets import Preflight
from skytrain.targets.checks.offer import trial_call
from skytrain.targets.ec2.machines import Ec2Machines, removal_calls, set_sizes
from skytrain.targets.ec2.requests import launch_calls
from skytrain.targets.ec2.serve import delete_key, key_parameter, put_key
from skytrain.targets.emr.requests import cluster_call, serverless_calls
from tests.infra.conftest import ROLES, RenderedBase, TerraformTest, run_terraform_test
from tests.infra.launch_requests import OFFERS, RecordingSession, account_with, groups_of, record_of, role_of
from tests.infra.permissions import (
    BUCKET,
    GROUP,
    KEY,
    NODE_ROLE,
    NUMBER,
    OTHER,
    OURS,
    PREPARE_PROFILE,
    PREPARE_ROLE,
    PROFILE,
    PROJECT,
    REGION,
    ROLES_PATH,
    SERVE_ROLE,
    THEIRS,
    all_rows,
    existing,
    job,
)
from tests.support.actions import COMMAND_ACTIONS
from tests.support.iam.conditions import like
from tests.support.iam.policy import Authorization, Caller, Decision, Policy, decide
from tests.support.iam.requests import Account, authorizations
from tests.support.terraform import BASE, Terraform
from tests.targets.plans import offer, plan
from tests.targets.test_emr import job_of as emr_job
from tests.targets.test_sagemaker import job_of


def may(base: RenderedBase, role: str, call: Call, account: Account, tags: Mapping[str, str] | None = None) -> bool:
    """Whether a role may make a request: it needs every permission. `tags` are those of a launch's role."""
    policies, caller = base.policies(role), base.caller(role, tags)
    return all(
        decide(asked, policies, caller, _resource_policy(base, asked)) is Decision.ALLOWED
        for asked in authorizations(call, account)
    )


def _resource_policy(base: RenderedBase, asked: Authorization) -> Policy | None:
    if asked.resource == KEY:
        return base.document("aws_kms_key.main")
    if asked.resource.startswith(f"arn:aws:s3:::skytrain-demo-{NUMBER}-{REGION}"):
        return base.document("aws_s3_bucket_policy.store")
    return None


def subnet_of(base: RenderedBase) -> str:
    return str(base.resources['aws_subnet.private["us-east-2a"]']["id"])


def test_terraforms_own_tests_pass(terraform_test: TerraformTest) -> None:
    declared = {
        line.split('"')[1] for line in (BASE / "tests/base.tftest.hcl").read_text().splitlines() if line[:4] == "run "
    }
    assert terraform_test.statuses == dict.fromkeys(declared, "pass"), terraform_test.output


@pytest.mark.slow
def test_terraforms_own_tests_of_switches_and_bad_values_pass(tmp_path: Path) -> None:
    file = BASE / "tests" / "switches.tftest.hcl"
    declared = re.findall(r'^run "(\w+)"', file.read_text(), re.M)
    done = run_terraform_test(Terraform(BASE, tmp_path), f"tests/{file.name}")
    assert done.statuses == dict.fromkeys(declared, "pass") and len(declared) > 10, done.output


def test_each_role_may_do_exactly_what_the_table_says(base: RenderedBase) -> None:
    subnet = subnet_of(base)
    rows, account = all_rows(subnet), existing(subnet)
    assert len({row.asked for row in rows}) == len(rows)
    found = {row.asked: tuple(role for role in ROLES if may(base, role, row.call, account)) for row in rows}
    wrong = {row.asked: (row.allowed, found[row.asked]) for row in rows if set(row.allowed) != set(found[row.asked])}
    assert not wrong, "request: (expected, found)"


def test_the_table_is_large_and_refuses_as_well_as_allows(base: RenderedBase) -> None:
    rows = all_rows(subnet_of(base))
    for role in ROLES:
        allowed = sum(role in row.allowed for row in rows)
        assert allowed >= 8 and len(rows) - allowed >= 40
    assert len(rows) >= 60
    for page in (BASE / "README.md", BASE.parents[2] / "docs" / "aws.md"):
        assert f"{len(rows)} requests" in page.read_text()


def test_sagemaker_jobs_need_the_switch_our_tags_our_key_and_the_node_role(full_base: RenderedBase) -> None:
    subnet = subnet_of(full_base)
    account = existing(subnet)
    assert may(full_base, "operator", job(subnet), account)
    assert may(full_base, "operator", job(subnet, InstanceType="ml.c7i.4xlarge", VolumeKmsKeyId=KEY), account)
    for refused in (
        job(subnet, tags=None),
        job(subnet, InstanceType="ml.m5.large"),
        job(subnet, VolumeKmsKeyId=KEY.replace("1111", "9999")),
        job("subnet-elsewhere"),
        job(subnet, role=NODE_ROLE.replace("-node", "-operator")),
    ):
        assert not may(full_base, "operator", refused, account)
    assert not may(full_base, "node", job(subnet), account)


def test_operators_may_launch_training_jobs_as_launch_makes_them_and_sagemaker_reads_its_channels(
    base: RenderedBase, full_base: RenderedBase
) -> None:
    subnet = subnet_of(full_base)
    account = existing(subnet)
    spec = job_of(offer("p4d.24xlarge", 2), role=NODE_ROLE)
    network = replace(spec.cloud.subnets, private={"us-east-2a": subnet})
    cloud = replace(spec.cloud, subnets=network, kms_key=KEY, security_group=GROUP)
    call = replace(spec, cloud=cloud, tags=Tags(PROJECT, "ada")).request()
    assert may(full_base, "operator", call, account) and not may(base, "operator", call, account)
    for key in ("launches/gpt2/00001/start.sh", "bundles/0123/x.whl"):
        assert may(full_base, "node", Call("s3", "GetObject", {"Bucket": BUCKET, "Key": f"{PROJECT}/{key}"}), account)
    written = {"Bucket": BUCKET, "Key": f"{PROJECT}/runs/gpt2/launches/00001/output/x.tar.gz", "Body": b""}
    assert may(full_base, "node", Call("s3", "PutObject", written), account)
    aws_images = f"arn:aws:ecr:{REGION}:763104351884:repository/pytorch-training"
    for role in ("operator", "node"):
        for rendered, expected in ((base, Decision.NOT_ALLOWED), (full_base, Decision.ALLOWED)):
            asked = Authorization("ecr:BatchGetImage", aws_images, {})
            assert decide(asked, rendered.policies(role), rendered.caller(role)) is expected


def test_applications_of_emr_are_created_with_our_tags_and_not_taken_from_another_project(
    base: RenderedBase, full_base: RenderedBase
) -> None:
    account = existing(subnet_of(full_base))
    create = {"releaseLabel": "emr-7.0.0", "type": "SPARK"}
    tagged = Call("emr-serverless", "CreateApplication", {**create, "tags": OURS.mapping()}, "gpt2")
    assert may(full_base, "operator", tagged, account) and not may(base, "operator", tagged, account)
    assert not may(full_base, "operator", Call("emr-serverless", "CreateApplication", create, "gpt2"), account)
    theirs = account.arn("emr-serverless", "/applications/theirs")
    retag = Call("emr-serverless", "TagResource", {"resourceArn": theirs, "tags": OURS.mapping()})
    assert not may(full_base, "operator", retag, account)


def test_a_launch_on_emr_is_allowed_with_our_tags_and_roles_and_no_others(
    base: RenderedBase, full_base: RenderedBase
) -> None:
    subnet = subnet_of(full_base)
    tags = {
        **existing(subnet).tags,
        f"arn:aws:emr-serverless:{REGION}:{NUMBER}:/applications/APPLICATION_ID": OURS.mapping(),
    }
    account = replace(existing(subnet), tags=tags)
    job = emr_job()
    service = f"arn:aws:iam::{NUMBER}:role/skytrain-{PROJECT}-{REGION}-emr-service"
    roles = replace(job.cloud.roles, prepare=PREPARE_ROLE, emr_service=service)
    cloud = replace(
        job.cloud, roles=roles, prepare_profile=PREPARE_PROFILE, security_group=GROUP,
        subnets=replace(job.cloud.subnets, private={"us-east-2a": subnet}),
    )  # fmt: skip
    ours = replace(job, cloud=cloud, tags=Tags(PROJECT, "ada"))
    calls = [*serverless_calls(ours), cluster_call(ours, subnet, "s3://b/bootstrap.sh", "s3://b/launch.tar.gz")]
    stops = [
        Call("emr-serverless", "CancelJobRun", {"applicationId": "ours", "jobRunId": "1"}),
        Call("emr", "TerminateJobFlows", {"JobFlowIds": ["j-OURS"]}),
    ]
    for call in [*calls, *stops]:
        assert may(full_base, "operator", call, account), call.operation
        assert not may(full_base, "viewer", call, account), call.operation
    for call in calls:
        assert not may(base, "operator", call, account), call.operation
    theirs = replace(ours, tags=Tags("other", "ada"))
    own_role = replace(ours, cloud=replace(cloud, roles=replace(roles, prepare=f"arn:aws:iam::{NUMBER}:role/admin")))
    assert not may(full_base, "operator", serverless_calls(theirs)[0], account)
    assert not may(full_base, "operator", cluster_call(theirs, subnet, "s3://b/x", "s3://b/y"), account)
    assert not may(full_base, "operator", serverless_calls(own_role)[1], account)
    written = {"Bucket": BUCKET, "Key": f"{PROJECT}/runs/prepare-pile/launches/00001/logs/x.gz", "Body": b""}
    assert may(full_base, "prepare", Call("s3", "PutObject", written), account)


def test_machines_write_data_only_where_node_writes_says_so(base: RenderedBase, full_base: RenderedBase) -> None:
    account = existing(subnet_of(base))
    write = Call("s3", "PutObject", {"Bucket": account.bucket, "Key": "demo/tokens/pile/1/shard", "Body": b""})
    assert may(full_base, "node", write, account)
    assert not may(base, "node", write, account)


def test_pods_that_train_write_runs_and_nothing_that_others_execute_and_those_that_serve_read_exports(
    base: RenderedBase,
) -> None:
    """Pods of EKS have one role each, with the base's policies: every request is decided by these alone."""
    folders = (
        "bundles",
        "corpora",
        "exports",
        "images",
        "launches",
        "models",
        "runs/gpt2",
        "runs/serve-tiny",
        "sweeps/lr",
        "tokens",
    )
    pods = {
        "shared_store": (set(folders), {"runs/gpt2", "sweeps/lr"}),
        "exports": ({"exports"}, set[str]()),
    }
    for name, (reads, writes) in pods.items():
        policy = [base.document(f"aws_iam_policy.{name}")]

        def allowed(action: str, key: str, policy: list[Policy] = policy) -> bool:
            asked = Authorization(f"s3:{action}", f"arn:aws:s3:::{BUCKET}/{key}", {})
            return decide(asked, policy, Caller(f"arn:aws:iam::{NUMBER}:role/pod")) is Decision.ALLOWED

        assert {each for each in folders if allowed("GetObject", f"{PROJECT}/{each}/x")} == reads
        assert {each for each in folders if allowed("PutObject", f"{PROJECT}/{each}/x")} == writes
        assert {each for each in folders if allowed("DeleteObject", f"{PROJECT}/{each}/x")} == writes
        assert not any(allowed(action, "other/runs/x/y") for action in ("GetObject", "PutObject"))
        assert not allowed("DeleteObjectVersion", f"{PROJECT}/runs/gpt2/x")


def test_machines_that_prepare_data_write_it_and_nothing_that_others_execute(base: RenderedBase) -> None:
    account = existing(subnet_of(base))

    def writes(role: str, key: str) -> bool:
        return may(base, role, Call("s3", "PutObject", {"Bucket": BUCKET, "Key": key, "Body": b""}), account)

    for folder in ("corpora", "tokens", "tokenizers"):
        assert writes("prepare", f"{PROJECT}/{folder}/pile/1/part") and not writes(
            "node", f"{PROJECT}/{folder}/pile/1/part"
        )
    assert writes("prepare", f"{PROJECT}/runs/prepare-pile/meeting/ready/1x1/i-1.json")
    for role in ("node", "prepare", "serve"):
        for run in ("gpt2", "prepare-pile", "serve-tiny"):
            assert not writes(role, f"{PROJECT}/launches/{run}/00001/config.tar.gz"), role
    assert not writes("prepare", f"{PROJECT}/bundles/0123/x.whl") and not writes("prepare", "other/tokens/pile/1/part")
    assert may(
        base, "prepare", Call("s3", "GetObject", {"Bucket": BUCKET, "Key": f"{PROJECT}/bundles/1/x.whl"}), account
    )


def test_machines_that_serve_read_exported_models_and_their_key_and_nothing_of_others(base: RenderedBase) -> None:
    run, name = "serve-tiny", key_parameter(PROJECT, "serve-tiny", "00001")
    ours = Tags(PROJECT, "ada", run, OURS.expires_at)
    account = replace(
        existing(subnet_of(base)), tags={f"arn:aws:ssm:{REGION}:{NUMBER}:parameter{name}": ours.mapping()}
    )

    def may_s3(operation: str, key: str) -> bool:
        body = {"Body": b""} if operation == "PutObject" else {}
        return may(base, "serve", Call("s3", operation, {"Bucket": BUCKET, "Key": f"{PROJECT}/{key}", **body}), account)

    for key in ("exports/tiny/model.safetensors", "bundles/1/x.whl", f"launches/{run}/00001/config.tar.gz"):
        assert may_s3("GetObject", key)
    for key in ("runs/gpt2/checkpoints/1/x", "tokens/pile/1/shard", "corpora/pile/part", "exports/../runs/gpt2/x"):
        assert not may_s3("PutObject", key) and (".." in key or not may_s3("GetObject", key))
    assert may_s3("PutObject", f"runs/{run}/meeting/boot/i-1.json") and not may_s3("PutObject", "exports/tiny/x")
    listed = {"Bucket": BUCKET, "Prefix": f"{PROJECT}/exports/tiny/"}
    assert may(base, "serve", Call("s3", "ListObjectsV2", listed), account)
    assert not may(base, "serve", Call("s3", "ListObjectsV2", {**listed, "Prefix": f"{PROJECT}/runs/gpt2/"}), account)
    read, put = Call("ssm", "GetParameter", {"Name": name, "WithDecryption": True}), put_key(name, "x", ours, KEY)
    who = {role: (may(base, role, read, account), may(base, role, put, account), may(base, role, delete_key(name), account))
           for role in ("serve", "operator", "node", "viewer")}  # fmt: skip
    assert who == {"serve": (True, False, False), "operator": (True, True, True)} | dict.fromkeys(
        ("node", "viewer"), (False, False, False)
    )
    others = replace(account, tags={arn: {**tags, "skytrain:run": "serve-other"} for arn, tags in account.tags.items()})
    assert not may(base, "serve", read, others) and may(base, "operator", read, others)
    assert not may(base, "operator", put_key(name, "x", Tags("other", "bob", run, OURS.expires_at), KEY), account)
    assert not may(base, "operator", put_key("/payroll/password", "x", ours, KEY), account)


@pytest.mark.parametrize("service", ["lambda.amazonaws.com", "sagemaker.amazonaws.com", "ecs-tasks.amazonaws.com"])
def test_the_node_role_is_passed_to_ec2_alone(base: RenderedBase, service: str) -> None:
    def passed(role: str, arn: str, to: str) -> bool:
        asked = Authorization("iam:PassRole", arn, {"iam:PassedToService": to})
        return decide(asked, base.policies(role), base.caller(role)) is Decision.ALLOWED

    for role in (NODE_ROLE, PREPARE_ROLE, SERVE_ROLE):
        assert passed("operator", role, "ec2.amazonaws.com") and not passed("operator", role, service)
        assert not passed("node", role, "ec2.amazonaws.com") and not passed("prepare", role, "ec2.amazonaws.com")
    assert not passed("operator", NODE_ROLE, service)
    assert not passed("operator", NODE_ROLE.replace("-node", "-operator"), "ec2.amazonaws.com")
    assert not passed("node", NODE_ROLE, "ec2.amazonaws.com") and not passed("viewer", NODE_ROLE, "ec2.amazonaws.com")


def test_people_end_only_their_own_sessions(base: RenderedBase) -> None:
    def ended(session_of: str) -> Decision:
        context = {"aws:userid": "AROA:ada", "ssm:resourceTag/aws:ssmmessages:session-id": session_of}
        session = f"arn:aws:ssm:{REGION}:{NUMBER}:session/ada-0"
        asked = Authorization("ssm:TerminateSession", session, context)
        return decide(asked, base.policies("operator"), base.caller("operator"))

    assert ended("AROA:ada") is Decision.ALLOWED
    assert ended("AROA:bob") is Decision.NOT_ALLOWED


def test_the_key_serves_the_volumes_of_auto_scaling_and_spot(base: RenderedBase) -> None:
    roles = f"arn:aws:iam::{NUMBER}:role/aws-service-role/"
    scaling = Caller(roles + "autoscaling.amazonaws.com/AWSServiceRoleForAutoScaling")
    spot = Caller(roles + "spot.amazonaws.com/AWSServiceRoleForEC2Spot")
    stranger = Caller(f"arn:aws:iam::{NUMBER}:role/stranger")
    policy = base.document("aws_kms_key.main")

    def granted(caller: Caller, for_aws: str = "true", account: str = NUMBER) -> bool:
        context = {"kms:CallerAccount": account, "kms:GrantIsForAWSResource": for_aws}
        return decide(Authorization("kms:CreateGrant", KEY, context), [], caller, policy) is Decision.ALLOWED

    assert granted(scaling) and granted(spot)
    assert not granted(scaling, for_aws="false") and not granted(scaling, account="444455556666")
    assert not granted(stranger)


def test_the_key_opens_the_bucket_for_file_systems_and_for_nothing_else(base: RenderedBase) -> None:
    folder = f"arn:aws:iam::{NUMBER}:role/aws-service-role/s3.data-source.lustre.fsx.amazonaws.com/"
    fsx = Caller(f"{folder}AWSServiceRoleForFSxS3Access_fs-0123456789abcdef0")
    bucket = f"arn:aws:s3:::skytrain-demo-{NUMBER}-{REGION}"
    policy = base.document("aws_kms_key.main")

    def decrypts(caller: Caller, via: str = "s3", of: str = bucket) -> bool:
        context = {
            "kms:CallerAccount": NUMBER,
            "kms:ViaService": f"{via}.{REGION}.amazonaws.com",
            "kms:EncryptionContext:aws:s3:arn": of,
        }
        return decide(Authorization("kms:Decrypt", KEY, context), [], caller, policy) is Decision.ALLOWED

    assert decrypts(fsx) and decrypts(fsx, of=f"{bucket}/demo/tokens/x")
    assert not decrypts(fsx, via="ec2") and not decrypts(fsx, of="arn:aws:s3:::other")
    assert not decrypts(Caller(f"arn:aws:iam::{NUMBER}:role/stranger"))


def test_nodes_of_an_emr_cluster_use_the_key_of_their_disks_and_not_that_of_the_bucket(full_base: RenderedBase) -> None:
    settings = full_base.document("aws_emr_security_configuration.main[0]", "configuration")
    at_rest = settings["EncryptionConfiguration"]["AtRestEncryptionConfiguration"]
    disks = at_rest["LocalDiskEncryptionConfiguration"]["AwsKmsKey"]
    assert disks != at_rest["S3EncryptionConfiguration"]["AwsKmsKey"]
    caller = full_base.caller("prepare")

    def uses(key: str) -> bool:  # a node's own request to KMS, not through another service
        asked = Authorization("kms:GenerateDataKey", key, {})
        return decide(asked, full_base.policies("prepare"), caller) is Decision.ALLOWED

    assert uses(disks) and not uses(at_rest["S3EncryptionConfiguration"]["AwsKmsKey"])


def test_the_bucket_refuses_plain_http_and_old_tls(base: RenderedBase) -> None:
    policy, caller = base.document("aws_s3_bucket_policy.store"), base.caller("operator")
    target = f"arn:aws:s3:::skytrain-demo-{NUMBER}-{REGION}/demo/runs/x"

    def read(secure: str, version: str) -> Decision:
        asked = Authorization("s3:GetObject", target, {"aws:SecureTransport": secure, "s3:TlsVersion": version})
        return decide(asked, base.policies("operator"), caller, policy)

    assert read("true", "1.3") is read("true", "1.2") is Decision.ALLOWED
    assert read("false", "1.3") is read("true", "1.1") is Decision.DENIED


def test_only_the_services_of_a_base_may_assume_its_roles(base: RenderedBase, full_base: RenderedBase) -> None:
    def assumes(rendered: RenderedBase, service: str, account: str = NUMBER) -> bool:
        trust = rendered.document("aws_iam_role.node", "assume_role_policy")
        asked = Authorization("sts:AssumeRole", NODE_ROLE, {"aws:SourceAccount": account})
        return decide(asked, [], Caller(service=service), trust) is Decision.ALLOWED

    assert assumes(base, "ec2.amazonaws.com") and not assumes(base, "sagemaker.amazonaws.com")
    assert assumes(full_base, "sagemaker.amazonaws.com") and not assumes(full_base, "emr-serverless.amazonaws.com")
    trust = full_base.document("aws_iam_role.prepare", "assume_role_policy")
    for number, expected in ((NUMBER, Decision.ALLOWED), ("444455556666", Decision.NOT_ALLOWED)):
        asked = Authorization("sts:AssumeRole", PREPARE_ROLE, {"aws:SourceAccount": number})
        assert decide(asked, [], Caller(service="emr-serverless.amazonaws.com"), trust) is expected
    assert not assumes(full_base, "sagemaker.amazonaws.com", account="444455556666")


class AllTagged(dict[str, Mapping[str, str]]):
    """An account in which everything has the same tags."""

    def __init__(self, tags: Tags) -> None:
        self.same = tags.mapping()

    def get(self, arn: str, default: object = None) -> Mapping[str, str]:  # type: ignore[override]
        return self.same


@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if kind.deletes])
def test_what_gc_deletes_must_belong_to_a_run_of_the_project(base: RenderedBase, kind: str) -> None:
    facts = {
        "association": "eipassoc-1",
        "nodegroups": ["gpus"],
        "bucket": BUCKET,
        "key": "demo/runs/gpt2/x",
        "upload": "1",
        "policies": [f"arn:aws:iam::{NUMBER}:policy/node_store"],
        "profiles": ["name-0123456789"],
    }
    resource = CloudResource(kind, "name-0123456789", REGION, OURS, facts=facts)
    calls = KINDS[kind].delete(resource)
    if kind == "Auto Scaling group":
        calls.append(scale_to_zero(resource))  # `skytrain stop`
    account = replace(existing(subnet_of(base)), iam_paths={"name-0123456789": ROLES_PATH})

    def allowed(role: str, tags: Tags) -> bool:
        return all(may(base, role, call, replace(account, tags=AllTagged(tags))) for call in calls)

    assert calls and allowed("operator", OURS) and not allowed("viewer", OURS)
    if "bucket" not in calls[0].parameters and calls[0].service != "s3":  # an upload has a key instead of tags
        assert not allowed("operator", THEIRS)
        assert not allowed("operator", Tags(PROJECT, "ml-team"))  # the base


def test_doctors_trial_launch_is_one_that_the_operator_may_make(base: RenderedBase) -> None:
    subnet = subnet_of(base)
    config = compose(
        [
            f"cloud.project={PROJECT}",
            f"cloud.region={REGION}",
            f"cloud.instance_profile={PROFILE}",
            f"cloud.security_group={GROUP}",
            f"cloud.subnets.private={{us-east-2a: {subnet}}}",
            "cloud.owner=ada",
        ]
    ).config
    for chosen in (offer(), offer("p4d.24xlarge"), offer("g5.xlarge", nodes=1, market="on-demand")):
        preflight = Preflight(config, plan(chosen), image=MachineImage("ami-0123456789abcdef0", BASE_LINE))
        call = trial_call(preflight)
        assert may(base, "operator", call, existing(subnet))
        assert not may(base, "node", call, existing(subnet)) and not may(base, "viewer", call, existing(subnet))


@pytest.mark.parametrize("name", OFFERS)
def test_operators_may_launch_and_end_and_nobody_else_may_launch(base: RenderedBase, name: str) -> None:
    subnet, ours = subnet_of(base), AllTagged(OURS)
    groups, role = groups_of(subnet, OFFERS[name]), role_of(OFFERS[name])
    calls, session = [*role.calls, *launch_calls(groups)], RecordingSession()
    set_sizes(session, record_of(groups), 0)  # type: ignore[arg-type]
    role.remove(session, pytest.fail)  # type: ignore[arg-type]
    account = account_with(subnet, calls, ours)
    for call in [*calls, *session.calls, *removal_calls(record_of(groups))]:
        assert may(base, "operator", call, account), call.operation
    for call in calls:
        assert not may(base, "viewer", call, account)
        # Machines of the run may size its groups, within the limits that the launch set.
        assert may(base, "node", call, account) is (call.operation == "SetDesiredCapacity")


@pytest.mark.parametrize("name", OFFERS)
def test_machines_may_end_the_run_try_its_next_offer_and_start_the_run_after_a_smoke_run(
    base: RenderedBase, name: str, tmp_path: Path
) -> None:
    subnet, ours = subnet_of(base), AllTagged(OURS)
    groups = groups_of(subnet, OFFERS[name])
    record, session = record_of(groups), RecordingSession()
    store, then = open_store(str(tmp_path)), LaunchId("llama", "00001")
    create_launch(store, replace(record, run=then.run, after=LaunchId(record.run, record.id)))
    machines = Ec2Machines(session, store, replace(record, then=then), "i-ours", lambda _: None)  # type: ignore[arg-type]
    machines.end_run(0)
    store.delete(f"runs/{then.run}/launches/{then.launch}/started.json")
    machines.end_run(1)
    machines.set_desired(0)
    machines.delete_groups()
    machines.replace_me("test")
    machines.prove(1)
    machines.keep_waiting()
    machines.lack_nodes(0, 1, 0.0)
    machines.terminate_me()
    set_sizes(session, record, len(groups) - 1)  # type: ignore[arg-type]
    account = account_with(subnet, launch_calls(groups), ours)
    assert {call.operation for call in session.calls} >= {
        "SetDesiredCapacity",
        "TerminateInstances",
        "CompleteLifecycleAction",
        "RecordLifecycleActionHeartbeat",
        "DescribeScalingActivities",
    }
    role = "prepare" if name == "prepare" else "node"
    assert all(may(base, role, call, account) for call in session.calls)
    for call in [call for call in session.calls if call.mutates]:
        assert not may(base, "viewer", call, account), call.operation
        for others in (Tags("other", "bob", "gpt2"), replace(OURS, run="llama")):
            assert not may(base, "node", call, replace(account, tags=AllTagged(others))), call.operation


def test_a_role_that_trusts_somebody_else_is_good_for_nothing_outside_the_machines_of_the_base(
    base: RenderedBase,
) -> None:
    """Whoever creates a role writes whom it trusts: an operator could let another account in."""
    asked = Authorization("s3:GetObject", f"arn:aws:s3:::{BUCKET}/{PROJECT}/runs/gpt2/run.json", {})
    machine = base.caller("node")
    assert decide(asked, base.policies("node"), machine) is Decision.ALLOWED
    for elsewhere in ("", "vpc-of-somebody-else"):
        assert decide(asked, base.policies("node"), replace(machine, vpc=elsewhere)) is Decision.DENIED


def test_the_boundary_holds_whatever_is_attached(base: RenderedBase, full_base: RenderedBase) -> None:
    everything = [{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}]
    refused = [
        ("iam:CreateUser", "*"),
        ("iam:PassRole", NODE_ROLE),
        ("sts:AssumeRole", f"arn:aws:iam::{NUMBER}:role/admin"),
        ("ec2:RunInstances", f"arn:aws:ec2:{REGION}:{NUMBER}:instance/*"),
        ("s3:GetObject", f"arn:aws:s3:::{BUCKET}/{OTHER}/runs/x"),
        ("s3:PutObject", f"arn:aws:s3:::{BUCKET}/{PROJECT}/launches/gpt2/00001/config.tar.gz"),
        ("s3:PutObject", f"arn:aws:s3:::{BUCKET}/{PROJECT}/bundles/0123/x.whl"),
        ("ssm:GetParameter", f"arn:aws:ssm:{REGION}:{NUMBER}:parameter/payroll/password"),
        ("secretsmanager:GetSecretValue", f"arn:aws:secretsmanager:{REGION}:{NUMBER}:secret:payroll-abcdef"),
    ]
    for rendered in (base, full_base):
        for action, resource in refused:
            decided = decide(Authorization(action, resource, {}), everything, rendered.caller("node"))
            assert decided is Decision.NOT_ALLOWED, action
        read = Authorization("s3:GetObject", f"arn:aws:s3:::{BUCKET}/{PROJECT}/tokens/x", {})
        assert decide(read, everything, rendered.caller("node")) is Decision.ALLOWED


@pytest.mark.parametrize("kind", ["node", "prepare", "serve"])
def test_the_pattern_of_a_role_writes_nothing_and_ends_nothing(base: RenderedBase, kind: str) -> None:
    account = existing(subnet_of(base))
    for run in ("gpt2", "serve-tiny", ""):
        write = Call("s3", "PutObject", {"Bucket": BUCKET, "Key": f"{PROJECT}/runs/{run}/x", "Body": b""})
        assert not may(base, kind, write, account, tags={})
    for machine in ("i-ours", "i-endpoint"):
        end = Call("ec2", "TerminateInstances", {"InstanceIds": [machine]})
        assert not may(base, kind, end, account, tags={})


def test_machines_read_their_packages_and_report_failed_boots(base: RenderedBase) -> None:
    account = existing(subnet_of(base))
    for key in (f"{PROJECT}/bundles/0123/x.whl", f"{PROJECT}/launches/gpt2/00001/config.tar.gz"):
        assert may(base, "node", Call("s3", "GetObject", {"Bucket": BUCKET, "Key": key}), account)
    failed = f"{PROJECT}/runs/gpt2/launches/00001/boot-failures/"
    assert may(
        base, "node", Call("s3", "PutObject", {"Bucket": BUCKET, "Key": f"{failed}i-1.log", "Body": b""}), account
    )
    assert may(base, "node", Call("s3", "ListObjectsV2", {"Bucket": BUCKET, "Prefix": failed}), account)
    changed = Call("s3", "PutObject", {"Bucket": BUCKET, "Key": f"{PROJECT}/bundles/0123/x.whl", "Body": b""})
    assert may(base, "operator", changed, account) and not may(base, "node", changed, account)


def granted_somewhere(base: RenderedBase, role: str, action: str) -> bool:
    """Whether some statement of a role allows the action, on whatever resource and condition."""
    return any(
        like(action.lower(), each.lower())
        for policy in base.policies(role)
        for statement in policy["Statement"]
        for each in ([statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"])
    )


FOR_EVERYBODY = {"sts:GetCallerIdentity"}  # AWS allows it without any policy


OF_NODES = {"secretsmanager:GetSecretValue", "autoscaling:RecordLifecycleActionHeartbeat"}  # that only machines make


SWITCHED = {  # on where the base has the switches `sagemaker` and `emr`
    "elasticmapreduce:RunJobFlow",
    "emr-serverless:CreateApplication",
    "emr-serverless:StartJobRun",
    "sagemaker:CreateTrainingJob",
}


def test_every_request_in_our_code_is_one_that_the_operator_may_make_somewhere(
    base: RenderedBase, full_base: RenderedBase
) -> None:
    needed = set(_actions_in_our_code()) - FOR_EVERYBODY - OF_NODES
    assert len(needed) > 50
    assert all(granted_somewhere(base, "node", action) for action in OF_NODES)
    assert {action for action in needed if not granted_somewhere(base, "operator", action)} == SWITCHED
    assert all(granted_somewhere(full_base, "operator", action) for action in SWITCHED)


def test_operators_may_use_every_command_and_viewers_those_that_only_look(
    base: RenderedBase, full_base: RenderedBase
) -> None:
    def granted(role: str, command: str, action: str) -> bool:
        return granted_somewhere(full_base if "sagemaker" in command or "emr" in command else base, role, action)

    lacking = {
        (role, command): [each for each in actions if each not in FOR_EVERYBODY and not granted(role, command, each)]
        for role in ("operator", "viewer")
        for command, actions in COMMAND_ACTIONS.items()
    }
    assert not any(missing for (role, _), missing in lacking.items() if role == "operator"), lacking
    viewers = {command for (role, command), missing in lacking.items() if role == "viewer" and not missing}
    assert viewers >= {
        "status",
        "logs",
        "costs",
        "gc",
        "status cloud=sagemaker",
        "logs cloud=sagemaker",
        "status cloud=emr",
    }
    assert viewers.isdisjoint({"stop", "shell", "gc --delete", "store copy", "stop cloud=sagemaker", "stop cloud=emr"})


def _actions_in_our_code() -> Iterator[str]:
    folder = Path(skytrain.__file__).parent
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            maker = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
            if maker in ("Call", "delete_by", "ec2_listing") and len(node.args) >= 2:
                service, operation = node.args[:2] if maker != "ec2_listing" else (ast.Constant("ec2"), node.args[1])
                if isinstance(service, ast.Constant) and isinstance(operation, ast.Constant):
                    yield Call(str(service.value), str(operation.value)).action


def test_our_tags_are_the_ones_that_the_conditions_name(base: RenderedBase) -> None:
    text = str([base.policies(role) for role in ROLES])
    for name in OURS.mapping():
        assert f"aws:RequestTag/{name}" in text


# What version 6 of the provider removes or renames, by its upgrade guide, of resources that are used here.
def test_the_policy_knows_every_axis_of_which_a_sweep_has_sweeps_of_its_own() -> None:
    found = re.search(r"tuned_axes = (\[.*\])", (BASE / "roles_node.tf").read_text())
    assert found and json.loads(found[1]) == sorted(get_args(get_type_hints(TuneConfig)["axis"]))


GONE_IN_6 = {
    "aws_eip": ("vpc",),
    "aws_eks_addon": ("resolve_conflicts",),
    "aws_flow_log": ("log_group_name",),
    "aws_launch_template": ("elastic_gpu_specifications", "elastic_inference_accelerator"),
}


def test_nothing_is_used_that_version_6_of_the_provider_removes() -> None:
    text = "\n".join(path.read_text() for path in sorted(BASE.parent.glob("*/*.tf")))
    used = set()
    for kind, arguments in GONE_IN_6.items():
        blocks = re.findall(rf'^resource "{kind}" .*?^}}', text, re.S | re.M)
        assert blocks, f"{kind} is not used any more: take it out of the list"
        used |= {
            f"{kind}.{name}" for block in blocks for name in arguments if re.search(rf"^\s*{name}\s*[={{]", block, re.M)
        }
    assert not used
    assert 'data "aws_region"' not in text, "its attribute `name` is `region` in 6"
