"""GPT-2 on two spot machines, from its plan to its clean-up: the commands of docs/tutorials/gpt2-150-dollars.md, tiny."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from rehearsal.hosts import missing


@pytest.mark.slow
def test_the_tutorial_of_two_spot_machines_ends_with_its_model_after_a_spot_notice() -> None:
    if problem := missing():
        pytest.skip(problem)
    command = [sys.executable, "-m", "rehearsal", "tutorial"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
