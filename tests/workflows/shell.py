"""The commands of the documentation, typed into a shell in an empty folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


class Shell:
    """A folder, and the variables of whoever works in it."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.folder = folder
        self._variables = variables

    def run(self, *words: str, typed: str = "", code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run `skytrain WORDS` and check its exit code."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "AWS_EC2_METADATA_DISABLED": "true", **self._variables}
        for name in ("HF_HUB_OFFLINE", *(name for name in environment if name.startswith("AWS_PROFILE"))):
            environment.pop(name, None)
        done = subprocess.run(
            [sys.executable, "-m", "skytrain", *words],
            cwd=self.folder,
            env=environment,
            input=typed,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert done.returncode == code, f"skytrain {' '.join(words)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        return done
