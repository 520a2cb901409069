"""Registries of images (OCI distribution API): the digest of a tag without pulling the image, and copies by digest."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from typing import IO, Any

from ..config import SkytrainError
from ..storage import Patience, Retry

INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
IMAGES = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
ACCEPT = ", ".join((*INDEXES, *IMAGES))  # the list of platforms, if there is one: its digest serves every kind of node
TIMEOUT_SECONDS = 30
COPYING = Retry(seconds=120.0, first_wait_seconds=1.0, longest_wait_seconds=15.0)  # of one blob
DOCKER_HUB = ("docker.io", "registry-1.docker.io")  # the name, and the host that answers for it
LOCAL = re.compile(r"(localhost|127\.0\.0\.1)(:\d+)?")
PRIVATE = re.compile(r"\d{12}\.dkr\.ecr\.")
PLATFORM = {"os": "linux", "architecture": "amd64"}  # of every node


class RegistryError(SkytrainError):
    """The error of a registry that did not return or take an image."""


def tag_digest(repository: str, tag: str) -> str:
    """Return `sha256:...` of REGISTRY/NAME:TAG, computed from the manifest that the registry sends."""
    if PRIVATE.match(repository):
        raise RegistryError(
            f"{repository}:{tag}: a private repository of ECR\n  name it by digest, as `skytrain image push` prints it"
        )
    body, stated = RegistryRepository(repository).manifest(tag)
    digest = digest_text(body)
    if stated not in ("", digest):
        raise RegistryError(f"{repository}:{tag}: the registry states {stated}, but what it sent is {digest}")
    return digest


def digest_text(body: bytes) -> str:
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


class RegistryRepository:
    """One repository of a registry. `password` is that of ECR's user AWS; anybody reads public ones without."""

    def __init__(self, repository: str, password: str | None = None) -> None:
        host, _, name = repository.partition("/")
        scheme = "http" if LOCAL.fullmatch(host) else "https"
        self.repository = repository
        self._server = DOCKER_HUB[1] if host == DOCKER_HUB[0] else host
        self._url = f"{scheme}://{self._server}/v2/{name}"
        self._basic = base64.b64encode(f"AWS:{password}".encode()).decode() if password is not None else None
        self._authorization: str | None = None

    def manifest(self, reference: str) -> tuple[bytes, str]:
        """Return a manifest by tag or digest, and the digest that the registry states for it."""
        with self._asked("GET", f"{self._url}/manifests/{reference}", {"Accept": ACCEPT}) as answer:
            return answer.read(), answer.headers.get("Docker-Content-Digest", "")

    def has(self, kind: str, digest: str) -> bool:
        """Return whether the repository has one of its `manifests` or `blobs`."""
        try:
            with self._asked("HEAD", f"{self._url}/{kind}/{digest}", {"Accept": ACCEPT}):
                return True
        except RegistryError as error:
            if isinstance(error.__cause__, urllib.error.HTTPError) and error.__cause__.code == 404:
                return False
            raise

    @contextlib.contextmanager
    def blob(self, digest: str) -> Iterator[IO[bytes]]:
        """Open a blob for reading."""
        with self._asked("GET", f"{self._url}/blobs/{digest}", {}) as answer:
            yield answer

    def put_blob(self, digest: str, size: int, body: IO[bytes]) -> None:
        """Upload a blob of this size; the registry refuses it unless it has this digest."""
        with self._asked("POST", f"{self._url}/blobs/uploads/", {"Content-Length": "0"}, b"") as answer:
            place = urllib.parse.urljoin(self._url, answer.headers["Location"])
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
        with self._asked("PATCH", place, headers, body) as answer:
            place = urllib.parse.urljoin(self._url, answer.headers["Location"])
        finished = f"{place}{'&' if '?' in place else '?'}digest={urllib.parse.quote(digest)}"
        with self._asked("PUT", finished, {"Content-Length": "0"}, b""):
            pass

    def put_manifest(self, reference: str, body: bytes) -> None:
        """Upload a manifest under a tag or its digest."""
        kind = json.loads(body).get("mediaType") or IMAGES[0]
        with self._asked("PUT", f"{self._url}/manifests/{reference}", {"Content-Type": kind}, body):
            pass

    @contextlib.contextmanager
    def _asked(
        self, method: str, url: str, headers: dict[str, str], data: bytes | IO[bytes] | None = None
    ) -> Iterator[HTTPResponse]:
        """Send a request, with a token if the registry wants one. Raises RegistryError, whose cause is the answer."""
        try:
            try:
                answer = self._send(method, url, headers, data)
            except urllib.error.HTTPError as error:
                if error.code != 401 or self._authorization is not None:
                    raise
                self._authorization = self._authorize(error.headers.get("WWW-Authenticate", ""))
                answer = self._send(method, url, headers, data)
            with answer:
                yield answer
        except urllib.error.HTTPError as error:
            what = urllib.parse.urlsplit(url).path.rpartition("/")[2]
            raise RegistryError(f"{self.repository}, {what}: {error.code} {error.reason}") from error
        except (OSError, HTTPException) as error:
            raise RegistryError(f"{self._server} cannot be reached: {getattr(error, 'reason', error)}") from error

    def _send(self, method: str, url: str, headers: dict[str, str], data: Any) -> HTTPResponse:
        request = urllib.request.Request(url, data=data, headers=headers, method=method)  # noqa: S310 - always https
        if self._authorization is not None:
            # Blobs are often at another place, which must not see it, and refuses a second signature.
            request.add_unredirected_header("Authorization", self._authorization)
        answer: HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)  # noqa: S310 - always https
        return answer

    def _authorize(self, challenge: str) -> str:
        """Return what the registry's challenge asks for: a password, or the token that anybody gets for a public image."""
        if challenge.lower().startswith("basic") and self._basic is not None:
            return f"Basic {self._basic}"
        fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
        if not challenge.lower().startswith("bearer ") or "realm" not in fields:
            raise RegistryError(f"{self.repository}: the registry wants a login\n  name the image by digest")
        query = urllib.parse.urlencode({name: fields[name] for name in ("service", "scope") if name in fields})
        request = urllib.request.Request(f"{fields['realm']}?{query}")  # noqa: S310 - the registry's own https
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310 - as above
                token = json.loads(answer.read())
        except urllib.error.HTTPError as error:
            raise RegistryError(
                f"{self.repository}: no anonymous access ({error.code})\n  name the image by digest"
            ) from None
        return f"Bearer {token.get('token') or token['access_token']}"


