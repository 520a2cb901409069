"""The training image of a project: its repository in ECR, and the record of the newest one that was pushed."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import asdict, dataclass

from ..config import CloudConfig, SkytrainError
from ..storage import NotFound, Store, read_typed
from .calls import Call
from .errors import CloudError
from .session import AwsSession

RECORD = "images/training.json"
REPOSITORY = re.compile(
    r"(?P<account>\d{12})\.dkr\.ecr\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(?:\.cn)?/(?P<name>[a-z0-9._/-]+)"
)
ABSENT = ("ImageNotFoundException",)


@dataclass(frozen=True)
class ImageRepository:
    """A repository of ECR."""

    url: str
    account: str
    region: str
    name: str

    @property
    def registry(self) -> str:
        return self.url.partition("/")[0]


@dataclass(frozen=True)
class PushedImage:
    """An image in the project's repository, as the store records it."""

    uri: str  # ACCOUNT.dkr.ecr.REGION.amazonaws.com/NAME@sha256:...
    tag: str
    base: str  # by digest
    revision: str  # of Skytrain's source
    pushed_at: str


def image_repository(cloud: CloudConfig) -> ImageRepository:
    """Return the base's repository; raises SkytrainError where it is not set, or is none of ECR."""
    url = cloud.image_repository
    if not url:
        raise SkytrainError(
            "cloud.image_repository is not set\n  apply infra/terraform/base, then: skytrain cloud init; and add cloud=aws"
        )
    match = REPOSITORY.fullmatch(url)
    if match is None:
        raise SkytrainError(
            f"cloud.image_repository={url}: not a repository of ECR\n  ACCOUNT.dkr.ecr.REGION.amazonaws.com/NAME, no tag"
        )
    return ImageRepository(url, **match.groupdict())


def digest_of(session: AwsSession, repository: ImageRepository, tag: str) -> str | None:
    """Return the digest of a tag; None if the repository has no such tag."""
    asked = {
        "registryId": repository.account,
        "repositoryName": repository.name,
        "imageIds": [{"imageTag": tag}],
    }
    try:
        answer = session.perform(Call("ecr", "DescribeImages", asked), repository.region)
    except CloudError as error:
        if error.code in ABSENT:
            return None
        raise
    return str(answer["imageDetails"][0]["imageDigest"])


def registry_password(session: AwsSession, repository: ImageRepository) -> str:
    """Return a password for docker's user AWS, which is valid for hours."""
    answer = session.perform(Call("ecr", "GetAuthorizationToken"), repository.region)
    return base64.b64decode(answer["authorizationData"][0]["authorizationToken"]).decode().partition(":")[2]


def record_image(store: Store, image: PushedImage) -> None:
    """Make this the image that launches use unless they name another."""
    store.write(RECORD, json.dumps(asdict(image), indent=1).encode())


def pushed_image(store: Store) -> PushedImage | None:
    """Return the newest image that `skytrain image push` recorded; None if there is none."""
    try:
        return read_typed(store, RECORD, PushedImage, remedy="skytrain image push writes it again")
    except NotFound:
        return None
