"""The base is applied to a local control plane and destroyed again, with nothing left."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from tests.support.moto_account import local_credentials, moto_account
from tests.support.terraform import BASE, Terraform

pytestmark = pytest.mark.slow

REGION = "us-east-2"
# One base with a NAT and one closed network with every switch: together they create every resource there is.
OPEN = {"region": REGION, "project": "demo", "owner": "ml-team"}
CLOSED = {
    "region": REGION,
    "project": "closed",
    "owner": "ml-team",
    "nat_gateway": False,
    "interface_endpoints": True,
    "flow_logs": True,
    "cloudtrail": True,
    "sagemaker": True,
    "emr": True,
    "delete_data_on_destroy": True,
}


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("MOTO_IAM_LOAD_MANAGED_POLICIES", "true")  # AWS's own, one of which EMR's service role has
    with moto_account() as endpoint:
        yield endpoint


@pytest.mark.parametrize("settings", [OPEN, CLOSED], ids=["open", "closed"])
def test_one_apply_creates_the_base_and_destroy_leaves_nothing(
    tmp_path: Path, account: str, settings: dict[str, Any]
) -> None:
    before = _inventory(account)
    terraform = Terraform(BASE, tmp_path, local_credentials(account))
    (tmp_path / "local_override.tf").write_text('provider "aws" {\n  s3_use_path_style = true\n}\n')
    (tmp_path / "terraform.tfvars.json").write_text(json.dumps(settings))

    terraform.run("apply", "-auto-approve")

    outputs = terraform.outputs()
    assert outputs["store"] == f"s3://{outputs['bucket']}/{settings['project']}"
    assert len(outputs["private_subnets"]) == len(outputs["public_subnets"]) == 3  # type: ignore[arg-type]
    assert outputs["closed_network"] is (settings is CLOSED)
    created = _inventory(account)
    for kind in ("buckets", "roles", "vpcs", "keys", "repositories", "log groups", "budgets"):
        assert created[kind] > before[kind], kind
    assert (created["NAT gateways"], created["internet gateways"]) == ((0, 0) if settings is CLOSED else (1, 1))
    tags = _tags_of_the_network(account, str(outputs["vpc_id"]))
    emr = {"for-use-with-amazon-emr-managed-policies": "true"} if settings is CLOSED else {}
    ours = {"skytrain:project": settings["project"], "skytrain:owner": "ml-team", "Name": tags["Name"]}
    assert tags == {**ours, **emr}

    terraform.run("destroy", "-auto-approve")

    assert _inventory(account) == before
    assert json.loads((tmp_path / "terraform.tfstate").read_text())["resources"] == []


def _client(endpoint: str, service: str, region: str = REGION) -> Any:
    return boto3.client(
        service,
        region_name=region,
        endpoint_url=endpoint,
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )


def _tags_of_the_network(endpoint: str, vpc: str) -> dict[str, str]:
    (found,) = _client(endpoint, "ec2").describe_vpcs(VpcIds=[vpc])["Vpcs"]
    return {tag["Key"]: tag["Value"] for tag in found["Tags"]}


def _inventory(endpoint: str) -> dict[str, int]:
    """How many things of each kind the account holds. A key that waits for its deletion is gone."""
    ec2, iam, kms = (_client(endpoint, service) for service in ("ec2", "iam", "kms"))
    keys = [kms.describe_key(KeyId=key["KeyId"])["KeyMetadata"]["KeyState"] for key in kms.list_keys()["Keys"]]
    nat = ec2.describe_nat_gateways()["NatGateways"]
    endpoints = ec2.describe_vpc_endpoints()["VpcEndpoints"]
    subnets = {subnet["SubnetId"] for subnet in ec2.describe_subnets()["Subnets"]}
    # moto keeps the interface of a deleted NAT gateway, in a subnet that is gone; AWS deletes it with the gateway.
    interfaces = [
        each for each in ec2.describe_network_interfaces()["NetworkInterfaces"] if each["SubnetId"] in subnets
    ]
    return {
        "buckets": len(_client(endpoint, "s3").list_buckets()["Buckets"]),
        "roles": len(iam.list_roles()["Roles"]),
        "policies": len(iam.list_policies(Scope="Local")["Policies"]),
        "profiles": len(iam.list_instance_profiles()["InstanceProfiles"]),
        "keys": sum(state != "PendingDeletion" for state in keys),
        "vpcs": len(ec2.describe_vpcs()["Vpcs"]),
        "subnets": len(subnets),
        "route tables": len(ec2.describe_route_tables()["RouteTables"]),
        "internet gateways": len(ec2.describe_internet_gateways()["InternetGateways"]),
        "NAT gateways": sum(each["State"] != "deleted" for each in nat),
        "addresses": len(ec2.describe_addresses()["Addresses"]),
        "endpoints": sum(each["State"] != "deleted" for each in endpoints),
        "security groups": len(ec2.describe_security_groups()["SecurityGroups"]),
        "interfaces": len(interfaces),
        "flow logs": len(ec2.describe_flow_logs()["FlowLogs"]),
        "repositories": len(_client(endpoint, "ecr").describe_repositories()["repositories"]),
        "log groups": len(_client(endpoint, "logs").describe_log_groups()["logGroups"]),
        "topics": len(_client(endpoint, "sns").list_topics()["Topics"]),
        "trails": len(_client(endpoint, "cloudtrail").list_trails()["Trails"]),
        "budgets": len(_client(endpoint, "budgets", "us-east-1").describe_budgets(AccountId="123456789012")["Budgets"]),
    }
