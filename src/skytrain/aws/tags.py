"""The four tags on everything that Skytrain creates. IAM conditions, `status` and `gc` rely on them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import InitVar, dataclass
from datetime import UTC, datetime
from typing import Any

from ..config import SkytrainError

PREFIX = "skytrain:"
PROJECT, RUN, OWNER, EXPIRES_AT = (PREFIX + name for name in ("project", "run", "owner", "expires-at"))
SETTINGS = {PROJECT: "cloud.project", RUN: "run", OWNER: "cloud.owner"}  # the time is always one
# Allowed by every service's rules for tag values; AWS keeps those with its own prefix for itself.
ALLOWED = re.compile(r"(?!aws:)[\w .:/=+\-@]{1,256}", re.IGNORECASE)


@dataclass(frozen=True)
class Tags:
    """The owner of a resource. What belongs to a whole project has no run and does not expire.

    `checked` is False for tags that were read: EC2 takes any character, so that people's edits must not end a scan.
    """

    project: str
    owner: str
    run: str | None = None
    expires_at: datetime | None = None
    checked: InitVar[bool] = True

    def __post_init__(self, checked: bool) -> None:
        for name, value in self.mapping().items() if checked else ():
            if not ALLOWED.fullmatch(value):
                raise SkytrainError(
                    f"{value!r} cannot be the tag {name}: 1 to 256 letters, digits, spaces or . : / = + - @ _, "
                    "and no aws: before them\n"
                    f"  choose another: {SETTINGS[name]}=NAME"
                )

    def check_ascii(self, service: str) -> None:
        """Raise for a value that a service does not take which has no letters outside ASCII in tags."""
        for name, value in self.mapping().items():
            if not value.isascii():
                raise SkytrainError(
                    f"{value!r} cannot be the tag {name} on {service}, which takes no letters outside ASCII\n"
                    f"  choose another: {SETTINGS[name]}=NAME"
                )

    def mapping(self) -> dict[str, str]:
        """Return `{key: value}`, as EKS, CloudWatch Logs, EMR Serverless and others take tags."""
        values = {PROJECT: self.project, RUN: self.run, OWNER: self.owner}
        if self.expires_at is not None:
            values[EXPIRES_AT] = self.expires_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {key: value for key, value in values.items() if value is not None}

    def pairs(self) -> list[dict[str, str]]:
        """Return `[{"Key": ..., "Value": ...}]`, as EC2, IAM, FSx and SageMaker take tags."""
        return [{"Key": key, "Value": value} for key, value in self.mapping().items()]

    def specifications(self, *resource_types: str) -> list[dict[str, Any]]:
        """Return EC2's TagSpecifications, for tags that exist from the moment of creation."""
        return [{"ResourceType": kind, "Tags": self.pairs()} for kind in resource_types]

    def for_group(self, name: str) -> list[dict[str, Any]]:
        """Return the tags of an Auto Scaling group, which passes them on to its instances."""
        group = {"ResourceId": name, "ResourceType": "auto-scaling-group", "PropagateAtLaunch": True}
        return [{**group, **pair} for pair in self.pairs()]


def read_tags(raw_tags: Mapping[str, str] | Iterable[Mapping[str, Any]] | None) -> Tags | None:
    """Read the tags of a resource in any service's form. None: it is not ours."""
    if not raw_tags:
        return None
    if isinstance(raw_tags, Mapping):
        values = dict(raw_tags)
    else:
        values = {tag.get("Key", tag.get("key", "")): tag.get("Value", tag.get("value", "")) for tag in raw_tags}
    if not values.get(PROJECT):
        return None
    expires_at = _time(values.get(EXPIRES_AT))
    return Tags(values[PROJECT], values.get(OWNER) or "unknown", values.get(RUN) or None, expires_at, checked=False)


def project_filter(project: str | None = None) -> dict[str, Any]:
    """Return the EC2 and Auto Scaling filter for resources of a project, or of any project."""
    if project is None:
        return {"Name": "tag-key", "Values": [PROJECT]}
    return {"Name": f"tag:{PROJECT}", "Values": [project]}


def _time(text: str | None) -> datetime | None:
    """Read a time; None for one that someone has edited into something else: `gc` must not fail on it."""
    try:
        time = datetime.fromisoformat(text) if text else None
        return time and (time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC))
    except (ValueError, OverflowError):
        return None
