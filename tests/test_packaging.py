"""What is released: wheel and sdist install into empty environments and work there, and the project's files agree."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import pytest
import yaml
from packaging.specifiers import SpecifierSet

import skytrain

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# torch with its CUDA libraries is gigabytes; the environment of the tests has one that works.
BORROWED = "skytrain-tests-borrowed.pth"


def test_the_version_is_the_same_everywhere() -> None:
    assert PROJECT["version"] == skytrain.__version__
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == skytrain.__version__


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if "==" in line)


def test_the_pinned_triton_is_the_one_that_torch_from_pypi_asks_for() -> None:
    """Its wheels for Linux ask for exactly one; wheels for CPUs, which tests may run with, ask for none."""
    versions = pinned()
    asked = {"2.13.0": "3.7.1"}  # by torch; `uv pip compile` shows it
    assert versions["triton"] == asked[versions["torch"]]


def test_every_pinned_version_supports_the_oldest_python_that_the_project_names() -> None:
    oldest = PROJECT["requires-python"].removeprefix(">=") + ".0"
    refused = []
    for name, version in pinned().items():
        try:
            found = metadata(name)
        except PackageNotFoundError:  # of an extra that is not installed here
            continue
        if found["Version"] == version and not SpecifierSet(found["Requires-Python"] or "").contains(oldest):
            refused.append(f"{name} {version} needs Python {found['Requires-Python']}")
    assert refused == []


def test_workflows_and_templates_can_be_read_and_name_targets_that_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    files = [*(ROOT / ".github").rglob("*.yml"), ROOT / ".pre-commit-config.yaml"]
    assert len(files) >= 6
    for file in files:
        text = file.read_text()
        assert yaml.safe_load(text), file
        assert {word for line in re.findall(r"run: make ([a-z -]+)", text) for word in line.split()} <= targets


def run(*command: str | Path, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the sdist of a clean copy of what git has."""
    folder = tmp_path_factory.mktemp("build")
    names = run("git", "ls-files", "-z", cwd=ROOT).split("\0")
    for name in filter(None, names):
        target = folder / "source" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_file():
            shutil.copyfile(ROOT / name, target)
    script = (
        "import setuptools.build_meta as b; import sys\n"
        "out = sys.argv[1]\n"  # setuptools changes sys.argv
        "print(b.build_wheel(out)); print(b.build_sdist(out))"
    )
    run(sys.executable, "-c", script, str(folder), cwd=folder / "source")
    return next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))


@pytest.mark.slow
@pytest.mark.limit(1800)
def test_wheel_and_sdist_have_the_same_package_and_nothing_else(built: tuple[Path, Path]) -> None:
    wheel, sdist = built
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    with tarfile.open(sdist) as archive:
        stored = {member.name.partition("/")[2] for member in archive if member.isfile()}
    assert names == {name.removeprefix("src/") for name in stored if name.startswith("src/skytrain/")}
    assert {"skytrain/py.typed", "skytrain/__init__.pyi", "skytrain/config/groups/recipe/quickstart.yaml"} <= names
    assert not {name for name in names if not name.startswith("skytrain/")}


@pytest.mark.slow
@pytest.mark.limit(3600)
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_it_installs_into_an_empty_environment_and_works(built: tuple[Path, Path], kind: str, tmp_path: Path) -> None:
    file = built[0 if kind == "wheel" else 1]
    venv.create(tmp_path / "empty", with_pip=True)
    python = tmp_path / "empty" / "bin" / "python"
    program = tmp_path / "empty" / "bin" / "skytrain"
    run(python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", str(file), cwd=tmp_path)
    installed = {line.partition("==")[0].lower() for line in run(python, "-m", "pip", "freeze", cwd=tmp_path).split()}
    assert "torch" not in installed, "a laptop that plans needs no torch"
    assert "quickstart" in run(program, "--help", cwd=tmp_path)
    assert "wrote plan.json" in run(program, "plan", "recipe=gpt2-124m-pile", "budget.usd=150", cwd=tmp_path)
    missing = subprocess.run([program, "quickstart"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert missing.returncode == 2 and "pip install" in missing.stderr, "it says which extra is missing"
    if kind == "sdist":
        return
    site = next((tmp_path / "empty" / "lib").glob("python*/site-packages"))
    borrowed = next(path for path in sys.path if path.endswith("site-packages"))
    (site / BORROWED).write_text(f"{borrowed}\n")
    run(program, "quickstart", "trainer.steps=30", "trainer.validate_every=30", cwd=tmp_path)
    where = run(python, "-c", "import skytrain; print(skytrain.__file__)", cwd=tmp_path)
    assert where.startswith(str(tmp_path)), "the installed package, not the source"
