"""Python environments of their own beside this one, for packages whose requirements do not fit it."""

from __future__ import annotations

import fcntl
import subprocess
import sysconfig
import venv
from collections.abc import Sequence
from pathlib import Path

KEPT = Path.home() / ".cache/skytrain-tests"  # not in XDG_CACHE_HOME: tests have one of their own


def own_environment(
    name: str,
    packages: Sequence[str],
    *,
    options: Sequence[str] = (),
    unwanted: Sequence[str] = (),
    beside: bool = False,
) -> Path:
    """Return the Python of an environment with these packages, made at the first call on this machine.

    `beside`: packages of this environment are found too, so that none of them is installed again, least of all torch.
    """
    folder = KEPT / name
    python = folder / "bin/python"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of two test runs at once, one waits for the other's installation
        ready = folder / "ready"
        wanted = "\n".join(packages)
        if not ready.exists() or ready.read_text() != wanted:
            venv.create(folder, with_pip=True, clear=True)
            [site] = folder.glob("lib/python*/site-packages")
            if beside:
                (site / "outer.pth").write_text(sysconfig.get_path("purelib") + "\n")
            pip = (str(python), "-m", "pip")
            subprocess.run([*pip, "install", "--quiet", *options, *packages], check=True)
            if unwanted:
                subprocess.run([*pip, "uninstall", "--quiet", "--yes", *unwanted], check=True)
            assert not (beside and list(site.glob("torch*"))), "another torch was installed"
            ready.write_text(wanted)
    return python
