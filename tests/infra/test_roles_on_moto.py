"""The roles against a local control plane that enforces IAM, for requests that action and S3 key alone decide.

moto ignores conditions, so that the rest is decided in test_base.py.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore import xform_name
from botocore.exceptions import ClientError

from tests.infra.conftest import ROLES, RenderedBase
from tests.infra.permissions import BUCKET, NOBODY, REGION, Row, store_rows
from tests.support.moto_account import moto_account

pytestmark = pytest.mark.slow

DENIED = {"AccessDenied", "AccessDeniedException", "403", "UnauthorizedOperation"}


@pytest.fixture(scope="module")
def roles(base: RenderedBase) -> Iterator[dict[str, Any]]:
    """What makes a role's client of a service, in an account that enforces the rendered policies."""
    with moto_account() as endpoint:
        root = boto3.Session("testing", "testing", region_name=REGION)
        iam, s3 = (root.client(service, endpoint_url=endpoint) for service in ("iam", "s3"))
        for bucket in (BUCKET, "payroll"):
            s3.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": REGION})
        for row in store_rows():
            if "Key" in row.call.parameters:
                s3.put_object(Bucket=row.call.parameters["Bucket"], Key=row.call.parameters["Key"], Body=b"x")
        sessions = {role: _assumed(root, endpoint, base, role, iam) for role in ROLES}
        _enforce(endpoint, True)
        yield {role: lambda name, of=of: of.client(name, endpoint_url=endpoint) for role, of in sessions.items()}
        _enforce(endpoint, False)


def _assumed(root: boto3.Session, endpoint: str, base: RenderedBase, role: str, iam: Any) -> boto3.Session:
    trust = json.dumps({"Version": "2012-10-17", "Statement": []})
    arn = iam.create_role(RoleName=role, AssumeRolePolicyDocument=trust)["Role"]["Arn"]
    for number, policy in enumerate(base.policies(role)):
        text = json.dumps(policy)
        for key, value in base.caller(role).tags.items():  # moto knows no policy variables
            text = text.replace(f"${{aws:PrincipalTag/{key}}}", value)
        text = text.replace("?", ".")  # moto takes a resource for a regular expression, in which only `*` is IAM's
        made = iam.create_policy(PolicyName=f"{role}-{number}", PolicyDocument=text)
        iam.attach_role_policy(RoleName=role, PolicyArn=made["Policy"]["Arn"])
    sts = root.client("sts", endpoint_url=endpoint)
    given = sts.assume_role(RoleArn=arn, RoleSessionName="test")["Credentials"]
    return boto3.Session(given["AccessKeyId"], given["SecretAccessKey"], given["SessionToken"], REGION)


def _enforce(endpoint: str, on: bool) -> None:
    """moto's own switch: how many more requests pass unchecked."""
    kind = {"Content-Type": "application/octet-stream"}
    request = urllib.request.Request(f"{endpoint}/moto-api/reset-auth", b"0" if on else b"inf", kind, method="POST")
    urllib.request.urlopen(request).read()


# Requests that the action alone decides.
ACTIONS = [
    ("ec2", "describe_instances", {}, ROLES),
    ("autoscaling", "describe_auto_scaling_groups", {}, ROLES),
    ("iam", "create_user", {"UserName": "backdoor"}, NOBODY),
    ("iam", "list_users", {}, NOBODY),
    ("ec2", "create_key_pair", {"KeyName": "laptop"}, NOBODY),
    ("ec2", "stop_instances", {"InstanceIds": ["i-0123456789abcdef0"]}, NOBODY),
    ("secretsmanager", "list_secrets", {}, NOBODY),
]


@pytest.mark.parametrize("row", store_rows(), ids=lambda row: row.asked)
@pytest.mark.parametrize("role", ROLES)
def test_a_role_reads_and_writes_what_the_table_says(roles: dict[str, Any], role: str, row: Row) -> None:
    assert _passes(roles[role]("s3"), xform_name(row.call.operation), row.call.body()) == (role in row.allowed)


@pytest.mark.parametrize(("service", "operation", "parameters", "allowed"), ACTIONS)
def test_a_role_does_what_its_actions_say(
    roles: dict[str, Any], service: str, operation: str, parameters: dict[str, Any], allowed: tuple[str, ...]
) -> None:
    assert {role for role in ROLES if _passes(roles[role](service), operation, parameters)} == set(allowed)


@pytest.mark.parametrize("role", ["node", "viewer"])
def test_only_the_operator_starts_machines(roles: dict[str, Any], role: str) -> None:
    assert not _passes(roles[role]("ec2"), "run_instances", {"ImageId": "ami-1", "MinCount": 1, "MaxCount": 1})


def _passes(client: Any, operation: str, parameters: dict[str, Any]) -> bool:
    try:
        getattr(client, operation)(**parameters)
    except ClientError as error:
        code = error.response["Error"]["Code"]
        assert code in (*DENIED, "NoSuchKey"), error
        return code == "NoSuchKey"  # the row of another role has deleted it
    return True
