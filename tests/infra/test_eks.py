"""The cluster without an account: Terraform's own tests, its table of instance types, and checkov's opinion."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from skytrain.planning import load_catalog
from tests.infra.conftest import TerraformTest
from tests.infra.test_scanners import checkov
from tests.support.terraform import BASE, EKS, Terraform

_ROW = re.compile(
    r'"(?P<type>[\w.-]+)"\s+= \{ gpus = (?P<gpus>\d+), efa = (?P<efa>\d+), nvme = (?P<nvme>true|false) \}'
)


def test_the_instance_types_of_the_cluster_are_those_of_the_planner(tmp_path: Path) -> None:
    rows = _ROW.finditer((EKS / "instance_types.tf").read_text())
    found = {row["type"]: (int(row["gpus"]), int(row["efa"]), row["nvme"] == "true") for row in rows}
    catalog = load_catalog(tmp_path)  # the packaged one
    planned = {each.type: (each.gpus, each.efa_interfaces, each.nvme_gb > 0) for each in catalog.instances}
    assert found == planned


def test_the_base_hands_the_cluster_exactly_what_it_asks_for(terraform_test: TerraformTest) -> None:
    """`output for_eks` has the attributes of `variable base`; the base's own tests prove that it evaluates."""
    asked = re.search(r'variable "base".*?object\(\{(.*?)\}\)', (EKS / "variables.tf").read_text(), re.S)
    given = re.search(r'output "for_eks".*?base = \{(.*?)\n    \}', (BASE / "outputs.tf").read_text(), re.S)
    assert asked and given
    names = [set(re.findall(r"^\s+(\w+)\s+=", text, re.M)) for text in (asked[1], given[1])]
    assert names[0] == names[1] and len(names[0]) >= 20
    assert set(terraform_test.statuses.values()) == {"pass"}


@pytest.mark.slow
def test_the_cluster_is_formatted_valid_and_all_of_its_tests_pass(tmp_path: Path) -> None:
    terraform = Terraform(EKS, tmp_path)
    terraform.run("fmt", "-check", "-recursive", "-diff")
    terraform.run("validate")
    said = terraform.run("test").stdout
    declared = sum(path.read_text().count("\nrun ") for path in (EKS / "tests").glob("*.tftest.hcl"))
    assert f"{declared} passed, 0 failed" in said


@pytest.mark.slow
def test_an_assertion_of_the_cluster_fails_when_its_defence_is_removed(tmp_path: Path) -> None:
    """Terraform's tests are not decoration: each of these edits makes one of them fail."""
    terraform = Terraform(EKS, tmp_path)
    edits = {
        "launch_templates.tf": ('http_tokens                 = "required"', 'http_tokens                 = "optional"'),
        "nodes.tf": ("desired_size = 0", "desired_size = 1"),
        "fsx.tf": ('events = ["NEW", "CHANGED"] #', 'events = ["NEW", "CHANGED", "DELETED"] #'),
    }
    for name, (right, wrong) in edits.items():
        text = (EKS / name).read_text()
        assert right in text
        (tmp_path / name).write_text(text.replace(right, wrong))
        assert terraform.run("test", "-filter=tests/eks.tftest.hcl", check=False).returncode, name
        shutil.copy(EKS / name, tmp_path / name)


@pytest.mark.slow
def test_checkov_finds_nothing_in_the_cluster_and_every_skip_says_why() -> None:
    report = checkov("-d", str(EKS), "--framework", "terraform")
    assert report["summary"]["passed"] >= 100
    skipped = report["results"]["skipped_checks"]
    assert all(len(each["check_result"]["suppress_comment"]) >= 40 for each in skipped), json.dumps(skipped)
