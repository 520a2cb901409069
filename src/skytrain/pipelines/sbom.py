"""A software bill of materials (CycloneDX 1.5): the packages that are installed here, or those of a launch's bundle."""

from __future__ import annotations

import re
from importlib import metadata
from typing import Any

from .. import __version__
from ..config import Config, SkytrainError
from ..storage import open_store, read_text

Component = dict[str, Any]
SUMS = "SHA256SUMS"


def installed_sbom() -> dict[str, Any]:
    """Return the bill of materials of this Python. In the training image it is that of the image."""
    found = {each.name.lower(): each for each in metadata.distributions()}
    return _sbom([_component(each.name, each.version, licence=_licence(each)) for _, each in sorted(found.items())])


def bundle_sbom(config: Config, key: str) -> dict[str, Any]:
    """Return the bill of materials of a bundle in the store, with the hashes that its machines check."""
    store = open_store(config.store)
    folder = key.rstrip("/")
    if not store.exists(f"{folder}/{SUMS}"):
        raise SkytrainError(
            f"{store.url(folder)} is not a bundle of packages\n"
            "  a launch's record names its own: launches/RUN/00001/launch.json has `bundle`"
        )
    lines = (line.split("  ", 1) for line in read_text(store, f"{folder}/{SUMS}").splitlines())
    return _sbom([_component(*file.split("-")[:2], sha256=digest) for digest, file in lines])


def _sbom(components: list[Component]) -> dict[str, Any]:
    """Return the document. It has no time and no serial number: the same packages give the same bytes."""
    tool = {"type": "application", "name": "skytrain", "version": __version__}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"tools": {"components": [tool]}},
        "components": components,
    }


def _component(name: str, version: str, *, licence: str = "", sha256: str = "") -> Component:
    plain = re.sub(r"[-_.]+", "-", name).lower()
    purl = f"pkg:pypi/{plain}@{version}"
    component: Component = {"type": "library", "bom-ref": purl, "name": plain, "version": version, "purl": purl}
    if sha256:
        component["hashes"] = [{"alg": "SHA-256", "content": sha256}]
    if licence:
        component["licenses"] = [{"license": {"name": licence}}]
    return component


def _licence(distribution: metadata.Distribution) -> str:
    """Return what the package says of its licence in one line; many have the whole text there."""
    fields = distribution.metadata.json
    said = str(fields.get("license_expression") or fields.get("license") or "")
    return said if len(said) < 80 and "\n" not in said else ""
