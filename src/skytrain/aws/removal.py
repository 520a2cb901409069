"""The choice of resources that `gc` deletes, and their deletion in the order of their dependencies."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from ..config import error_text, format_seconds
from ..storage import Patience, Retry
from .calls import Call
from .errors import CloudError
from .remedies import may_pass
from .resources import KINDS, CloudResource
from .session import AwsSession

# Errors while a dependent resource is still ending: an instance takes a minute to end, a node group ten.
BUSY = re.compile(
    r"DependencyViolation|InUse|IncorrectState|ScalingActivityInProgress|ConflictException|currently in use"
    r"|must be in one of|in one of the following states"
)
GONE = re.compile(r"NotFound|NoSuch|not found|[Cc]ould not find|does not exist")
WAITING = Retry(seconds=900.0, first_wait_seconds=1.0, longest_wait_seconds=15.0)
ANSWERING = Retry(seconds=60.0, first_wait_seconds=1.0, longest_wait_seconds=10.0)  # for requests without an answer


@dataclass(frozen=True)
class GcSelection:
    """The selection of resources to delete: by default what expired and what belongs to runs that have ended."""

    run: str | None = None  # everything of this run, even while it is active
    expired: bool = False  # only what expired


@dataclass(frozen=True)
class Verdict:
    """The decision whether a resource is deleted, and why."""

    resource: CloudResource
    delete: bool
    reason: str


@dataclass(frozen=True)
class FailedDeletion:
    """A resource that could not be deleted."""

    resource: CloudResource
    problem: str


def judge(
    resource: CloudResource, active: Mapping[str, bool], selection: GcSelection, now: datetime | None = None
) -> Verdict:
    """Decide about one resource. `active` says of each run that the store knows whether it is active."""
    tags, now = resource.tags, now or datetime.now(UTC)
    if not KINDS[resource.kind].deletes:
        return Verdict(resource, False, "gc does not delete resources of this kind")
    left = None if tags.expires_at is None else (tags.expires_at - now).total_seconds()
    if selection.run is not None:
        chosen = tags.run == selection.run
        return Verdict(resource, chosen, "its run was named" if chosen else "of another run")
    if left is not None and left <= 0:
        if active.get(tags.run or ""):
            return Verdict(resource, False, "its run is active, whatever its tag says about its end")
        return Verdict(resource, True, f"expired {format_seconds(round(-left))} ago")
    if selection.expired:
        return Verdict(resource, False, "has not expired")
    if KINDS[resource.kind].leftover:
        return Verdict(resource, True, "left over")
    if tags.run is None:
        return Verdict(resource, False, "part of the project: `terraform destroy` removes it")
    if tags.run not in active:
        return Verdict(resource, False, "its run is not in this store")
    if active[tags.run]:
        return Verdict(resource, False, "its run is active")
    return Verdict(resource, True, "its run has ended")


def deletion_calls(resources: Iterable[CloudResource]) -> list[tuple[CloudResource, Call]]:
    """Return the requests in the order in which they are sent."""
    ordered = sorted(resources, key=lambda each: KINDS[each.kind].order)
    return [(resource, call) for resource in ordered for call in KINDS[resource.kind].delete(resource)]


def delete_resources(
    session: AwsSession,
    resources: Iterable[CloudResource],
    tell: Callable[[CloudResource], None] = lambda resource: None,
    retry: Retry = WAITING,
) -> list[FailedDeletion]:
    """Delete them; one that fails does not stop the others. What is gone already counts as deleted."""
    failed: dict[str, FailedDeletion] = {}
    told: set[str] = set()
    for resource, call in deletion_calls(resources):
        key = f"{resource.region} {resource.kind} {resource.id}"
        if key in failed:
            continue
        if key not in told:
            told.add(key)
            tell(resource)
        try:
            remove(session, call, resource.region, retry)
        except Exception as error:  # whatever it is, the next one is tried
            failed[key] = FailedDeletion(resource, error_text(error))
    return list(failed.values())


def remove_all(
    session: AwsSession,
    calls: Iterable[tuple[str, Call]],
    tell: Callable[[str], None],
    retry: Retry = WAITING,
    again: Retry = ANSWERING,
) -> list[tuple[str, Call]]:
    """Perform removals, each with its region, and return those that failed. Nothing that fails stops the others.

    Those that AWS did not answer, or answered with its limit on requests, are repeated for a while: a connection that is
    lost in one second is often back in the next, and what is not removed costs money.
    """
    patience = Patience(again)
    waiting, failed = list(calls), list[tuple[str, Call]]()
    told: set[str] = set()
    while waiting:
        waits: list[tuple[str, Call]] = []
        for region, call in waiting:
            try:
                remove(session, call, region, retry)
            except Exception as error:  # whatever it is, the next one is tried
                text = f"{call.operation}: {error_text(error)}"
                (waits if _may_pass(error) else failed).append((region, call))
                if text not in told:
                    told.add(text)
                    tell(text)
        wait = patience.failed() if waits else None
        if wait is None:
            return [*failed, *waits]
        time.sleep(wait)
        waiting = waits
    return failed


def _may_pass(error: Exception) -> bool:
    """Return whether AWS gave no answer, limits requests or fails, so that the same request may succeed in a moment."""
    return not isinstance(error, CloudError) or may_pass(error.code)


def remove(session: AwsSession, call: Call, region: str, retry: Retry = WAITING) -> None:
    """Perform a removal, waiting while something still uses the resource. What is gone already counts as removed."""
    patience = Patience(retry)
    while True:
        try:
            session.perform(call, region)
            return
        except CloudError as error:
            said = f"{error.code} {error.problem}"
            if GONE.search(said):
                return
            wait = patience.failed() if BUSY.search(said) else None
            if wait is None:
                raise
            time.sleep(wait)
