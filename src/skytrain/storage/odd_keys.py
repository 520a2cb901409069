"""Objects of a bucket whose names are not keys: `runs/a//b`, `runs/a/../b`, control characters.

S3 takes any name, and a machine may write any below its own run. obstore refuses a whole listing with one such object in
it, so that a single machine could hide all runs from everybody. Such listings are read with botocore instead, without
these objects.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from ..config import aws_region, plural, s3_endpoint
from .base import Stat, is_key

log = logging.getLogger(__name__)

REFUSED = "Encountered object with invalid path"  # what obstore says of a listing with such an object


@dataclass(frozen=True)
class OddListing:
    """The objects below a folder, and the full names of those that are no keys."""

    stats: list[Stat]
    odd: list[str]


def list_with_odd_keys(root: str, prefix: str) -> OddListing:
    """Return all objects below the folder `prefix` of a store."""
    bucket, _, top = root.removeprefix("s3://").partition("/")
    start = f"{top}/" if top else ""
    listing = OddListing([], [])
    for found in _objects(bucket, f"{start}{prefix}/" if prefix else start):
        key = found["Key"].removeprefix(start).removesuffix("/")  # of a folder marker of S3's console
        if is_key(root, key):
            listing.stats.append(Stat(key, found["Size"], found["ETag"], found["LastModified"].timestamp()))
        else:
            listing.odd.append(found["Key"])
    first = f"{next(iter(listing.odd), '')!r:.120}"
    log.warning(
        "warning: %s below %s/%s has a name that is none of Skytrain's, and is left out: %s",
        plural(len(listing.odd), "object"), root, prefix, first,
    )  # fmt: skip
    listing.stats.sort(key=lambda stat: stat.key)
    return listing


def delete_odd_keys(root: str, names: list[str]) -> None:
    """Delete objects by their full names."""
    bucket = root.removeprefix("s3://").partition("/")[0]
    client = _client()
    for name in names:  # one by one: a request for several is XML, which has no control characters
        client.delete_object(Bucket=bucket, Key=name)


def can_list_odd_keys() -> bool:
    return find_spec("botocore") is not None


def _objects(bucket: str, prefix: str) -> Iterator[dict[str, Any]]:
    for page in _client().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        yield from page.get("Contents", [])


def _client() -> Any:
    import botocore.session
    from botocore.config import Config

    style = Config(s3={"addressing_style": "path"}) if s3_endpoint() else None
    session = botocore.session.Session()
    region = aws_region() or session.get_config_variable("region") or "us-east-1"
    return session.create_client("s3", region_name=region, endpoint_url=s3_endpoint(), config=style)
