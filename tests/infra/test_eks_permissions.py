"""What Karpenter may do in the account: requests decided over the policies that Terraform renders."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.infra.conftest import run_terraform_test
from tests.support.iam.policy import Authorization, Caller, Decision, Policy, decide
from tests.support.terraform import EKS, Terraform

pytestmark = pytest.mark.slow

ACCOUNT = "arn:aws:ec2:us-east-2:123456789012"
ROLE = Caller("arn:aws:iam::123456789012:role/karpenter")
NEW = {
    "aws:RequestTag/kubernetes.io/cluster/skytrain-demo": "owned",
    "aws:RequestTag/eks:eks-cluster-name": "skytrain-demo",
    "aws:RequestTag/skytrain:project": "demo",
    "aws:RequestTag/karpenter.sh/nodepool": "skytrain-gpu-spot",
}
OWN = {
    "aws:ResourceTag/kubernetes.io/cluster/skytrain-demo": "owned",
    "aws:ResourceTag/karpenter.sh/nodepool": "skytrain-gpu-spot",
}
KEY = "arn:aws:kms:us-east-2:123456789012:key/11111111-2222-3333-4444-555555555555"
NODE = {**NEW, "ec2:InstanceType": "g6e.12xlarge"}
ROWS: list[tuple[str, str, str, dict[str, Any], bool]] = [
    ("start a node with its tags", "ec2:RunInstances", f"{ACCOUNT}:instance/*", NODE, True),
    ("of p5", "ec2:RunInstances", f"{ACCOUNT}:instance/*", {**NEW, "ec2:InstanceType": "p5.48xlarge"}, True),
    ("of a family that was not agreed on", "ec2:RunInstances", f"{ACCOUNT}:instance/*", {**NEW, "ec2:InstanceType": "p5en.48xlarge"}, False),
    ("without the project's tag", "ec2:RunInstances", f"{ACCOUNT}:instance/*", {k: v for k, v in NODE.items() if "project" not in k}, False),
    ("of another project", "ec2:RunInstances", f"{ACCOUNT}:instance/*", {**NODE, "aws:RequestTag/skytrain:project": "other"}, False),
    ("in our subnet", "ec2:RunInstances", f"{ACCOUNT}:subnet/subnet-0a", {}, True),
    ("in another subnet", "ec2:RunInstances", f"{ACCOUNT}:subnet/subnet-9z", {}, False),
    ("with the base's security group", "ec2:CreateFleet", f"{ACCOUNT}:security-group/sg-0123456789abcdef0", {}, True),
    ("with another security group", "ec2:CreateFleet", f"{ACCOUNT}:security-group/sg-0open", {}, False),
    ("with a template of its own", "ec2:RunInstances", f"{ACCOUNT}:launch-template/lt-1", OWN, True),
    ("with somebody's template", "ec2:RunInstances", f"{ACCOUNT}:launch-template/lt-2", {}, False),
    ("end its node", "ec2:TerminateInstances", f"{ACCOUNT}:instance/i-1", OWN, True),
    ("end a node of a node group", "ec2:TerminateInstances", f"{ACCOUNT}:instance/i-2", {"aws:ResourceTag/skytrain:project": "demo"}, False),
    ("tag an existing machine as its own", "ec2:CreateTags", f"{ACCOUNT}:instance/i-2", NEW, False),
    ("give nodes their role", "iam:PassRole", "arn:aws:iam::123456789012:role/mocked", {"iam:PassedToService": "ec2.amazonaws.com"}, True),
    ("give them the operator's role", "iam:PassRole", "arn:aws:iam::123456789012:role/skytrain-demo-us-east-2-operator", {"iam:PassedToService": "ec2.amazonaws.com"}, False),
    ("create a role", "iam:CreateRole", "arn:aws:iam::123456789012:role/new", {}, False),
    ("create an instance profile", "iam:CreateInstanceProfile", "arn:aws:iam::123456789012:instance-profile/new", {}, False),
    ("encrypt a volume through EC2", "kms:GenerateDataKeyWithoutPlaintext", KEY, {"kms:ViaService": "ec2.us-east-2.amazonaws.com"}, True),
    ("decrypt the bucket's objects", "kms:Decrypt", KEY, {"kms:ViaService": "s3.us-east-2.amazonaws.com"}, False),
    ("read the bucket", "s3:GetObject", "arn:aws:s3:::skytrain-demo-123456789012-us-east-2/demo/x", {}, False),
    ("read its queue", "sqs:ReceiveMessage", "arn:aws:sqs:us-east-2:123456789012:skytrain-demo-karpenter", {}, True),
    ("read another queue", "sqs:ReceiveMessage", "arn:aws:sqs:us-east-2:123456789012:other", {}, False),
    ("look at another region", "ec2:DescribeInstances", "*", {"aws:RequestedRegion": "eu-west-1"}, False),
]  # fmt: skip


def test_karpenter_may_do_exactly_what_the_table_says(tmp_path_factory: pytest.TempPathFactory) -> None:
    done = run_terraform_test(Terraform(EKS, tmp_path_factory.mktemp("eks")), "tests/eks.tftest.hcl")
    assert set(done.statuses.values()) == {"pass"}, done.output
    state = done.states["default"].resources
    policies: list[Policy] = [
        json.loads(state[f"aws_iam_policy.karpenter_{name}"]["policy"]) for name in ("nodes", "look")
    ]
    wrong = [
        asked
        for asked, action, resource, context, allowed in ROWS
        if (decide(Authorization(action, resource, context), policies, ROLE) is Decision.ALLOWED) is not allowed
    ]
    assert not wrong
