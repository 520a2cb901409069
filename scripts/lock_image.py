"""Write docker/*.lock: every package that the training image installs, with the hashes that pip then requires.

    python -m pip install uv && python scripts/lock_image.py

Versions are those of constraints.txt. torch, triton and NVIDIA's packages stay those of the base image.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXTRAS = ("aws", "deepspeed", "export", "html", "tune")
PYTHON = "3.12"  # of the base image
TOOLS = ("pip==26.0.1", "setuptools==80.9.0")  # to build what has no wheel
OF_THE_BASE = re.compile(r"(torch|triton|nvidia-[\w-]+|cuda-[\w-]+)==")
HEAD = "# Written by scripts/lock_image.py. Change constraints.txt or pyproject.toml, and run it again.\n"


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pins = (ROOT / "constraints.txt").read_text().splitlines()
        (folder / "constraints.txt").write_text("\n".join(pin for pin in pins if not pin.startswith("triton==")))
        (folder / "tools.in").write_text("\n".join(TOOLS))
        extras = [word for extra in EXTRAS for word in ("--extra", extra)]
        constraint = ["--constraint", str(folder / "constraints.txt")]
        write("requirements.lock", compiled(str(ROOT / "pyproject.toml"), *extras, *constraint))
        write("tools.lock", compiled(str(folder / "tools.in")))


def compiled(source: str, *options: str) -> str:
    uv = shutil.which("uv", path=Path(sys.executable).parent) or shutil.which("uv")
    if uv is None:
        raise SystemExit("uv is not installed: python -m pip install uv")
    fixed = ["--generate-hashes", "--no-annotate", "--no-header", "--quiet", "--python-version", PYTHON]
    where = ["--python-platform", "x86_64-manylinux_2_28", "--default-index", "https://pypi.org/simple"]
    done = subprocess.run([uv, "pip", "compile", source, *options, *fixed, *where], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout


def write(name: str, text: str) -> None:
    entries = re.split(r"\n(?=[a-zA-Z0-9])", text.strip())
    kept = [entry for entry in entries if not OF_THE_BASE.match(entry)]
    (ROOT / "docker" / name).write_text(HEAD + "\n".join(kept) + "\n")
    print(f"docker/{name}: {len(kept)} packages", file=sys.stderr)


if __name__ == "__main__":
    main()
