"""Heavy tools of the slow tests, each in an environment of its own that is kept between runs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from .environments import KEPT, own_environment


def python_tool(name: str, *requirements: str) -> Path:
    """Return the folder of programs of an environment with `requirements`; skip where they cannot be installed."""
    try:
        return own_environment(name, requirements).parent
    except subprocess.CalledProcessError as error:
        pytest.skip(f"cannot install {' '.join(requirements)}: {error}")


def node_tool(name: str, *requirements: str) -> Path:
    """A folder whose node_modules holds `requirements`; skips where there is no Node or they cannot be installed."""
    if not shutil.which("npm"):
        pytest.skip("Node.js and npm are not installed")
    folder = _kept(name)
    done = folder / "installed"
    if not done.exists() or done.read_text() != "\n".join(requirements):
        (folder / "package.json").write_text("{}")
        _install(["npm", "install", "--no-audit", "--no-fund", *requirements], folder, requirements)
        done.write_text("\n".join(requirements))
    return folder


def debian_tool(package: str, program: str) -> Path:
    """A program that is installed, or that a Debian package brings; skips where it is neither."""
    if installed := shutil.which(program):
        return Path(installed)
    folder = _kept(package)
    unpacked = folder / "unpacked" / "usr" / "bin" / program
    if not unpacked.exists():
        if not shutil.which("apt-get"):
            pytest.skip(f"{program} is not installed, and there is no apt-get to fetch the package {package}")
        _install(["apt-get", "download", package], folder, (package,))
        (archive,) = folder.glob(f"{package}_*.deb")
        subprocess.run(["dpkg", "-x", str(archive), str(folder / "unpacked")], check=True)
        archive.unlink()
    return unpacked


def _kept(name: str) -> Path:
    folder = KEPT / f"tool-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _install(command: list[str], folder: Path, requirements: tuple[str, ...]) -> None:
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900)
    if result.returncode:
        pytest.skip(f"cannot install {' '.join(requirements)}: {result.stderr[-300:]}")