@dataclass(frozen=True)
class RegistryImage:
    """An image of one platform: its manifest, and the blobs that this names with their digests and sizes."""

    source: RegistryRepository
    manifest: bytes

    @property
    def digest(self) -> str:
        return digest_text(self.manifest)

    @property
    def blobs(self) -> dict[str, int]:
        """Return the size of each blob, by its digest."""
        content = json.loads(self.manifest)
        return {str(blob["digest"]): int(blob["size"]) for blob in (content["config"], *content["layers"])}


def find_registry_image(source: RegistryRepository, digest: str) -> RegistryImage:
    """Return an image for the nodes' platform. Of one for several, the list of platforms states the digest of each."""
    body, _ = source.manifest(digest)
    if digest_text(body) != digest:
        raise RegistryError(f"{source.repository}@{digest}: the registry sent {digest_text(body)}")
    listed = json.loads(body).get("manifests")
    if listed is None:
        return RegistryImage(source, body)
    for one in listed:
        if PLATFORM.items() <= one.get("platform", {}).items():
            return find_registry_image(source, one["digest"])
    raise RegistryError(f"{source.repository}@{digest}: not for {PLATFORM['os']}/{PLATFORM['architecture']}")


def copy_image(image: RegistryImage, target: RegistryRepository, tag: str) -> None:
    """Copy an image, every byte of which the target checks against its digest. What it has is not copied again."""
    if target.has("manifests", image.digest):
        return
    for digest, size in image.blobs.items():
        _copy_blob(image.source, digest, size, target)
    target.put_manifest(tag, image.manifest)
    if not target.has("manifests", image.digest):
        raise RegistryError(f"{target.repository}:{tag} was pushed, and is not {image.digest}")


def _copy_blob(source: RegistryRepository, digest: str, size: int, target: RegistryRepository) -> None:
    patience = Patience(COPYING)
    while not target.has("blobs", digest):
        try:
            with source.blob(digest) as body:
                target.put_blob(digest, size, body)
            return
        except RegistryError:
            if (wait := patience.failed()) is None:
                raise
            time.sleep(wait)
