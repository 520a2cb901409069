"""mergekit in an environment of its own beside this one, for the tests that compare with it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from .environments import own_environment

VERSION = "0.1.5"
# What it imports when it merges and this environment lacks. Its own requirements would install another torch.
NEEDED = ("immutables==0.21", "peft==0.21.2")


def mergekit_python() -> Path:
    """Return a Python with mergekit and all that this one has; its installation takes a minute."""
    packages = (f"mergekit=={VERSION}", *NEEDED)
    return own_environment(f"mergekit-{VERSION}", packages, options=["--no-deps"], beside=True)


def merge_with_mergekit(recipe: Path, out: Path) -> None:
    """Runs mergekit on a recipe of its own kind."""
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(Path.home()),
        "OMP_NUM_THREADS": "2",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    command = [mergekit_python(), "-m", "mergekit.scripts.run_yaml", recipe, out, "--no-copy-tokenizer", "--quiet"]
    done = subprocess.run([*map(str, command)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
