"""A launch target of the tree is one folder, its settings and one YAML file: no list names it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
FILES = {
    "targets/toy/__init__.py": '"""Toys."""\n',
    "targets/toy/target.py": """
from ..base import LaunchTarget, ReadyJob


class ToyLauncher(LaunchTarget):
    name = "toy"

    def prepare(self, request):
        config = request.compose(request.overrides).config
        return ReadyJob(
            name="toy", config=config, requests=f"{config.cloud.toy.count} toys", summary=[], start=lambda reporter: []
        )


TARGETS = {"toy": ToyLauncher()}
""",
    "config/schema/toy.py": """
from .declare import EXECUTION, setting, settings


@settings
class ToyConfig:
    \"\"\"Settings of toys.\"\"\"

    count: int = setting(EXECUTION, "How many.")
""",
    "config/groups/cloud/toy.yaml": "defaults: [none, _self_]\ntarget: toy\ntoy:\n  count: 3\n",
}


def skytrain(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(folder / "src")}
    command = [sys.executable, "-m", "skytrain", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def test_a_folder_its_settings_and_a_yaml_are_a_target(tmp_path: Path) -> None:
    shutil.copytree(SOURCE, tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in FILES.items():
        path = tmp_path / "src/skytrain" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    cloud = tmp_path / "src/skytrain/config/schema/cloud.py"
    text = cloud.read_text().replace("from .slurm import", "from .toy import ToyConfig\nfrom .slurm import", 1)
    cloud.write_text(text.replace("    slurm: SlurmConfig\n", "    slurm: SlurmConfig\n    toy: ToyConfig\n", 1))
    done = skytrain(tmp_path, "launch", "train", "cloud=toy", "cloud.toy.count=4", "--dry-run")
    assert (done.stdout, done.returncode) == ("4 toys\n", 0), done.stderr
    wrong = skytrain(tmp_path, "launch", "prepare", "cloud=toy", "--dry-run")
    assert wrong.returncode == 2 and "launch prepare cloud=toy: only training runs there" in wrong.stderr
    other = skytrain(tmp_path, "config", "show", "cloud=slurm")
    assert other.returncode == 0, "what other files leave out is filled from its own"
