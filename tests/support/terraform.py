"""Runs Terraform on a copy of a configuration, with providers from a local mirror where the machine has one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

BASE = Path(__file__).parents[2] / "infra" / "terraform" / "base"
EKS = BASE.parent / "eks"
# Where Terraform itself looks for provider packages, then where machine images keep them.
_MIRRORS = (
    "~/.terraform.d/plugins",
    "~/.local/share/terraform/plugins",
    "/usr/local/share/terraform/plugins",
    "/usr/share/terraform/plugins",
)


class Terraform:
    """A copy of a configuration in `folder`, initialized. Skips the test, with the reason, where that is impossible."""

    def __init__(self, source: Path, folder: Path, environment: dict[str, str] | None = None) -> None:
        if not shutil.which("terraform"):
            pytest.skip("terraform is not installed: https://developer.hashicorp.com/terraform/install")
        self.folder = folder
        self.environment = {**os.environ, "TF_IN_AUTOMATION": "1", "CHECKPOINT_DISABLE": "1", **(environment or {})}
        configuration = self.environment.get("TF_CLI_CONFIG_FILE")
        if configuration and not Path(configuration).exists():
            del self.environment["TF_CLI_CONFIG_FILE"]  # Terraform would warn on every command
        shutil.copytree(source, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".terraform", "*.tfstate*"))
        mirror = _mirror()
        result = self.run("init", "-lockfile=readonly", *([f"-plugin-dir={mirror}"] if mirror else []), check=False)
        if result.returncode:
            pytest.skip(
                f"terraform init found no AWS provider, neither in a local mirror nor online: {result.stdout[-300:]}"
            )

    def run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        result = subprocess.run(
            ["terraform", f"-chdir={self.folder}", arguments[0], "-no-color", *arguments[1:]],
            env=self.environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=900,
        )
        assert not check or not result.returncode, result.stdout[-4000:]
        return result

    def outputs(self) -> dict[str, object]:
        return {name: each["value"] for name, each in json.loads(self.run("output", "-json").stdout).items()}


@cache
def _mirror() -> Path | None:
    """The first folder that holds the packages of HashiCorp's registry as files."""
    return next((folder for folder in _candidates() if (folder / "registry.terraform.io/hashicorp/aws").is_dir()), None)


def _candidates() -> Iterator[Path]:
    yield from (Path(each).expanduser() for each in _MIRRORS)
    yield from sorted(Path("/opt").glob("*"))
