"""Opinions of others on the base: checkov, parliament, and a second evaluator of IAM's logic."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.infra.conftest import ROLES, RenderedBase, TerraformTest
from tests.infra.permissions import KEY, NUMBER, all_rows, existing
from tests.infra.test_base import subnet_of
from tests.support.iam.policy import Authorization, Decision, decide
from tests.support.iam.requests import authorizations
from tests.support.moto_account import local_credentials, moto_account
from tests.support.terraform import BASE, Terraform
from tests.support.tools import node_tool, python_tool

pytestmark = pytest.mark.slow

CHECKOV = "checkov==3.3.30"
PARLIAMENT = ("parliament==1.6.4", "setuptools<81")
SIMULATOR = "@cloud-copilot/iam-simulate@0.1.173"
SECOND_OPINION = Path(__file__).parents[1] / "support" / "iam" / "second_opinion.mjs"
# What parliament says of policies that are right, and why they are.
EXPECTED = (
    ("RESOURCE_STAR", ""),  # these statements read, or are bound by tags; checkov judges each
    ("RESOURCE_MISMATCH", "ec2:RunInstances"),  # one statement for each kind of resource, as AWS itself shows it
    ("RESOURCE_MISMATCH", "ssm:GetParameter"),  # AWS's public parameters have no account
    # iam:PermissionsBoundary, which AWS's own guide to permissions boundaries compares by StringEquals, too.
    ("MISMATCHED_TYPE_BUT_USABLE", "StringEquals requires a value of type String but given Arn"),
    ("RESOURCE_MISMATCH", "s3:PutObject"),  # it does not know ${aws:PrincipalTag/...} in a resource
)


def test_checkov_finds_nothing_and_every_skip_says_why() -> None:
    report = checkov("-d", str(BASE), "--framework", "terraform")
    assert report["summary"]["passed"] >= 100
    reasons = {
        each["check_id"]: each["check_result"]["suppress_comment"] for each in report["results"]["skipped_checks"]
    }
    assert reasons and all(len(reason) >= 20 for reason in reasons.values()), reasons


def test_checkov_finds_nothing_in_the_plan_with_every_switch_on(tmp_path: Path) -> None:
    """The plan has what `concat`, `merge` and conditions come to, which checkov cannot follow in the files."""
    switches = ("sagemaker", "emr", "cloudtrail", "flow_logs", "interface_endpoints")
    values = {"region": "us-east-2", "project": "demo", "owner": "ml-team", **dict.fromkeys(switches, True)}
    with moto_account() as endpoint:
        terraform = Terraform(BASE, tmp_path, local_credentials(endpoint))
        (tmp_path / "terraform.tfvars.json").write_text(json.dumps(values))
        terraform.run("plan", "-out=all.tfplan")
    (tmp_path / "plan.json").write_text(terraform.run("show", "-json", "all.tfplan").stdout)
    enriched = ("--repo-root-for-plan-enrichment", str(tmp_path))
    report = checkov("-f", str(tmp_path / "plan.json"), *enriched)
    assert report["summary"]["passed"] >= 180


def checkov(*arguments: str) -> dict[str, Any]:
    program = python_tool("checkov", CHECKOV) / "checkov"
    command = [str(program), "--skip-download", "-o", "json", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600)
    report: dict[str, Any] = json.loads(result.stdout)
    assert [(each["check_id"], each["resource"]) for each in report["results"]["failed_checks"]] == []
    return report


def test_terraform_is_formatted_and_all_of_its_tests_pass(tmp_path: Path) -> None:
    terraform = Terraform(BASE, tmp_path)
    terraform.run("fmt", "-check", "-recursive", "-diff")
    terraform.run("validate")
    assert "0 failed" in terraform.run("test").stdout


def test_a_second_evaluator_decides_every_request_alike(base: RenderedBase) -> None:
    folder = node_tool("iam-simulate", SIMULATOR)
    subnet = subnet_of(base)
    account = existing(subnet)
    asked = [
        (role, row.asked, each)
        for row in all_rows(subnet)
        for each in authorizations(row.call, account)
        for role in ROLES
        if not re.match(r"arn:aws:ssm:[^:]*::", each.resource)  # it knows no documents and parameters of AWS's own
    ]
    answers = _simulated(folder, base, [(role, each) for role, _, each in asked])
    ours = [
        decide(each, base.policies(role), base.caller(role), _resource_policy(base, each)) is Decision.ALLOWED
        for role, _, each in asked
    ]
    assert [answer for answer in answers if answer["error"]] == []
    assert [(asked[i], answer["ignored"]) for i, answer in enumerate(answers) if answer["ignored"]] == []
    assert [asked[i] for i, answer in enumerate(answers) if (answer["decision"] == "Allowed") != ours[i]] == []
    assert len(answers) > 1000


def _simulated(folder: Path, base: RenderedBase, asked: list[tuple[str, Authorization]]) -> list[dict[str, Any]]:
    (folder / SECOND_OPINION.name).write_text(SECOND_OPINION.read_text())
    requests = [
        {
            "role": role,
            "principal": base.caller(role).arn,
            "action": each.action,
            "resource": _named(each.resource),
            "context": {**_own_context(base, role), **each.context},
            "resourcePolicy": _resource_policy_name(each),
        }
        for role, each in asked
    ]
    question = {
        "account": NUMBER,
        "policies": {role: base.policies(role) for role in ROLES},
        "boundaries": {role: base.caller(role).boundary for role in ROLES},
        "resourcePolicies": {name: base.document(address) for name, address in _RESOURCE_POLICIES.items()},
        "requests": requests,
    }
    result = subprocess.run(
        ["node", SECOND_OPINION.name],
        cwd=folder,
        input=json.dumps(question),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert not result.returncode, result.stderr
    answers: list[dict[str, Any]] = json.loads(result.stdout)
    return answers


def _own_context(base: RenderedBase, role: str) -> dict[str, str]:
    """What a request carries of the role itself; the simulator knows the principal's name and account."""
    names = ("aws:PrincipalArn", "aws:PrincipalAccount")
    return {key: value for key, value in base.caller(role).context.items() if key not in names}


