"""The bundle of a launch: all wheels that its machines install, uploaded once for each content."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .. import __version__
from ..config import GROUPS, format_bytes, source_hash
from ..runs import Reporter
from ..storage import Store, read_data
from .wheels import PLUGINS, ImagePython, fetch_wheels, installed_pins, plugins_version, plugins_wheel, skytrain_wheel

SUMS = "SHA256SUMS"  # written last: a bundle without it is not complete
UNKNOWN_SHA256 = "known-after-the-upload"  # in requests that are shown before there is a bundle
# For machines, in the folder of a bundle: exactly the listed files are installed, and pip checks their hashes once more.
# `python` and `requirements` are a Python with the environment, and a file to write.
INSTALL = """\
pip=$(sed -nE 's/^[0-9a-f]+  (pip-.*)$/\\1/p' SHA256SUMS)
sed -nE '/  pip-/!s|^([0-9a-f]+)  (.*)$|./\\2 --hash=sha256:\\1|p' SHA256SUMS > {requirements}
{python} "$pip/pip" install --quiet --no-index --no-deps --require-hashes --requirement {requirements}\
"""
# A program for machines: it unpacks what `packed` has packed, and refuses links, devices and paths that lead elsewhere.
UNPACK = """\
import pathlib, sys, tarfile
with tarfile.open(sys.argv[1]) as archive:
    for member in archive:
        if not member.isfile() or {"", ".."} & set(member.name.split("/")):
            sys.exit(f"{member.name!r} in {sys.argv[1]} is not a plain file")
    for member in archive:
        path = pathlib.Path(sys.argv[2], member.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(archive.extractfile(member).read())
"""


@dataclass(frozen=True)
class BundleContents:
    """What the machines install: Skytrain's extras, the user's plug-in classes and further packages."""

    extras: tuple[str, ...]
    targets: tuple[str, ...]  # package.module.Class
    packages: tuple[str, ...]  # requirements that plug-ins need
    image: ImagePython


@dataclass(frozen=True)
class Bundle:
    """A complete bundle in the store, and what `pip install` is to be given there."""

    key: str
    requirements: tuple[str, ...]


def bundle_of(contents: BundleContents) -> Bundle:
    """Return the bundle of these contents, which the store may not have yet."""
    extras = f"[{','.join(sorted(contents.extras))}]" if contents.extras else ""
    plugins = plugins_version(contents.targets)
    own = [f"skytrain{extras}=={__version__}", *([f"{PLUGINS}=={plugins}"] if plugins else [])]
    requirements = (*own, *contents.packages)
    return Bundle(f"bundles/{_content_hash(contents, requirements)}", requirements)


def make_bundle(store: Store, contents: BundleContents, reporter: Reporter) -> Bundle:
    """Upload the bundle, unless the store has it already. An upload that was cut off is repeated."""
    bundle = bundle_of(contents)
    if store.exists(f"{bundle.key}/{SUMS}"):
        return bundle
    with tempfile.TemporaryDirectory(prefix="skytrain-bundle-") as name:
        folder = Path(name)
        reporter.note(f"collecting packages for Python {contents.image.version} of the machines")
        skytrain_wheel(folder)
        plugins_wheel(folder, contents.targets)
        fetch_wheels(folder, bundle.requirements, contents.image)
        _upload(store, folder, bundle.key, reporter)
    return bundle


def _content_hash(contents: BundleContents, requirements: Sequence[str]) -> str:
    image = contents.image
    said = [source_hash(), list(requirements), image.version, list(image.platforms), installed_pins(image)]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]


def _upload(store: Store, folder: Path, key: str, reporter: Reporter) -> None:
    wheels = sorted(folder.glob("*.whl"))
    total = sum(path.stat().st_size for path in wheels)
    done = 0.0
    sums = []

    def advanced(_: str, size: float) -> None:
        nonlocal done
        done += size
        reporter.progress("upload", done, total, f"{format_bytes(done)} of {format_bytes(total)}")

    for path in wheels:
        sums.append(f"{store.upload(path, f'{key}/{path.name}', advanced)}  {path.name}\n")
    store.create(f"{key}/{SUMS}", "".join(sums).encode())


def config_files(folders: Sequence[Path]) -> dict[str, bytes]:
    """Return the YAML files of the user's own groups, of several folders; the first folder wins."""
    files: dict[str, bytes] = {}
    for folder in folders:
        for group in GROUPS:
            for path in sorted((Path(folder) / group).glob("*.yaml")):
                files.setdefault(f"{group}/{path.name}", path.read_bytes())
    return files


def packed(files: Mapping[str, bytes]) -> bytes:
    """Return the files as .tar.gz, for machines to unpack. The same files give the same bytes."""
    body = io.BytesIO()
    with (
        gzip.GzipFile("", "wb", fileobj=body, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w") as archive,
    ):
        for name, data in sorted(files.items()):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return body.getvalue()


def sums_sha256(store: Store, folder: str) -> str:
    """Return the SHA-256 of a bundle's list of hashes, by which its machines know that it is the bundle they were given."""
    key = f"{folder}/{SUMS}"
    return hashlib.sha256(read_data(store, key)).hexdigest() if store.exists(key) else UNKNOWN_SHA256


def upload_bundle(store: Store, bundle: Bundle, contents: BundleContents, reporter: Reporter) -> None:
    """Upload the bundle that a launch has prepared."""
    made = make_bundle(store, contents, reporter)
    assert made.key == bundle.key
