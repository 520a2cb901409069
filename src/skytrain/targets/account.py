"""The machines of an AWS account that carry our tags or are named by a launch: what runs, where, since when, and
what it costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from ..aws import KINDS, AwsSession, CloudResource, Tags, find_groups, scan_account
from ..config import Config, SkytrainError, error_text
from ..runs import (
    DEFAULT_TARGET,
    LaunchRecord,
    following_launches,
    launch_starts,
    launches_of,
    preceding_launches,
)
from ..storage import Store, open_store
from .jobs import group_name, machine_run

UNKNOWN = "unknown"  # state of a group that AWS did not describe when it was asked


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
    resources = [resource for resource in scan.resources if run in (None, resource.tags.run)]
    machines = [_machine(resource, known, now) for resource in resources]
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
    """Return the Auto Scaling groups, instances, API keys and roles of a run; what could not be asked is told.

    They are those that carry its tag, and those of the groups that its launches name: people can remove a tag. A group
    that AWS does not describe now is among them, in the state `UNKNOWN`. Machines of its smoke run belong to it.
    """
    kinds = [KINDS[name] for name in ("Auto Scaling group", "instance", "API key", "machine role")]
    scan = scan_account(session, kinds=kinds, project=config.cloud.project)
    for problem in scan.problems:
        tell(f"unknown: {problem.kind} in {problem.region}: {problem.problem}")
    tagged = [resource for resource in scan.resources if resource.tags.run == run]
    try:
        launches = related_launches(open_store(config.store), run)
    except SkytrainError as error:
        tell(f"unknown: the groups that its launches name: {error_text(error)}")
        # The store does not say either whether it is a sweep, whose machines have names of their own.
        return [each for each in scan.resources if is_named(each.tags.run, run)]
    owners = owners_of_groups(launches, config.cloud.project or "")
    for each in tagged:  # the group of an instance, which no record names, would replace it
        if (group := each.facts.get("group")) is not None:
            owners.setdefault(each.region, {}).setdefault(group, each.tags)
    known = {(each.kind, each.id) for each in tagged}
    unasked: Owners = {}
    found = named_groups(session, owners, tell, unasked)
    # A group of which only the name is known can be set to zero all the same.
    found += [
        CloudResource(kind="Auto Scaling group", id=name, region=region, tags=tags, state=UNKNOWN)
        for region, groups in unasked.items()
        for name, tags in groups.items()
    ]
    return [*tagged, *(each for each in found if (each.kind, each.id) not in known)]


def is_named(run: str | None, name: str) -> bool:
    """Return whether a machine's run is that of this name, or a machine of the sweep of this name."""
    return run is not None and (run == name or run.rpartition(machine_run("", 0)[:-1])[0] == name)


def related_launches(store: Store, run: str) -> list[LaunchRecord]:
    """Return the launches of a run, the smoke runs and stages that they wait for, and the launches that wait for them."""
    launches = launches_of(store, run)
    for record in list(launches):
        launches += preceding_launches(store, record)
        # One that was started is a run of its own; one that was withdrawn in the same moment may have machines.
        following = following_launches(store, record)
        launches += [each for each in following if each.failed or launch_starts(store, each) is None]
    return launches


Owners = dict[str, dict[str, Tags]]  # region -> name of a group -> the tags that it should have


def owners_of_groups(launches: Iterable[LaunchRecord], project: str) -> Owners:
    """Return the groups that launches on EC2 name, with the tags that they were created with.

    Machines can write the record of their run: a name that the launch cannot have made is that of somebody else's group.
    """
    owners: Owners = {}
    for record in launches:
        own = {group_name(project, record.run, record.id, number) for number in range(len(record.groups))}
        for group in record.groups if record.target == DEFAULT_TARGET else []:
            if group.name not in own:
                continue
            ends = datetime.fromisoformat(group.kill_at) if group.kill_at else None
            tags = Tags(project, record.launched_by, record.run, ends, checked=False)
            owners.setdefault(record.region, {})[group.name] = tags
    return owners


def named_groups(
    session: AwsSession, owners: Owners, tell: Callable[[str], None], unasked: Owners | None = None
) -> list[CloudResource]:
    """Return the groups of these names that exist, and the instances in them, whatever their tags say.

    Groups of a region that does not answer are told, and added to `unasked`.
    """
    found: list[CloudResource] = []
    for region, groups in owners.items():
        try:
            found += find_groups(session, region, groups)
        except Exception as error:  # whatever it is, other regions are asked
            tell(f"unknown: the groups of its launches in {region}: {error_text(error)}")
            if unasked is not None:
                unasked[region] = groups
    return found
