"""The tutorials: every command that needs no money is run in the page's order in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))


def commands(page: Path) -> list[str]:
    blocks = re.findall(r"^```console\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line]


def test_every_tutorial_has_commands_that_cost_nothing() -> None:
    assert len(TUTORIALS) == 4
    for page in TUTORIALS:
        here = commands(page)
        assert len(here) >= 4, page.name
        launches = [line for line in here if line.startswith(("skytrain launch", "skytrain serve"))]
        assert launches == [line for line in launches if line.endswith("--dry-run")], page.name


@pytest.mark.slow
@pytest.mark.limit(3600)
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_the_commands_of_a_tutorial_work(page: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    for command in commands(page):
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-1500:]}{done.stderr[-2500:]}"
