"""What Skytrain is installed with: exact versions, and none that is known to be malicious. Works without a network."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

import pytest

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
