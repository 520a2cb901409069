"""The machines of an AWS account that carry our tags: what runs, where, since when, and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from ..aws import KINDS, AwsSession, CloudResource, scan_account
from ..config import Config


@dataclass(frozen=True)
class AccountMachine:
    """One rented machine."""

    run: str | None
    instance: str
    type: str
    market: str
    region: str
    zone: str | None
    owner: str
    state: str
    launched_at: str | None
    age_seconds: float
    usd_per_hour: float | None  # None: the catalogue has no price
    usd: float | None  # since launch
    ends_at: str | None  # the kill time
    in_store: bool  # whether this store has its run


@dataclass(frozen=True)
class AccountState:
    """What runs in the account, and what could not be asked."""

    machines: tuple[AccountMachine, ...]
    problems: tuple[str, ...]

    @property
    def usd_per_hour(self) -> float:
        return sum(machine.usd_per_hour or 0.0 for machine in self.machines)


def account_state(
    config: Config,
    session: AwsSession,
    runs: Iterable[str],
    run: str | None = None,
    regions: Sequence[str] | None = None,
) -> AccountState:
    """Return the project's machines, or those of one run, in `regions` or all that are enabled; `runs` are the store's."""
    scan = scan_account(session, regions, [KINDS["instance"]], config.cloud.project)
    known = set(runs)
    now = datetime.now(UTC)
    found = [resource for resource in scan.resources if run in (None, resource.tags.run)]
    machines = [_machine(resource, known, now) for resource in found]
    machines.sort(key=lambda each: (each.run or "", each.launched_at or "", each.instance))
    return AccountState(tuple(machines), tuple(f"{each.region}: {each.problem}" for each in scan.problems))


def _machine(resource: CloudResource, known: set[str], now: datetime) -> AccountMachine:
    tags = resource.tags
    facts = resource.facts
    launched = resource.created_at
    age = max(0.0, (now - launched).total_seconds()) if launched else 0.0
    return AccountMachine(
        run=tags.run,
        instance=resource.id,
        type=facts["type"],
        market=facts["market"],
        region=resource.region,
        zone=facts["zone"],
        owner=tags.owner,
        state=resource.state,
        launched_at=launched.isoformat(timespec="seconds") if launched else None,
        age_seconds=age,
        usd_per_hour=resource.usd_per_hour,
        usd=None if resource.usd_per_hour is None else resource.usd_per_hour * age / 3600,
        ends_at=tags.expires_at.isoformat(timespec="seconds") if tags.expires_at else None,
        in_store=tags.run in known,
    )


def machines_of(config: Config, session: AwsSession, run: str, tell: Callable[[str], None]) -> list[CloudResource]:
    """Return the Auto Scaling groups, instances and API keys that carry the run's tag; what could not be asked is told."""
    kinds = [KINDS["Auto Scaling group"], KINDS["instance"], KINDS["API key"]]
    scan = scan_account(session, kinds=kinds, project=config.cloud.project)
    for problem in scan.problems:
        tell(f"unknown: {problem.kind} in {problem.region}: {problem.problem}")
    return [resource for resource in scan.resources if resource.tags.run == run]
