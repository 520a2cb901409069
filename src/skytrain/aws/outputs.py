"""Conversion of the outputs of Terraform's base into the configuration files of `cloud=aws`."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..config import SkytrainError

# Output of infra/terraform/base -> setting of the group `cloud`.
SETTINGS = {
    "project": "project",
    "account_id": "account",
    "region": "region",
    "bucket": "bucket",
    "kms_key_arn": "kms_key",
    "ecr_repository_url": "image_repository",
    "private_subnets": "subnets.private",
    "public_subnets": "subnets.public",
    "node_subnets": "subnets.nodes",
    "closed_network": "closed_network",
    "security_group_id": "security_group",
    "operator_role_arn": "roles.operator",
    "node_role_arn": "roles.node",
    "viewer_role_arn": "roles.viewer",
    "machine_roles": "machine_roles",
    "instance_profile_name": "instance_profile",
    "prepare_instance_profile_name": "prepare_profile",
    "serve_instance_profile_name": "serve_profile",
    "prepare_role_arn": "roles.prepare",
    "emr_service_role_arn": "roles.emr_service",
    "emr_service_security_group_id": "emr_service_group",
    "emr_security_configuration": "emr_security",
    "instance_families": "instance_families",
    "readable_buckets": "readable_buckets",
    "log_groups": "log_groups",
}
NEEDED = ("project", "account_id", "region", "bucket")
CLOUD_FILE = Path("cloud", "aws.yaml")
STORE_FILE = Path("store", "aws.yaml")
CLOUD_HEAD = """\
# @package _global_
# Written by `skytrain cloud init` from Terraform's outputs. Use it with cloud=aws.
defaults:
  - none@cloud
  - _self_
  - override /store: aws
"""
STORE_HEAD = "# Written by `skytrain cloud init`; cloud=aws chooses it.\n"


def terraform_outputs(folder: Path) -> dict[str, Any]:
    """Return the outputs of an applied Terraform configuration, by `terraform output -json` there."""
    if not folder.is_dir():
        raise SkytrainError(f"--terraform {folder}: no such folder\n  it is infra/terraform/base of Skytrain's source")
    if shutil.which("terraform") is None:
        raise SkytrainError(
            "terraform is not installed here\n  where it is: terraform output -json > outputs.json; "
            "then: skytrain cloud init --from outputs.json"
        )
    done = subprocess.run(
        ["terraform", f"-chdir={folder}", "output", "-json", "-no-color"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        problem = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise SkytrainError(f"terraform output failed in {folder}: {problem}\n  first: terraform -chdir={folder} apply")
    return read_outputs(done.stdout, f"terraform output in {folder}")


def read_outputs(text: str, origin: str) -> dict[str, Any]:
    """Return `{name: value}` of the JSON that `terraform output -json` prints."""
    again = "save it again: terraform -chdir=infra/terraform/base output -json > outputs.json"
    try:
        raw_outputs = json.loads(text)
        outputs = {name: item["value"] for name, item in raw_outputs.items()}
    except (ValueError, AttributeError, TypeError, KeyError):
        raise SkytrainError(f"{origin} is not what `terraform output -json` prints\n  {again}") from None
    if not outputs:
        raise SkytrainError(
            f"{origin}: no outputs; nothing is applied yet\n  first: terraform -chdir=infra/terraform/base apply"
        )
    missing = [name for name in NEEDED if not outputs.get(name)]
    if missing:
        raise SkytrainError(
            f"{origin}: the outputs lack {', '.join(missing)}\n  they must be those of infra/terraform/base"
        )
    return outputs


def cloud_files(outputs: Mapping[str, Any], owner: str | None = None) -> dict[Path, str]:
    """Return the configuration files, by their place under a folder of groups."""
    cloud: dict[str, Any] = {"owner": owner} if owner else {}
    for output, setting in SETTINGS.items():
        if outputs.get(output) is None:
            continue
        *above, name = setting.split(".")
        group = cloud
        for part in above:
            group = group.setdefault(part, {})
        group[name] = outputs[output]
    key = outputs.get("kms_key_arn")
    store = {
        "root": outputs.get("store") or f"s3://{outputs['bucket']}/{outputs['project']}",
        "sse": "kms" if key else "s3",
        "kms_key": key,
        "patience": "30m",
    }
    return {CLOUD_FILE: CLOUD_HEAD + _yaml({"cloud": cloud}), STORE_FILE: STORE_HEAD + _yaml(store)}


def _yaml(values: Mapping[str, Any]) -> str:
    import yaml  # type: ignore[import-untyped]

    return str(yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True))
