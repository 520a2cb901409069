"""Requests to docker: resolve a base to its digest, build, log in to a registry, push."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..config import EXIT_CODES, SkytrainError, child_environment, variable

LOGIN_KEYS = ("auths", "credsStore", "credHelpers")


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
