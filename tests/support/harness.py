"""lm-evaluation-harness in an environment of its own beside this one, for the tests that compare with it."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]


def harness_python() -> Path:
    """A Python with lm_eval and all that this one has. Made at the first call on this machine (a few minutes).

    Packages are found through this environment, so nothing of it is installed again: least of all another torch.
    """
    # Not XDG_CACHE_HOME: tests have one of their own.
    folder = Path.home() / ".cache/skytrain-tests/lm-eval-0.4.13"
    python = folder / "bin/python"
    if not (folder / "ready").exists():
        venv.create(folder, with_pip=True, clear=True)
        site = Path(
            subprocess.check_output([python, "-c", "import site; print(site.getsitepackages()[0])"], text=True).strip()
        )
        (site / "outer.pth").write_text(sysconfig.get_path("purelib") + "\n")
        pip = [python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", "lm_eval==0.4.13"]
        subprocess.run([*map(str, pip)], check=True)
        assert not list(site.glob("torch*")), "another torch was installed"
        (folder / "ready").touch()
    return python


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
