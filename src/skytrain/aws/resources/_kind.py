"""What `gc` knows of a kind of resource: how to find ours, what it costs, and the calls that delete one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ..calls import Call
from ..session import AwsSession
from ..tags import Tags, read_tags

HOURS_PER_MONTH = 730.0


@dataclass(frozen=True)
class CloudResource:
    """One resource that carries our tags."""

    kind: str
    id: str
    region: str
    tags: Tags
    state: str = ""
    created_at: datetime | None = None
    usd_per_hour: float | None = None  # None: unknown
    facts: Mapping[str, Any] = field(default_factory=dict)  # what the kind needs to describe or delete it

    @property
    def usd_per_month(self) -> float | None:
        return None if self.usd_per_hour is None else self.usd_per_hour * HOURS_PER_MONTH


Find = Callable[[AwsSession, str], Iterator[CloudResource]]
Delete = Callable[[CloudResource], list[Call]]


@dataclass(frozen=True)
class ResourceKind:
    """Kinds are deleted in ascending `order`: what holds others before what it holds."""

    name: str
    service: str  # skipped in regions where the service does not exist
    order: int
    find: Find
    delete: Delete
    reads: tuple[str, ...]  # IAM actions of `find`
    deletes: tuple[str, ...]  # IAM actions of `delete`
    leftover: bool = False  # whatever is found is garbage, whoever's it is


def ours(tags: Mapping[str, str] | Iterable[Mapping[str, Any]] | None) -> Tags | None:
    """The tags of a resource if it is ours. AWS's own filters are not relied upon alone."""
    return read_tags(tags)


def per_month(usd: float) -> float:
    """Dollars per hour of something that is priced by the month."""
    return usd / HOURS_PER_MONTH
