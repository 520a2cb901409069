"""Image: build the training image, push it and record its digest in the store; pin and mirror the images of Kubernetes."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from .. import __version__
from ..aws import (
    AwsSession,
    CloudError,
    ImageRepository,
    LockedImage,
    PushedImage,
    RegistryImage,
    RegistryRepository,
    build_image,
    check_docker,
    copy_image,
    digest_of,
    find_registry_image,
    image_repository,
    push_image,
    read_chart_image,
    read_lock,
    record_image,
    registry_password,
    resolve_image,
    resolve_lock,
    tag_digest,
    write_chart_image,
    write_lock,
)
from ..config import Config, SkytrainError, format_bytes
from ..planning import timestamp
from ..runs import Reporter
from ..storage import open_store

DOCKERFILE = Path("docker", "Dockerfile")
COPIED = ("pyproject.toml", "constraints.txt", "README.md", "LICENSE", "src", "docker", ".dockerignore")
KARPENTER = "karpenter"  # name of the image of Karpenter's chart
LOCAL = "skytrain"  # name of an image that is only built


@dataclass(frozen=True)
class ImageSource:
    """A checkout whose committed files make the image."""

    context: Path
    revision: str

    def tag(self, base: str) -> str:
        """Return a tag that another source or base does not get: tags of the repository cannot be moved."""
        return f"{__version__}-{self.revision[:12]}-{base.rpartition(':')[2][:8]}"


def find_source(context: Path) -> ImageSource:
    """Return the checkout in `context`; raise SkytrainError if it is not one, or has uncommitted changes."""
    if not (context / DOCKERFILE).is_file():
        raise SkytrainError(f"{context} has no {DOCKERFILE}\n  give Skytrain's checkout: --context DIR")
    revision = _git(context, "rev-parse", "HEAD").strip()
    changed = _git(context, "status", "--porcelain", "--", *COPIED).splitlines()
    if changed:
        named = ", ".join(line[3:] for line in changed[:3]) + (", ..." if len(changed) > 3 else "")
        raise SkytrainError(
            f"{context} has changes that are not committed: {named}\n"
            "  commit or stash them: the image is named after the commit that it is made of"
        )
    return ImageSource(context, revision)


def build(source: ImageSource, base: str, repository: str = LOCAL) -> tuple[str, str]:
    """Build the image; return its name and its base by digest."""
    check_docker()
    resolved = resolve_image(base)
    name = f"{repository}:{source.tag(resolved)}"
    _build(source, resolved, name)
    return name, resolved


def push(
    config: Config, session: AwsSession, source: ImageSource, base: str, tell: Callable[[str], None]
) -> PushedImage:
    """Build and push the image, unless the repository has it, and record it in the store."""
    repository = image_repository(config.cloud)
    _check_account(session, repository)
    check_docker()
    resolved = resolve_image(base)
    tag = source.tag(resolved)
    digest = digest_of(session, repository, tag)
    if digest is None:
        _build(source, resolved, f"{repository.url}:{tag}")
        push_image(f"{repository.url}:{tag}", repository.registry, registry_password(session, repository))
        digest = digest_of(session, repository, tag)
    else:
        tell(f"{repository.name} has {tag} already: nothing is built or pushed")
    if digest is None:
        raise CloudError(f"docker pushed {tag}, and {repository.name} does not have it", fix="try it again")
    image = PushedImage(
        uri=f"{repository.url}@{digest}",
        tag=tag,
        base=resolved,
        revision=source.revision,
        pushed_at=timestamp(datetime.now(UTC)),
    )
    record_image(open_store(config.store), image)
    return image


def resolve(
    lock: Path, replacements: Sequence[str], tell: Callable[[str], None], *, offline: bool
) -> list[LockedImage]:
    """Replace images of the lock by NAME=IMAGE, ask the registries for all digests unless `offline`, and write it."""
    locked = read_lock(lock)
    images = {image.name: image for image in locked}
    for replacement in replacements:
        name, _, reference = replacement.partition("=")
        if name not in images:
            raise SkytrainError(f"--set {replacement}: no image {name} in {lock}\n  it has {', '.join(images)}")
        images[name] = images[name].set(reference)
    resolved = list(images.values())
    if not offline:
        resolved = resolve_lock(resolved, tag_digest, tell)
    if resolved != locked:
        write_lock(lock, resolved)
    return resolved


@dataclass(frozen=True)
class MirroredImage:
    """An image of a cluster that a mirror lacks, as its registry has it."""

    locked: LockedImage
    image: RegistryImage

    @property
    def bytes(self) -> int:
        return sum(self.image.blobs.values())

    def at(self, target: RegistryRepository) -> LockedImage:
        """Return its entry in the list when the mirror has it. Its tag says what it is, and is never moved."""
        digest = self.image.digest
        tag = f"{self.locked.name}-{self.locked.tag or 'by-digest'}-{digest.removeprefix('sha256:')[:12]}"
        return LockedImage(self.locked.name, target.repository, tag, digest)


def find_mirrored(lock: Path, values: Path, target: RegistryRepository) -> list[MirroredImage]:
    """Ask the registries for all images that a cluster needs and the mirror is not named for. Nothing is copied."""
    images = [*read_lock(lock), read_chart_image(values)]
    registry = target.repository.partition("/")[0]
    others = [image for image in images if image.repository.partition("/")[0] != registry]
    if missing := [image.name for image in others if image.digest is None]:
        raise SkytrainError(
            f"no digest: {', '.join(missing)}\n  ask the registries: skytrain image resolve; ours comes from "
            "`skytrain image push`: skytrain image resolve --set skytrain=IMAGE@sha256:..."
        )
    return [
        MirroredImage(image, find_registry_image(RegistryRepository(image.repository), str(image.digest)))
        for image in others
    ]


def mirror(
    images: Sequence[MirroredImage], lock: Path, values: Path, target: RegistryRepository, reporter: Reporter
) -> list[LockedImage]:
    """Copy the images, and let the list and the chart's values name the copies; one after the other.

    What was copied before a failure stays, and the same command copies the rest.
    """
    done = []
    for number, one in enumerate(images):
        reporter.progress("mirror", number, len(images), f"{one.locked.name}, {format_bytes(one.bytes)}")
        copied = one.at(target)
        copy_image(one.image, target, str(copied.tag))
        if one.locked.name == KARPENTER:
            write_chart_image(values, copied)
        else:
            listed = read_lock(lock)
            write_lock(lock, [copied if each.name == copied.name else each for each in listed])
        done.append(copied)
    return done


def _build(source: ImageSource, base: str, name: str) -> None:
    labels = {
        "org.opencontainers.image.version": __version__,
        "org.opencontainers.image.revision": source.revision,
        "org.opencontainers.image.base.name": base.partition("@")[0],
        "org.opencontainers.image.base.digest": base.partition("@")[2],
    }
    build_image(source.context, source.context / DOCKERFILE, name, base, labels)


def _check_account(session: AwsSession, repository: ImageRepository) -> None:
    if session.identity.account != repository.account:
        raise CloudError(
            f"the repository is in account {repository.account}, and the credentials are of {session.identity.account}",
            fix="choose the profile of that account: export AWS_PROFILE=NAME",
            cause="credentials",
        )


def _git(context: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(context), *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise SkytrainError(
            "git is not installed here\n  the image is named after the commit that it is made of"
        ) from None
    if done.returncode:
        raise SkytrainError(f"{context}: {' '.join(done.stderr.split())}\n  the image is made from a checkout by git")
    return done.stdout
