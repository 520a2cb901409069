"""lm-evaluation-harness in an environment of its own beside this one, for the tests that compare with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from .environments import own_environment

VERSION = "0.4.13"
ROOT = Path(__file__).parents[2]


def harness_python() -> Path:
    """Return a Python with lm_eval and all that this one has; its installation takes a few minutes."""
    options = ["-c", str(ROOT / "constraints.txt")]
    return own_environment(f"lm-eval-{VERSION}", [f"lm_eval=={VERSION}"], options=options, beside=True)


def run_with_harness(script: Path, *arguments: str) -> str:
    """What a script prints that may import lm_eval, this project and its tests."""
    paths = f"{ROOT / 'src'}:{ROOT}"
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    environment = {
        "PYTHONPATH": paths,
        "PATH": "/usr/bin:/bin",
        "HOME": str(Path.home()),
        "OMP_NUM_THREADS": "2",
        **offline,
    }
    done = subprocess.run([harness_python(), script, *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


if __name__ == "__main__":
    print(harness_python(), file=sys.stderr)