_RESOURCE_POLICIES = {"key": "aws_kms_key.main", "bucket": "aws_s3_bucket_policy.store"}


def _resource_policy_name(asked: Authorization) -> str | None:
    if asked.resource == KEY:
        return "key"
    return "bucket" if asked.resource.startswith("arn:aws:s3:::skytrain-demo-") else None


def _resource_policy(base: RenderedBase, asked: Authorization) -> Any:
    name = _resource_policy_name(asked)
    return base.document(_RESOURCE_POLICIES[name]) if name else None


def _named(resource: str) -> str:
    """A resource that does not exist yet, with a name: the simulator takes `*` for a question about all of them."""
    resource = resource.replace(":autoScalingGroup:*:", ":autoScalingGroup:11111111-2222-3333-4444-555555555555:")
    return resource[:-1] + "new" if resource.endswith("/*") else resource


def test_parliament_finds_no_mistake_in_a_policy(terraform_test: TerraformTest) -> None:
    programs = python_tool("parliament", *PARLIAMENT)
    policies = {
        f"{name} {address}": values["policy"]
        for name, state in terraform_test.states.items()
        for address, values in state.resources.items()
        if address.startswith("aws_iam_policy.")
    }
    script = (
        "import json, sys, parliament\n"
        "said = {name: [[f.issue, str(f.detail)] for f in parliament.analyze_policy_string(text).findings]"
        " for name, text in json.load(sys.stdin).items()}\n"
        "print(json.dumps(said))"
    )
    result = subprocess.run(
        [str(programs / "python"), "-W", "ignore", "-c", script],
        input=json.dumps(policies),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert not result.returncode, result.stderr
    said = json.loads(result.stdout)
    assert len(said) >= 20
    unexpected = [
        (name, issue, detail)
        for name, found in said.items()
        for issue, detail in found
        if not any(issue == known and about in detail for known, about in EXPECTED)
    ]
    assert not unexpected
