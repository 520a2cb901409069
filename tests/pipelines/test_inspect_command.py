from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


def test_the_command_prints_it_and_fails_when_a_hash_does_not_hold(root: Path) -> None:
    folder = next(root.glob("tokens/*/*/*")).relative_to(root).as_posix()
    command = [
        sys.executable,
        "-c",
        "from skytrain.cli.main import main; main()",
        "data",
        "inspect",
        f"store.root={root}",
        "--folder",
        folder,
        "--samples",
        "0",
        "--check",
        "--json",
    ]
    good = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    assert good.returncode == 0 and json.loads(good.stdout)["problems"] == []
    path = next(root.glob("tokens/*/*/*/train/*.bin"))
    path.write_bytes(path.read_bytes()[:-1])
    bad = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    assert bad.returncode == 2 and path.name in bad.stdout
