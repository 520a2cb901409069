"""The images of infra/kubernetes by version and digest, in kustomize's format, and manifests that use only those."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..config import SkytrainError
from .registry import PRIVATE

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
REFERENCE = re.compile(r"(?P<repository>[^@]+?)(?::(?P<tag>[\w.-]+))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?")
UNSET = "unset"  # the tag of an image that has not been named yet
FIELDS = {"newName": "repository", "newTag": "tag", "digest": "digest"}


@dataclass(frozen=True)
class LockedImage:
    """An entry of the lock: the name in the manifests, and what it stands for."""

    name: str
    repository: str
    tag: str | None  # None if known only by its digest
    digest: str | None

    def set(self, reference: str) -> LockedImage:
        """Return the entry for REGISTRY/NAME:TAG, REGISTRY/NAME@sha256:... or both."""
        match = REFERENCE.fullmatch(reference)
        if match is None or not (match["tag"] or match["digest"]):
            raise SkytrainError(f"--set {self.name}={reference}: give a tag or a digest, REGISTRY/NAME:TAG@sha256:...")
        return replace(self, repository=match["repository"], tag=match["tag"], digest=match["digest"])


def read_lock(path: Path) -> list[LockedImage]:
    import yaml  # type: ignore[import-untyped]

    if not path.is_file():
        raise SkytrainError(f"{path}: no such file\n  run it in Skytrain's checkout, or give --lock FILE")
    entries = yaml.safe_load(path.read_text())["images"]
    return [
        LockedImage(each["name"], each["newName"], _text(each.get("newTag")), each.get("digest")) for each in entries
    ]


def write_lock(path: Path, images: list[LockedImage]) -> None:
    """Replace names, tags and digests in the file, and leave its comments and its order."""
    wanted = {image.name: image for image in images}
    lines: list[str] = []
    current: LockedImage | None = None
    for line in path.read_text().splitlines():
        entry = re.match(r"(?P<indent>\s*)- name: (?P<name>\S+)", line)
        field = re.match(r"\s+(?P<field>newName|newTag|digest): ", line)
        if entry:
            current = wanted[entry["name"]]
            indent = entry["indent"] + "  "
            values = {field: getattr(current, attribute) for field, attribute in FIELDS.items()}
            lines += [line, *(f"{indent}{field}: {_plain(value)}" for field, value in values.items() if value)]
        elif not (field and current):
            lines.append(line)
    path.write_text("\n".join(lines) + "\n")


CHART_IMAGE = re.compile(
    r"(?P<before>^controller:\n  image:\n)    repository: (?P<repository>\S+)\n    tag: (?P<tag>\S+)\n"
    r"    digest: (?P<digest>sha256:[0-9a-f]{64})\n",
    re.MULTILINE,
)


def read_chart_image(path: Path) -> LockedImage:
    """Return the image in the values of Karpenter's chart, which Helm installs before anything else."""
    match = CHART_IMAGE.search(path.read_text()) if path.is_file() else None
    if match is None:
        raise SkytrainError(f"{path}: no controller.image with repository, tag and digest\n  give --values FILE")
    return LockedImage("karpenter", match["repository"], match["tag"], match["digest"])


def write_chart_image(path: Path, image: LockedImage) -> None:
    """Replace the image in the values of Karpenter's chart, and leave everything else."""
    lines = f"    repository: {image.repository}\n    tag: {image.tag}\n    digest: {image.digest}\n"
    path.write_text(CHART_IMAGE.sub(lambda match: match["before"] + lines, path.read_text()))


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _plain(value: str) -> str:
    """Return the value as YAML: a tag such as 1.0 is text, not a number."""
    import yaml

    return value if isinstance(yaml.safe_load(value), str) else f'"{value}"'


def resolve_lock(
    images: list[LockedImage], digest_of: Callable[[str, str], str], note: Callable[[str], None]
) -> list[LockedImage]:
    """Ask for the digest of every tag. An image that is known only by its digest stays as it is."""
    resolved = []
    for image in images:
        if image.tag in (None, UNSET) or (image.digest and PRIVATE.match(image.repository)):
            resolved.append(image)
            continue
        digest = digest_of(image.repository, image.tag)
        if image.digest not in (None, digest):
            note(f"{image.name}: {image.repository}:{image.tag} is {digest} now, and was {image.digest}")
        resolved.append(replace(image, digest=digest))
    return resolved


def render_manifests(overlay: Path) -> str:
    """Return the YAML of an overlay, by kubectl or kustomize; refuse it while an image in it has no digest."""
    import yaml

    command = next((renderer for renderer in (_kubectl(overlay), _kustomize(overlay)) if renderer), None)
    if command is None:
        raise SkytrainError("neither kubectl nor kustomize is installed\n  https://kubernetes.io/docs/tasks/tools")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SkytrainError(f"{' '.join(command)} failed: {done.stderr.strip()}")
    bare = sorted(
        {image for each in yaml.safe_load_all(done.stdout) for image in _images(each) if not by_digest(image)}
    )
    if bare:
        raise SkytrainError(
            f"{overlay}: no digest: {', '.join(bare)}\n"
            "  ask the registries: skytrain image resolve; ours: skytrain image resolve --set skytrain=IMAGE@sha256:..."
        )
    return done.stdout


def by_digest(image: str) -> bool:
    return DIGEST.fullmatch(image.rpartition("@")[2]) is not None


def _kubectl(overlay: Path) -> list[str] | None:
    return ["kubectl", "kustomize", str(overlay)] if shutil.which("kubectl") else None


def _kustomize(overlay: Path) -> list[str] | None:
    return ["kustomize", "build", str(overlay)] if shutil.which("kustomize") else None


def _images(node: Any) -> Iterator[str]:
    """Return every `image` of a container, however deep its pod template lies."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key in ("containers", "initContainers") and isinstance(value, list):
                yield from (str(container["image"]) for container in value)
            yield from _images(value)
    elif isinstance(node, list):
        for each in node:
            yield from _images(each)
