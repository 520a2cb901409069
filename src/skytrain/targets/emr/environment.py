"""The packed environment of a Spark job: all its packages in one archive that runs wherever it is unpacked."""

from __future__ import annotations

import gzip
import io
import re
import tarfile
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from ...config import format_bytes
from ...runs import Reporter
from ...storage import Store, read_text
from ..bundle import SUMS, UNKNOWN_SHA256, BundleContents, bundle_of
from ..wheels import fetch_wheels, plugins_wheel, run_pip, skytrain_wheel

ARCHIVE = "environment.tar.gz"
SPARK_PYTHON = "3.11"  # of EMR 7.1 and later; its default, 3.9, is too old
SPARK_PACKAGES = ("pandas>=2.2,<3",)  # of the extra `spark`; the cluster has its own PySpark
UNUSED = re.compile(r"^(numba|pandas|pyarrow)/tests(/|$)|(^|/)__pycache__(/|$)|^bin(/|$)")
# The machine's own Python runs it: a virtual environment would name the folder that it was made in. Compiled kernels
# are kept outside the archive, which YARN unpacks into a folder that the job cannot write.
PYTHON = f"""\
#!/bin/sh
here=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd -P) || exit 1
unset PYTHONHOME
export PYTHONPATH="$here/site${{PYTHONPATH:+:$PYTHONPATH}}" PYTHONNOUSERSITE=1 PYTHONSAFEPATH=1
export NUMBA_CACHE_DIR="${{NUMBA_CACHE_DIR:-${{TMPDIR:-/tmp}}/skytrain-numba-$(id -u)}}"
python="${{SKYTRAIN_PYTHON:-python{SPARK_PYTHON}}}"
if ! command -v "$python" > /dev/null; then
  echo "skytrain: there is no $python on $(uname -n): EMR has it from release 7.1.0 on; SKYTRAIN_PYTHON names another" >&2
  exit 127
fi
exec "$python" "$@"
"""
# The driver's program: spark-submit takes a file and not a module.
ENTRY = """\
import sys

from skytrain.cli.main import main

sys.exit(main())
"""


@dataclass(frozen=True)
class PackedEnvironment:
    """An archive in the store. Unpacked, `bin/python` is a Python with its packages."""

    key: str
    sums: str  # the key of its SHA-256, as sha256sum reads it


def spark_contents(contents: BundleContents) -> BundleContents:
    """Return the contents with what PySpark imports on executors."""
    return replace(contents, packages=(*SPARK_PACKAGES, *contents.packages))


def environment_of(contents: BundleContents) -> PackedEnvironment:
    """Return the environment of these contents, which the store may not have yet. Its name follows from them."""
    folder = bundle_of(spark_contents(contents)).key
    return PackedEnvironment(f"{folder}-spark/{ARCHIVE}", f"{folder}-spark/{SUMS}")


def pack_environment(store: Store, contents: BundleContents, reporter: Reporter) -> PackedEnvironment:
    """Collect the packages and upload the archive, unless the store has it already."""
    packed = environment_of(contents)
    if store.exists(packed.sums):
        return packed
    wanted = spark_contents(contents)
    with tempfile.TemporaryDirectory(prefix="skytrain-environment-") as name:
        folder = Path(name)
        wheels = folder / "wheels"
        site = folder / "site"
        archive = folder / ARCHIVE
        wheels.mkdir()
        reporter.note(f"collecting packages for Python {wanted.image.version} of the cluster")
        skytrain_wheel(wheels)
        plugins_wheel(wheels, wanted.targets)
        fetch_wheels(wheels, bundle_of(wanted).requirements, wanted.image)
        _install(wheels, site, wanted)
        write_archive(site, archive)
        size = archive.stat().st_size
        reporter.note(f"uploading the packed environment, {format_bytes(size)}")
        done = 0.0

        def advanced(_: str, part: float) -> None:
            nonlocal done
            done += part
            reporter.progress("upload", done, size, f"{format_bytes(done)} of {format_bytes(size)}")

        digest = store.upload(archive, packed.key, advanced)
        store.create(packed.sums, f"{digest}  {ARCHIVE}\n".encode())
    return packed


def packed_sha256(store: Store, packed: PackedEnvironment) -> str:
    """Return the SHA-256 of the archive in the store."""
    return read_text(store, packed.sums).split()[0] if store.exists(packed.sums) else UNKNOWN_SHA256


def _install(wheels: Path, site: Path, contents: BundleContents) -> None:
    """Unpack the wheels for the cluster's Python, which need not be this one."""
    image = contents.image
    # By name: pip would note the path of a file, a folder of the moment, and no archive would be like another.
    named = (path.name.split("-")[:2] for path in sorted(wheels.glob("*.whl")))
    given = [f"{name}=={version}" for name, version in named if name != "pip"]
    platforms = [word for platform in image.platforms for word in ("--platform", platform)]
    kind = ["--no-deps", "--no-compile", "--only-binary=:all:", "--python-version", image.version, *platforms]
    run_pip("install", "--no-index", "--find-links", str(wheels), "--target", str(site), *kind, *given)


def write_archive(site: Path, archive: Path) -> None:
    """Write the archive of the installed packages. The same packages give the same bytes."""
    with (
        archive.open("wb") as file,
        gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.GNU_FORMAT) as members,
    ):
        _add(members, "bin/python", PYTHON.encode(), 0o755)
        for path in sorted(site.rglob("*")):
            name = path.relative_to(site).as_posix()
            if path.is_file() and not UNUSED.search(name):
                _add(members, f"site/{name}", path.read_bytes(), 0o755 if path.stat().st_mode & 0o100 else 0o644)


def _add(members: tarfile.TarFile, name: str, body: bytes, mode: int) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(body)
    info.mode = mode
    members.addfile(info, io.BytesIO(body))
