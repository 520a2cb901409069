"""Benchmarks are run as scripts, so their folder comes first where Python looks for a module."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

import pytest

FOLDERS = sorted({path.parent for path in (Path(__file__).parents[2] / "benchmarks").rglob("*.py")})
PEERS = {"datatrove", "litdata", "rensa", "streaming"}  # compared with where they are installed


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_no_benchmark_has_the_name_of_a_package_that_its_neighbours_may_import(folder: Path) -> None:
    packages = {*sys.stdlib_module_names, *metadata.packages_distributions(), *PEERS}
    assert not {path.stem for path in folder.glob("*.py")} & packages
