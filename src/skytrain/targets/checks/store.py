"""The store: written, read and created conditionally by the very code that runs use; its encryption as S3 reports it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from ...aws import FIRST_REGION, Call, CloudError
from ...storage import Store, open_store
from .check import Failed, NotChecked, Preflight

PATIENCE_SECONDS = 10.0
OWNER_LINK = "https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucket-owner-condition.html"
LINK = "https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html"


def store(preflight: Preflight) -> str:
    opened = open_store(preflight.config.store).hurried(PATIENCE_SECONDS)
    folder = opened.local_path("")
    made = folder is not None and not folder.exists()
    with _probe(opened) as key:
        if opened.read(key) != key.encode():
            raise Failed(f"{opened.root}: bytes read differ from those written", "use another store.root")
        if opened.create(key, b"second"):
            raise Failed(
                f"{opened.root}: an object that exists was created again, so two attempts could both win",
                "use S3, or a server with conditional writes (If-None-Match)",
                link=LINK,
            )
    if made and folder is not None:
        _remove_empty(folder)
    return f"{opened.root}: wrote, read, created once, deleted"


def bucket(preflight: Preflight) -> str:
    """Check that the bucket belongs to the account, and is where its machines are.

    Names are global, and somebody else may have had this one first. Data of another region is paid for by the GB, and a
    gateway endpoint does not lead there.
    """
    root = preflight.config.store.root
    account = preflight.config.cloud.account
    if not root.startswith("s3://") or account is None:
        raise NotChecked("the store is a folder" if account else "cloud.account is not set")
    name = urlsplit(root).netloc
    try:
        # Not HeadBucket: it needs s3:ListBucket without a prefix, and operators list their own project only.
        asked = Call("s3", "GetBucketLocation", {"Bucket": name, "ExpectedBucketOwner": account})
        said = preflight.session.perform(asked).get("LocationConstraint") or FIRST_REGION
        location = "eu-west-1" if said == "EU" else said  # the former name, which S3 gives for old buckets
    except CloudError as error:
        if error.code != "AccessDenied":
            raise
        raise Failed(
            f"bucket {name} does not belong to account {account}, or its owner may not be asked",
            "set store.root to the bucket of the base (terraform output bucket), or cloud.account to the bucket's account",
            link=OWNER_LINK,
        ) from None
    if location != preflight.session.region:
        raise Failed(
            f"bucket {name} is in {location}, and the account is set up in {preflight.session.region}",
            f"set store.root to a bucket of {preflight.session.region}, or copy it there: skytrain store copy",
        )
    return f"{name} belongs to {account}, and is in {location}"


def encryption(preflight: Preflight) -> str:
    """Check that an object which Skytrain writes is encrypted with the key that is configured."""
    wanted = preflight.config.store
    if not wanted.root.startswith("s3://"):
        raise NotChecked("the store is a folder")
    if wanted.sse != "kms":
        raise NotChecked(f"store.sse is {wanted.sse}; kms encrypts with a key of your own")
    opened = open_store(wanted).hurried(PATIENCE_SECONDS)
    with _probe(opened) as key:
        parts = urlsplit(opened.url(key))
        head = preflight.session.perform(
            Call("s3", "HeadObject", {"Bucket": parts.netloc, "Key": parts.path.removeprefix("/")})
        )
    method = head.get("ServerSideEncryption", "none")
    by = head.get("SSEKMSKeyId", "")
    if method != "aws:kms" or (wanted.kms_key and not _same_key(by, wanted.kms_key)):
        raise Failed(
            f"an object is encrypted with {method} {by}".rstrip() + f", not with {wanted.kms_key or 'aws:kms'}",
            "set store.kms_key to the bucket's key (terraform output kms_key_arn)",
        )
    return f"objects are encrypted with {by}"


def _remove_empty(folder: Path) -> None:
    """Remove the folders that the check has made, unless something else has been written there meanwhile."""
    with suppress(OSError):
        for place in (folder / "runs", folder):
            if place.exists():
                place.rmdir()


def _same_key(used: str, wanted: str) -> bool:
    """Compare key ids: S3 reports an ARN, and the setting may be an id."""
    return used.rpartition("/")[2] == wanted.rpartition("/")[2]


@contextmanager
def _probe(opened: Store) -> Iterator[str]:
    key = f"runs/doctor-{secrets.token_hex(8)}"  # where machines may write too; no folder, so no run
    if not opened.create(key, key.encode()):
        raise Failed(f"{opened.url(key)} exists already", "run it again")
    try:
        yield key
    finally:
        opened.delete(key)
