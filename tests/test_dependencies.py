"""What Skytrain is installed with: exact versions, and none that is known to be malicious. Works without a network."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
# Releases on PyPI that were malware.
MALICIOUS = {"lightning": ("2.6.2", "2.6.3"), "pytorch-lightning": ("2.6.2", "2.6.3")}


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    found = [re.fullmatch(r"([A-Za-z0-9._-]+)==(\S+)", line) for line in lines if line and not line.startswith("#")]
    assert all(found), "every line is NAME==VERSION"
    return {match[1].lower().replace("_", "-"): match[2] for match in found if match}


def test_every_package_has_one_version_and_none_is_known_to_be_malicious() -> None:
    pinned = pins()
    assert len(pinned) > 100
    assert not {name for name, versions in MALICIOUS.items() if pinned.get(name) in versions}
    project = (ROOT / "pyproject.toml").read_text()
    assert f"lightning=={pinned['lightning']}" in project, "never an open range"


@pytest.mark.parametrize("name", ["lightning", "torch", "boto3"])
def test_what_is_installed_is_what_is_pinned(name: str) -> None:
    assert version(name).partition("+")[0] == pins()[name]


def extras() -> dict[str, list[Requirement]]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    every = {"": project["dependencies"], **project["optional-dependencies"]}
    return {name: [Requirement(line) for line in lines] for name, lines in every.items()}


@pytest.mark.parametrize("extra", extras())
def test_the_pinned_version_of_every_requirement_of_an_extra_is_one_that_it_allows(extra: str) -> None:
    pinned = pins()
    for requirement in extras()[extra]:
        version_of = pinned.get(requirement.name.lower().replace("_", "-"))
        assert version_of is None or requirement.specifier.contains(version_of, prereleases=True), (
            f"{requirement} of [{extra}] and {requirement.name}=={version_of} of constraints.txt"
        )


@pytest.mark.parametrize(
    "extra", sorted({*extras()} - {"", "all", "data", "dev", "serve", "spark", "harness", "train"})
)
def test_all_has_every_extra_except_those_that_its_comment_names(extra: str) -> None:
    [every] = extras()["all"]
    assert extra in every.extras


@pytest.mark.slow
@pytest.mark.parametrize("extra", sorted({*extras()} - {"", "serve"}))
def test_pip_resolves_every_extra_with_the_constraints(extra: str) -> None:
    """Needs PyPI. vLLM is left out: it pins a torch of its own."""
    pip = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "-c", "constraints.txt", f".[{extra}]"]
    done = subprocess.run(pip, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
