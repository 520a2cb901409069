"""mergekit in an environment of its own beside this one, for the tests that compare with it."""

from __future__ import annotations

import subprocess
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
VERSION = "0.1.5"
# What it imports when it merges and this environment lacks. Its own requirements would install another torch.
NEEDED = ("immutables==0.21", "peft==0.21.2")


def mergekit_python() -> Path:
    """A Python with mergekit and all that this one has. Made at the first call on this machine (a minute)."""
    # Not XDG_CACHE_HOME: tests have one of their own.
    folder = Path.home() / f".cache/skytrain-tests/mergekit-{VERSION}"
    python = folder / "bin/python"
    if not (folder / "ready").exists():
        venv.create(folder, with_pip=True, clear=True)
        site = Path(
            subprocess.check_output([python, "-c", "import site; print(site.getsitepackages()[0])"], text=True).strip()
        )
        (site / "outer.pth").write_text(sysconfig.get_path("purelib") + "\n")
        pip = [python, "-m", "pip", "install", "--quiet", "--no-deps", f"mergekit=={VERSION}", *NEEDED]
        subprocess.run([*map(str, pip)], check=True)
        assert not list(site.glob("torch*")), "another torch was installed"
        (folder / "ready").touch()
    return python


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
