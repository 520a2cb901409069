"""The notebooks run whole, in an empty folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "notebooks").glob("*.py"))


def test_every_notebook_but_the_one_for_spark_has_a_script() -> None:
    named = {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert named - {script.stem for script in SCRIPTS} == {"dedup_on_spark"}
    assert len(SCRIPTS) >= 5


@pytest.mark.slow
@pytest.mark.limit(3600)
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_notebook_runs(script: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-3000:]
