"""Every statement of every policy against AWS's Service Authorization Reference, and what cloudsplaining says of them."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.infra.conftest import RenderedBase, run_terraform_test
from tests.support.terraform import EKS, Terraform
from tests.support.tools import python_tool

pytestmark = pytest.mark.slow

POLICY_SENTRY = "policy_sentry==0.15.2"
CLOUDSPLAINING = "cloudsplaining==0.9.1"
PROGRAM = Path(__file__).parents[1] / "support" / "iam" / "reference.py"
ROLES = ("operator", "node", "prepare", "serve", "viewer")
# What the reference lists as going together, and why we do without it: (action, what it may need).
NOT_NEEDED = {
    ("budgets:ViewBudget", "billing:GetBillingViewData"): "only for budgets of a billing view; ours is the account's",
    ("fsx:DeleteFileSystem", "fsx:CreateBackup"): "only for a last backup, which a scratch file system cannot have",
    ("fsx:DeleteFileSystem", "fsx:TagResource"): "only for tags of that backup",
    ("ec2:CreateNetworkInterface", "ec2:CreateTags"): "SageMaker puts no tags on the interfaces of training jobs",
    **dict.fromkeys(
        (("ec2:RunInstances", "ssm:GetParameters"), ("ec2:CreateLaunchTemplate", "ssm:GetParameters")),
        "only where a template names its image by a parameter; Karpenter's name images",
    ),
    # We ask for the quotas of EC2, SageMaker and EMR; the reference lists what other services' quotas need.
    "servicequotas:GetServiceQuota": "limits of CloudFormation, DynamoDB, load balancers, IAM, Kinesis, RDS and Route 53",
    "servicequotas:ListServiceQuotas": "limits of CloudFormation, DynamoDB, load balancers, IAM, Kinesis, RDS and Route 53",
}


def findings(roles: dict[str, list[Any]]) -> list[tuple[str, ...]]:
    python = python_tool("policy-sentry", POLICY_SENTRY) / "python"
    done = subprocess.run([python, PROGRAM], input=json.dumps(roles), capture_output=True, text=True, check=True)
    found = [tuple(each) for each in json.loads(done.stdout)]
    return [each for each in found if (each[3], each[4]) not in NOT_NEEDED and each[3] not in NOT_NEEDED]


def test_actions_resources_condition_keys_and_dependent_actions_are_those_of_awss_reference(
    base: RenderedBase, full_base: RenderedBase
) -> None:
    for rendered in (base, full_base):
        policies = {role: rendered.policies(role) for role in ROLES}
        assert findings({**policies, "boundary": [rendered.document("aws_iam_policy.machines")]}) == []


def test_so_are_those_of_policies_that_pods_and_services_have(
    full_base: RenderedBase, tmp_path_factory: pytest.TempPathFactory
) -> None:
    done = run_terraform_test(Terraform(EKS, tmp_path_factory.mktemp("eks")), "tests/eks.tftest.hcl")
    cluster = done.states["default"]
    kinds = ("aws_iam_policy.", "aws_iam_role_policy.")
    found = {
        address: [rendered.document(address)]
        for rendered in (full_base, cluster)
        for address in rendered.resources
        if address.startswith(kinds)
    }
    roles = [full_base.policies(role) for role in ROLES]
    others = {name: each for name, each in found.items() if not any(each[0] in policies for policies in roles)}
    # Karpenter's role has both of its policies.
    together = [each for name in sorted(others) if ".karpenter_" in name for each in others.pop(name)]
    assert len(together) == 2 and len(others) > 5
    assert findings({**others, "karpenter": together}) == []


def test_the_reference_finds_what_was_wrong_before() -> None:
    before = RenderedBase(json.loads((Path(__file__).parent / "policies-before.json").read_text()))
    found = findings({role: before.policies(role) for role in ROLES})
    # Clusters could not be started at all, and a training job could have its volume encrypted with any key.
    assert {(kind, action) for kind, _, _, action, _ in found} == {
        ("takes no resource", "elasticmapreduce:RunJobFlow"),
        ("no such key", "sagemaker:CreateTrainingJob"),
    }


def test_a_misspelt_action_a_foreign_resource_and_a_key_that_does_not_apply_are_found() -> None:
    bucket = "arn:aws:s3:::b/*"
    statements = [
        {"Action": "s3:GetObjekt", "Resource": bucket},
        {"Action": "ec2:DescribeInstances", "Resource": "arn:aws:ec2:*:1:instance/*"},
        {"Action": "s3:GetObject", "Resource": "arn:aws:ec2:*:1:instance/*"},
        {"Action": "s3:GetObject", "Resource": bucket, "Condition": {"StringEquals": {"ec2:InstanceType": "x"}}},
        {"Action": "ec2:RunInstances", "Resource": "*"},
    ]
    policy = {
        "Version": "2012-10-17",
        "Statement": [{"Sid": str(n), "Effect": "Allow", **each} for n, each in enumerate(statements)],
    }
    found = {(sid, kind) for kind, _, sid, _, _ in findings({"role": [policy]})}
    assert found == {
        ("0", "no such action"),
        ("1", "takes no resource"),
        ("2", "no such resource"),
        ("3", "no such key"),
        ("4", "dependent action"),
    }


# What cloudsplaining reports of the roles, with why it is right. It looks at actions, not at resources and conditions.
RISKS = ("Privilege Escalation", "Resource Exposure", "return credentials", "Service Wildcard")
EXPLAINED = {
    "operator": {
        "CreateEC2WithExistingIP": "may pass the roles of machines only, which can do less than an operator",
        "PassExistingRoleToNewSageMakerTrainingJob": "the same",
        "iam:PassRole": "the same, and only to the services that run machines",
        "iam:CreateServiceLinkedRole": "of Auto Scaling and Spot, which AWS itself writes",
        "kms:CreateGrant": "for volumes, through EC2 only",
        "ecr:GetAuthorizationToken": "to push images to the project's repository",
        "AttachRolePolicy": "the patterns' policies only, to roles of launches below the boundary",
        "iam:AttachRolePolicy": "the same",
        "iam:DetachRolePolicy": "from roles of launches",
        "iam:CreateRole": "below the base's path, with its boundary and our tags",
        "iam:DeleteRole": "of a run of the project",
        "iam:CreateInstanceProfile": "below the base's path",
        "iam:AddRoleToInstanceProfile": "the same, and the role must be one that an operator may pass",
        "iam:RemoveRoleFromInstanceProfile": "the same",
        "iam:DeleteInstanceProfile": "the same",
    },
    "node": {
        "ec2:CreateNetworkInterfacePermission": "SageMaker attaches containers to the subnets in the role's name",
        "ec2:DeleteNetworkInterfacePermission": "the same",
        "kms:CreateGrant": "SageMaker's, for the volumes of training jobs",
        "ecr:GetAuthorizationToken": "to pull images",
    },
    "prepare": {"ecr:GetAuthorizationToken": "to pull images"},
    "serve": {},
    "viewer": {},
}


def test_every_risk_that_cloudsplaining_sees_is_explained(full_base: RenderedBase, tmp_path: Path) -> None:
    program = python_tool("cloudsplaining", CLOUDSPLAINING) / "cloudsplaining"
    found: dict[str, set[str]] = {role: set() for role in ROLES}
    for role in ROLES:
        for number, policy in enumerate(full_base.policies(role)):
            file = tmp_path / f"{role}-{number}.json"
            file.write_text(json.dumps(policy))
            command = [program, "scan-policy-file", "--input-file", file, "--flag-all-risky-actions"]
            said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
            for part in said.split("Potential Issue found")[1:]:
                if any(risk in part.splitlines()[0] for risk in RISKS):
                    methods = re.findall(r"Method: (\w+)", part)
                    actions = re.findall(r"Actions\S*: (.+)", part) if not methods else []
                    found[role] |= {*methods, *(each for line in actions for each in line.split(", "))}
    assert found == {role: set(explained) for role, explained in EXPLAINED.items()}
