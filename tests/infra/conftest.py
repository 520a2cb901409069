"""The base, rendered once by Terraform with a mocked provider: the very JSON of its policies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from tests.infra.permissions import ROLES_PATH, machine_tags
from tests.support.iam.policy import Caller, Policy
from tests.support.terraform import BASE, Terraform

ROLES = ("operator", "node", "prepare", "serve", "viewer")
# Roles of machines are created by launches, after the patterns of the base: whose machines ask, tags of their role say.
# Here a run with its sweep; a pipeline's stage that prepares the run's data; an endpoint.
OF_LAUNCHES: dict[str, dict[str, str]] = {
    "node": machine_tags("gpt2", sweep="lr"),
    "prepare": machine_tags("prepare-pile", joined=["gpt2"]),
    "serve": machine_tags("serve-tiny"),
}


@dataclass(frozen=True)
class RenderedBase:
    """The state after one `run` of tests/base.tftest.hcl."""

    resources: dict[str, dict[str, Any]]

    def policies(self, role: str) -> list[Policy]:
        """The policies that are attached to a role."""
        by_arn = {
            values["arn"]: json.loads(values["policy"])
            for address, values in self.resources.items()
            if address.startswith("aws_iam_policy.")
        }
        attached = f"aws_iam_role_policy_attachment.{role}["
        return [
            by_arn[values["policy_arn"]] for address, values in self.resources.items() if address.startswith(attached)
        ]

    def caller(self, role: str, tags: Mapping[str, str] | None = None) -> Caller:
        """The role; one of machines as a launch makes it, with these tags instead of those above."""
        pattern = self.resources[f"aws_iam_role.{role}"]
        if "aws_iam_policy.machines" not in self.resources or role not in OF_LAUNCHES:
            return Caller(pattern["arn"])  # also of the base before launches had roles
        tags = OF_LAUNCHES[role] if tags is None else tags
        return Caller(
            arn=f"arn:aws:iam::123456789012:role{ROLES_PATH}{role}",
            tags=tags,
            boundary=self.document("aws_iam_policy.machines"),
            vpc=self.resources["aws_vpc.main"]["id"],
        )

    def document(self, address: str, attribute: str = "policy") -> Policy:
        document: Policy = json.loads(self.resources[address][attribute])
        return document


@dataclass(frozen=True)
class TerraformTest:
    """What `terraform test` said, and the states it left."""

    statuses: dict[str, str]
    output: str
    states: dict[str, RenderedBase]


@pytest.fixture(scope="session")
def terraform_test(tmp_path_factory: pytest.TempPathFactory) -> TerraformTest:
    return run_terraform_test(Terraform(BASE, tmp_path_factory.mktemp("base")), "tests/base.tftest.hcl")


def run_terraform_test(terraform: Terraform, file: str) -> TerraformTest:
    said = terraform.run("test", f"-filter={file}", "-json", "-verbose", check=False).stdout
    statuses, states, messages = {}, {}, []
    for line in said.splitlines():
        if not line.startswith("{"):
            messages.append(line)
            continue
        event = json.loads(line)
        if event["type"] == "test_run" and event["test_run"].get("progress") == "complete":
            statuses[event["test_run"]["run"]] = event["test_run"]["status"]
        elif event["type"] == "test_state":
            found = event["test_state"]["root_module"]["resources"]
            states[event["@testrun"]] = RenderedBase({each["address"]: each["values"] for each in found})
        elif event["type"] == "diagnostic":
            messages.append(event["diagnostic"]["summary"] + ": " + event["diagnostic"].get("detail", ""))
    return TerraformTest(statuses, "\n".join(messages), states)


@pytest.fixture(scope="session")
def base(terraform_test: TerraformTest) -> RenderedBase:
    """The base with its defaults."""
    return terraform_test.states["default"]


@pytest.fixture(scope="session")
def full_base(terraform_test: TerraformTest) -> RenderedBase:
    """The base with every switch on."""
    return terraform_test.states["everything"]
