"""Image: build the training image, push it and record its digest in the store; pin and mirror the images of Kubernetes."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
    copy_image,
    digest_of,
    find_registry_image,
    image_repository,
    read_chart_image,
    read_lock,
    record_image,
    registry_password,
    resolve_lock,
    tag_digest,
    write_chart_image,
    write_lock,
)
from ..config import EXIT_CODES, Config, SkytrainError, child_environment, format_bytes, variable
from ..planning import timestamp
from ..runs import Reporter
from ..storage import open_store

DOCKERFILE = Path("docker", "Dockerfile")
COPIED = ("pyproject.toml", "constraints.txt", "README.md", "LICENSE", "src", "docker", ".dockerignore")
KARPENTER = "karpenter"  # name of the image of Karpenter's chart
LOCAL = "skytrain"  # name of an image that is only built
LOGIN_KEYS = ("auths", "credsStore", "credHelpers")  # of docker's configuration


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


class DockerError(SkytrainError):
    """The error of a missing docker, or of a request that it refused."""

    exit_code = EXIT_CODES["preflight"]


def check_docker() -> None:
    """Raise DockerError without docker or its engine."""
    if shutil.which("docker") is None:
        raise DockerError("docker is not installed here\n  install Docker Engine, or run this where it is")
    _docker("version", "--format", "{{.Server.Version}}", fix="is the engine running? docker info")


def resolve_image(name: str) -> str:
    """Pull an image and return it by digest, NAME@sha256:...; a name with a digest stays as it is."""
    _docker("pull", name, shown=True, fix="is the name right, and the registry reachable?")
    if "@sha256:" in name:
        return name
    digests = json.loads(_docker("image", "inspect", "--format", "{{json .RepoDigests}}", name))
    repository = name.rpartition(":")[0] if ":" in name.rpartition("/")[2] else name
    matching = [one for one in digests or [] if one.partition("@")[0] == repository]
    if not matching:
        raise DockerError(f"{name} has no digest of a registry\n  give an image that a registry has")
    return str(matching[0])


def build_image(context: Path, dockerfile: Path, tag: str, base: str, labels: Mapping[str, str]) -> None:
    """Build an image from `context`, for the machines of the cloud and not for this one."""
    named = [word for name, value in labels.items() for word in ("--label", f"{name}={value}")]
    _docker(
        "build", "--platform", "linux/amd64", "--file", str(dockerfile), "--build-arg", f"BASE_IMAGE={base}",
        "--tag", tag, *named, str(context), shown=True, fix="docker's output above says why",
    )  # fmt: skip


def push_image(tag: str, registry: str, password: str) -> None:
    """Push to a registry of ECR. The password goes through stdin, and its login is forgotten afterwards."""
    with _own_login() as environment:
        login = ("login", "--username", "AWS", "--password-stdin", registry)
        _docker(*login, stdin=password, environment=environment, fix=f"is {registry} reachable from here?")
        _docker("push", tag, shown=True, environment=environment, fix="docker's output above says why")


@contextmanager
def _own_login() -> Iterator[dict[str, str]]:
    """Yield an environment whose logins are kept apart from the user's, and removed; everything else is the user's."""
    users = Path(variable("DOCKER_CONFIG") or Path.home() / ".docker")
    with tempfile.TemporaryDirectory(prefix="skytrain-docker-") as name:
        own = Path(name)
        if (users / "config.json").is_file():
            settings = json.loads((users / "config.json").read_text())
            kept = {key: value for key, value in settings.items() if key not in LOGIN_KEYS}
            (own / "config.json").write_text(json.dumps(kept))
        for folder in ("contexts", "cli-plugins"):
            if (users / folder).is_dir():
                (own / folder).symlink_to(users / folder)
        yield child_environment({"DOCKER_CONFIG": str(own)})


def _docker(
    *words: str,
    shown: bool = False,
    stdin: str | None = None,
    environment: Mapping[str, str] | None = None,
    fix: str = "",
) -> str:
    """Run docker; with `shown`, its own progress goes to stderr."""
    command: Sequence[str] = ("docker", *words)
    output = 2 if shown else subprocess.PIPE  # stdout has the result of the command
    done = subprocess.run(
        command, input=stdin, stdout=output, stderr=None if shown else subprocess.PIPE, text=True, env=environment,
        check=False,
    )  # fmt: skip
    if done.returncode:
        said = "" if shown else f": {' '.join((done.stderr or done.stdout or '').split())}"
        raise DockerError(
            f"docker {words[0]} failed, exit code {done.returncode}{said}" + (f"\n  {fix}" if fix else "")
        )
    return done.stdout or ""
