"""The digest of an image's tag, asked from its registry without pulling the image (OCI distribution API)."""

from __future__ import annotations

import hashlib
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from http.client import HTTPMessage

from ..config import SkytrainError

# The list of platforms, if there is one: its digest serves every kind of node.
ACCEPT = ", ".join(
    f"application/vnd.{kind}+json"
    for kind in (
        "oci.image.index.v1",
        "docker.distribution.manifest.list.v2",
        "oci.image.manifest.v1",
        "docker.distribution.manifest.v2",
    )
)
TIMEOUT_SECONDS = 30
DOCKER_HUB = ("docker.io", "registry-1.docker.io")  # the name, and the host that answers for it
LOCAL = re.compile(r"(localhost|127\.0\.0\.1)(:\d+)?")
PRIVATE = re.compile(r"\d{12}\.dkr\.ecr\.")


class RegistryError(SkytrainError):
    """The error of a registry that did not return an image's digest."""


def tag_digest(repository: str, tag: str) -> str:
    """Return `sha256:...` of REGISTRY/NAME:TAG, computed from the manifest that the registry sends."""
    if PRIVATE.match(repository):
        raise RegistryError(
            f"{repository}:{tag}: a private repository of ECR\n  name it by digest, as `skytrain image push` prints it"
        )
    host, _, name = repository.partition("/")
    scheme = "http" if LOCAL.fullmatch(host) else "https"
    server = DOCKER_HUB[1] if host == DOCKER_HUB[0] else host
    url = f"{scheme}://{server}/v2/{name}/manifests/{tag}"
    try:
        body, headers = _get(url, {"Accept": ACCEPT})
    except urllib.error.HTTPError as error:
        if error.code != 401:
            raise RegistryError(f"{repository}:{tag}: {server} answered {error.code} {error.reason}") from None
        token = _token(error.headers.get("WWW-Authenticate", ""), repository)
        try:
            body, headers = _get(url, {"Accept": ACCEPT, "Authorization": f"Bearer {token}"})
        except urllib.error.HTTPError as denied:
            raise RegistryError(f"{repository}:{tag}: {server} answered {denied.code} {denied.reason}") from None
    digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
    stated = headers.get("Docker-Content-Digest", digest)
    if stated != digest:
        raise RegistryError(f"{repository}:{tag}: {server} states {stated}, but what it sent is {digest}")
    return digest


def _token(challenge: str, repository: str) -> str:
    """Return the token that anybody gets for a public image."""
    fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    if not challenge.lower().startswith("bearer ") or "realm" not in fields:
        raise RegistryError(f"{repository}: the registry wants a login\n  name the image by digest")
    query = urllib.parse.urlencode({name: fields[name] for name in ("service", "scope") if name in fields})
    try:
        body, _ = _get(f"{fields['realm']}?{query}", {})
    except urllib.error.HTTPError as error:
        raise RegistryError(f"{repository}: no anonymous access ({error.code})\n  name the image by digest") from None
    answer = json.loads(body)
    return str(answer.get("token") or answer["access_token"])


def _get(url: str, headers: dict[str, str]) -> tuple[bytes, HTTPMessage]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT_SECONDS) as response:  # noqa: S310 - always https
            return response.read(), response.headers
    except urllib.error.HTTPError:
        raise
    except OSError as error:
        host = urllib.parse.urlsplit(url).netloc
        raise RegistryError(f"{host} cannot be reached: {getattr(error, 'reason', error)}") from None
