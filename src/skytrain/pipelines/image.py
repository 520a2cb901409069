"""Image: build the training image, push it and record its digest in the store; pin the images of Kubernetes."""

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
    build_image,
    check_docker,
    digest_of,
    image_repository,
    push_image,
    read_lock,
    record_image,
    registry_password,
    resolve_image,
    resolve_lock,
    tag_digest,
    write_lock,
)
from ..config import Config, SkytrainError
from ..planning import timestamp
from ..storage import open_store

DOCKERFILE = Path("docker", "Dockerfile")
COPIED = ("pyproject.toml", "constraints.txt", "README.md", "LICENSE", "src", "docker", ".dockerignore")
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
