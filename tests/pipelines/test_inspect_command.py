from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from skytrain.cli.main import app


def test_the_command_prints_it_and_fails_when_a_hash_does_not_hold(root: Path) -> None:
    folder = next(root.glob("tokens/*/*/*")).relative_to(root).as_posix()
    command = ["data", "inspect", f"store.root='{root}'", "--folder", folder, "--samples", "0", "--check", "--json"]
    good = CliRunner().invoke(app, command)
    assert good.exit_code == 0 and json.loads(good.stdout)["problems"] == []
    path = next(root.glob("tokens/*/*/*/train/*.bin"))
    path.write_bytes(path.read_bytes()[:-1])
    bad = CliRunner().invoke(app, command)
    assert bad.exit_code == 2 and path.name in bad.stdout
