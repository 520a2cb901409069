"""The search for everything with Skytrain's tags in every enabled region, service by service: the tagging API misses
several.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ..config import error_text
from .calls import Call
from .errors import CloudError
from .resources import KINDS, CloudResource, ResourceKind
from .session import AwsSession

CONCURRENT = 16


@dataclass(frozen=True)
class ScanProblem:
    """A request that failed, so that what exists there remains unknown."""

    kind: str
    region: str
    problem: str


@dataclass(frozen=True)
class AccountScan:
    """The resources found, in the order in which they would be deleted, and the requests that failed."""

    regions: tuple[str, ...]
    resources: tuple[CloudResource, ...]
    problems: tuple[ScanProblem, ...]

    @property
    def usd_per_hour(self) -> float:
        return sum(resource.usd_per_hour or 0.0 for resource in self.resources)


def enabled_regions(session: AwsSession) -> tuple[list[str], list[ScanProblem]]:
    """Return the regions that the account may use; the session's own, with the problem, if the request is denied."""
    try:
        regions = session.items(Call("ec2", "DescribeRegions"), "Regions")
        return sorted(region["RegionName"] for region in regions), []
    except CloudError as error:
        return [session.region], [ScanProblem("region", "all", f"only {session.region} is searched: {error}")]


def scan_account(
    session: AwsSession,
    regions: Sequence[str] | None = None,
    kinds: Iterable[ResourceKind] | None = None,
    project: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> AccountScan:
    """Find what carries our tags. A service that is denied or unavailable in a region is reported and not fatal."""
    session.identity  # noqa: B018 - without credentials this ends here, not with a problem for each question
    enabled, problems = enabled_regions(session)
    if regions and not problems and (wrong := sorted({*regions} - {*enabled})):
        raise CloudError(
            f"{wrong[0]} is not a region that this account has enabled", fix=f"one of {', '.join(enabled)}"
        )
    scanned = list(regions or enabled)
    questions = [(kind, region) for region in scanned for kind in kinds or KINDS.values()]
    done, lock = 0, threading.Lock()

    def ask(question: tuple[ResourceKind, str]) -> list[CloudResource]:
        nonlocal done
        kind, region = question
        answer: list[CloudResource] = []  # resources found before a problem count too
        try:
            if session.offers(kind.service, region):
                answer.extend(kind.find(session, region))
        except Exception as error:  # whatever it is, the other questions are asked
            problems.append(ScanProblem(kind.name, region, error_text(error).partition("\n")[0]))
        finally:
            with lock:
                done += 1
                progress(done, len(questions))
        return answer

    with ThreadPoolExecutor(CONCURRENT) as pool:
        answers = list(pool.map(ask, questions))
    resources = [each for answer in answers for each in answer if project in (None, each.tags.project)]
    resources.sort(key=lambda each: (KINDS[each.kind].order, each.kind, each.region, each.id))
    return AccountScan(tuple(scanned), tuple(resources), tuple(problems))
