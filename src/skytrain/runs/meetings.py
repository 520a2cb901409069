"""What hosts that meet for a run keep in its folder, and what a run's processes read of it.

    runs/<run>/meeting/ready/<shape>/<host>.json       heartbeat of a host that may be invited or takes part
    runs/<run>/meeting/away/<shape>/<host>.json        heartbeat of a host that waits before its next try, or saves and leaves
    runs/<run>/meeting/left/<shape>/<host>.json        the last record of a host that has left
    runs/<run>/meeting/boot/<machine>.json             cost of a rented machine whose agent has not started yet
    runs/<run>/meeting/generations/00001.json          members, node 0's address and port, rendezvous id; created once
    runs/<run>/meeting/generations/00001.ended.json    who ended it and why; created once
    runs/<run>/meeting/generations/00001.over.json     the run itself is over, with its exit code; created once
    runs/<run>/job-logs/00001.log                      output of a job that keeps no log of its own (prepare), by generation

<shape> is nodes x processes: hosts of another shape form another mesh and are not invited. A heartbeat has the host's
cost so far, so that the meter counts hosts that wait. All decisions use names and times of one listing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from ..config import EXIT_CODES, SUPERSEDED, SkytrainError
from ..storage import NotFound, Stat, Store
from .reading import DamagedRecord, read_object

Presence = Literal["ready", "away", "left"]
_GENERATION = re.compile(r"(?P<number>\d+)\.(?P<end>(ended|over)\.)?json")


class GenerationOver(SkytrainError):
    """The generation of this process has ended, so its job must not claim an attempt."""

    exit_code = EXIT_CODES[SUPERSEDED]


@dataclass(frozen=True)
class HostRecord:
    """The heartbeat object of one host."""

    presence: Presence
    shape: str
    host: str
    stat: Stat


@dataclass(frozen=True)
class MeetingObjects:
    """One listing of the folder."""

    hosts: tuple[HostRecord, ...]
    newest: int  # the number of the newest generation; 0 without one
    ended: bool
    over: bool
    boots: tuple[HostRecord, ...] = ()  # written by boot scripts; only their cost counts


def meeting_folder(run: str) -> str:
    return f"runs/{run}/meeting/"


def host_key(run: str, presence: Presence, shape: str, host: str) -> str:
    return f"{meeting_folder(run)}{presence}/{shape}/{host}.json"


def generation_key(run: str, number: int, kind: str = "") -> str:
    return f"{meeting_folder(run)}generations/{number:05d}{kind and '.'}{kind}.json"


def job_log_key(run: str, name: str = "") -> str:
    """The output of a job that keeps no log of its own, by generation; without a name, their folder."""
    return f"runs/{run}/job-logs/{name}{name and '.log'}"


def list_meeting(store: Store, run: str) -> MeetingObjects:
    """One request for up to a thousand objects."""
    return _parse(store.list(meeting_folder(run)), meeting_folder(run))


def _parse(stats: Iterable[Stat], folder: str) -> MeetingObjects:
    hosts = []
    boots = []
    ends = dict[int, set[str]]()
    for stat in stats:
        match stat.key.removeprefix(folder).split("/"):
            case ["generations", name] if found := _GENERATION.fullmatch(name):
                ends.setdefault(int(found["number"]), set()).add(found["end"] or "")
            case [("ready" | "away" | "left") as presence, shape, name]:
                hosts.append(HostRecord(presence, shape, name.removesuffix(".json"), stat))
            case ["boot", name]:
                boots.append(HostRecord("away", "boot", name.removesuffix(".json"), stat))
    newest = max((number for number, kinds in ends.items() if "" in kinds), default=0)
    kinds = ends.get(newest, set())
    return MeetingObjects(
        hosts=tuple(hosts), newest=newest, ended="ended." in kinds, over="over." in kinds, boots=tuple(boots)
    )


def check_generation(store: Store, run: str, number: int) -> None:
    """Raise GenerationOver unless the generation is the newest and has not ended."""
    found = list_meeting(store, run)
    if found.newest > number or found.ended or found.over:
        raise GenerationOver(
            f"run {run!r}: generation {number} has ended, so its job stops; generation {found.newest} is the newest\n"
            "  the node agent joins the next one"
        )


@dataclass(frozen=True)
class GenerationRecord:
    """The newest generation as its objects describe it. With an exit code, the run itself is over."""

    number: int
    members: tuple[str, ...]
    end_reason: str | None = None
    exit_code: int | None = None
    launch: str | None = None  # whose agents ended the run


def read_generation(store: Store, run: str, found: MeetingObjects) -> GenerationRecord | None:
    """Return the newest generation of a listing; None before the first."""
    if not found.newest:
        return None
    key = generation_key(run, found.newest)
    try:
        members = tuple(str(host) for host in read_object(store, key)["members"])
        if not found.ended and not found.over:
            return GenerationRecord(number=found.newest, members=members)
        key = generation_key(run, found.newest, "over" if found.over else "ended")
        end = read_object(store, key)
        return GenerationRecord(
            number=found.newest,
            members=members,
            end_reason=str(end["reason"]),
            exit_code=end["exit_code"],
            launch=end.get("launch"),
        )
    except (KeyError, TypeError) as error:
        raise DamagedRecord(store, key, error) from None


class HostHeartbeats:
    """The heartbeats of a run's hosts; reads only those that have changed since the last reading."""

    def __init__(self, store: Store, run: str) -> None:
        self._store = store
        self._run = run
        self._known: dict[str, tuple[str, dict[str, Any]]] = {}  # key -> etag, record

    def read(self, hosts: Iterable[HostRecord]) -> list[tuple[HostRecord, dict[str, Any]]]:
        found = []
        for each in hosts:
            known = self._known.get(each.stat.key)
            if known is None or known[0] != each.stat.etag:
                try:
                    known = (each.stat.etag, read_object(self._store, each.stat.key))
                except NotFound:  # it has moved since: the next reading has it
                    continue
            found.append((each, known))
        self._known = {each.stat.key: known for each, known in found}
        return [(each, record) for each, (_, record) in found]


class HostSpends:
    """The cost that each host recorded for itself in its heartbeats.

    The form is that of the attempts' spend streams. `without`: hosts that somebody else counts.
    """

    def __init__(self, store: Store, run: str, without: Collection[str] = ()) -> None:
        self._store = store
        self._run = run
        self._without = frozenset(without)
        self._heartbeats = HostHeartbeats(store, run)

    def read(self) -> list[dict[str, Any]]:
        found = list_meeting(self._store, self._run)
        hosts = [each for each in found.hosts if each.host not in self._without]
        return [self._spend(each, record) for each, record in self._heartbeats.read([*hosts, *found.boots])]

    def _spend(self, host: HostRecord, record: dict[str, Any]) -> dict[str, Any]:
        spend = record.get("spend")
        if not isinstance(spend, dict):
            raise DamagedRecord(self._store, host.stat.key, TypeError("it has no spend"))
        return spend
