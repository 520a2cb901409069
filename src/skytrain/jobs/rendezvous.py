"""The rendezvous of a run's hosts: generations, as objects in the store.

    runs/<run>/meeting/{ready,away,left,boot}/...      heartbeats of hosts (`runs/heartbeats.py`)
    runs/<run>/meeting/generations/00001.json          members, node 0's address and port, rendezvous id; created once
    runs/<run>/meeting/generations/00001.ended.json    who ended it and why; created once
    runs/<run>/meeting/generations/00001.over.json     the run itself is over, with its exit code; created once

<shape> of a heartbeat is nodes x processes: hosts of another shape form another mesh and are not invited. All
decisions use names and times of one listing.
"""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..config import EXIT_CODES, SUPERSEDED, SkytrainError
from ..runs import BOOT_SHAPE, HostRecord, Presence, host_key, host_record, meeting_folder
from ..storage import NotFound, Store, read_object, read_whole, record_of
from .generations import EndGeneration, GenerationEnd, JobGeneration, MeetingView, Propose, machine_of

_GENERATION = re.compile(r"(?P<number>\d+)\.(?P<end>(ended|over)\.)?json")
PRESENT_SECONDS = 60.0  # a host without a heartbeat for this long is considered gone


class GenerationOver(SkytrainError):
    """The generation of this process has ended, so its job must not claim an attempt."""

    exit_code = EXIT_CODES[SUPERSEDED]


@dataclass(frozen=True)
class MeetingObjects:
    """One listing of the folder."""

    hosts: tuple[HostRecord, ...]
    newest: int  # the number of the newest generation; 0 without one
    ended: bool
    over: bool
    last_over: int = 0  # the newest generation that is over, which may be an earlier one; 0 without one
    boots: tuple[HostRecord, ...] = ()  # written by boot scripts; only their cost counts


def generation_key(run: str, number: int, kind: str = "") -> str:
    return f"{meeting_folder(run)}generations/{number:05d}{kind and '.'}{kind}.json"


def list_meeting(store: Store, run: str) -> MeetingObjects:
    """Return what the folder has, by one request for up to a thousand objects."""
    folder = meeting_folder(run)
    hosts: list[HostRecord] = []
    ends: dict[int, set[str]] = {}
    for stat in store.list(folder):
        host = host_record(stat, folder)
        if host is not None:
            hosts.append(host)
        elif match := _GENERATION.fullmatch(stat.key.removeprefix(f"{folder}generations/")):
            ends.setdefault(int(match["number"]), set()).add(match["end"] or "")
    newest = max((number for number, kinds in ends.items() if "" in kinds), default=0)
    kinds = ends.get(newest, set())
    return MeetingObjects(
        hosts=tuple(host for host in hosts if host.shape != BOOT_SHAPE),
        newest=newest,
        ended="ended." in kinds,
        over="over." in kinds,
        last_over=max((number for number, found in ends.items() if "over." in found), default=0),
        boots=tuple(host for host in hosts if host.shape == BOOT_SHAPE),
    )


def check_generation(store: Store, run: str, number: int) -> None:
    """Raise GenerationOver unless the generation is the newest and has not ended."""
    meeting = list_meeting(store, run)
    if meeting.newest > number or meeting.ended or meeting.over:
        raise GenerationOver(
            f"run {run!r}: generation {number} has ended, so its job stops; generation {meeting.newest} is the newest\n"
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


def read_generation(store: Store, run: str, meeting: MeetingObjects) -> GenerationRecord | None:
    """Return the newest generation of a listing; None before the first."""
    if not meeting.newest:
        return None
    key = generation_key(run, meeting.newest)
    generation = read_object(store, key)
    with record_of(store, key):
        members = tuple(str(host) for host in generation["members"])
    end = _final_end(store, run, meeting, generation.get("launch"))
    if end is None and not meeting.ended:
        return GenerationRecord(number=meeting.newest, members=members)
    key = generation_key(run, meeting.newest, "ended")
    end = end or read_object(store, key)
    with record_of(store, key):
        return GenerationRecord(
            number=meeting.newest,
            members=members,
            end_reason=str(end["reason"]),
            exit_code=None if end["exit_code"] is None else int(end["exit_code"]),
            launch=None if end.get("launch") is None else str(end["launch"]),
        )


def _final_end(store: Store, run: str, meeting: MeetingObjects, launch: str | None) -> dict[str, Any] | None:
    """Return the end of the run: of the newest generation, or of one before it in the same launch.

    A proposal may arrive after the end of the run. Its generation changes nothing.
    """
    if not meeting.last_over:
        return None
    end = read_object(store, generation_key(run, meeting.last_over, "over"))
    return end if meeting.over or (launch is not None and end.get("launch") == launch) else None


@dataclass(frozen=True)
class HostIdentity:
    """The identity of a node agent, constant for the life of its process."""

    run: str
    host: str  # MACHINE.TOKEN
    shape: str  # nodes x processes
    launch: str | None = None  # shared by the agents of one launch; None if started by hand

    @classmethod
    def create(cls, run: str, machine: str, shape: str, launch: str | None = None) -> HostIdentity:
        return cls(run, f"{machine}.{secrets.token_hex(4)}", shape, launch)


class MeetingStore:
    """The meeting's objects in the store. `view` makes one listing, and one read for each new generation or end."""

    def __init__(self, store: Store, identity: HostIdentity) -> None:
        self._store = store
        self._identity = identity
        self._presence: Presence | None = None
        self._generations: dict[int, JobGeneration] = {}
        self._ends: dict[tuple[int, str], tuple[GenerationEnd, str | None]] = {}
        self._history: int | None = None  # newest generation that was over when this agent started
        self.hosts = 0  # number of hosts that share the run's cost, as last listed

    def beat(self, presence: Presence, record: dict[str, Any]) -> None:
        """Write this host's heartbeat."""
        mine = self._identity
        self._store.write(host_key(mine.run, presence, mine.shape, mine.host), json.dumps(record).encode())
        if self._presence not in (None, presence):
            self._store.delete(host_key(mine.run, self._presence, mine.shape, mine.host))
        self._presence = presence

    def forget(self, hosts: frozenset[str]) -> None:
        """Move the heartbeats of earlier agents of this machine to those that left; their cost still counts."""
        mine = self._identity
        for each in list_meeting(self._store, mine.run).hosts:
            if each.host in hosts and each.presence != "left":
                record = read_whole(self._store, each.stat.key)
                self._store.write(host_key(mine.run, "left", each.shape, each.host), record)
                self._store.delete(each.stat.key)

    def earlier_agents(self) -> frozenset[str]:
        """Return the earlier agents of this machine. The holder of the machine's lock knows that they have ended."""
        hosts = list_meeting(self._store, self._identity.run).hosts
        machine = machine_of(self._identity.host)
        return frozenset(
            each.host for each in hosts if machine_of(each.host) == machine and each.host != self._identity.host
        )

    def view(self) -> MeetingView:
        """Return the meeting as the store shows it now."""
        meeting = list_meeting(self._store, self._identity.run)
        present = [each.stat.modified for each in meeting.hosts if each.presence != "left"]
        self.hosts = sum(max(present) - modified <= PRESENT_SECONDS for modified in present)
        ready = {
            each.host: each.stat.modified
            for each in meeting.hosts
            if each.presence == "ready" and each.shape == self._identity.shape
        }
        newest = self._read_generation(meeting.newest) if meeting.newest else None
        end = self._read_end(meeting, meeting.newest, "over" if meeting.over else "ended")
        if self._history is None:
            self._history = meeting.last_over
        if 0 < meeting.last_over < meeting.newest:
            # The end of the run is final: a proposal that arrived after it changes nothing.
            final = self._read_end(meeting, meeting.last_over, "over")
            end = final if final is not None and final.exit_code is not None else end
        return MeetingView(ready, newest, end)

    def propose(self, action: Propose, address: str, port: int) -> None:
        body = {
            "members": list(action.members),
            "address": address,
            "port": port,
            "rendezvous_id": f"{self._identity.run}-{action.number}-{secrets.token_hex(8)}",
            "launch": self._identity.launch,
        }
        self._store.create(generation_key(self._identity.run, action.number), json.dumps(body).encode())

    def end(self, action: EndGeneration) -> bool:
        """End the generation, and return whether this request did; False if it had ended before."""
        end = action.end
        kind = "ended" if action.end.exit_code is None else "over"
        if (action.number, kind) in self._ends:
            return False
        body = {**asdict(end), "launch": self._identity.launch}
        return self._store.create(generation_key(self._identity.run, action.number, kind), json.dumps(body).encode())

    def ended_so(self, reason: str, last: int) -> int:
        """Return how many generations up to `last` ended in a row with a reason that begins so."""
        count = 0
        while count < last:
            try:
                body = read_object(self._store, generation_key(self._identity.run, last - count, "ended"))
            except NotFound:
                break
            if not str(body.get("reason", "")).startswith(reason):
                break
            count += 1
        return count

    def _read_generation(self, number: int) -> JobGeneration:
        if number not in self._generations:
            key = generation_key(self._identity.run, number)
            body = read_object(self._store, key)
            with record_of(self._store, key):
                self._generations[number] = JobGeneration(
                    number=number,
                    members=tuple(body["members"]),
                    address=body["address"],
                    port=body["port"],
                    rendezvous_id=body["rendezvous_id"],
                )
        return self._generations[number]

    def _read_end(self, meeting: MeetingObjects, number: int, kind: str) -> GenerationEnd | None:
        if number == meeting.newest and not meeting.ended and not meeting.over:
            return None
        if (number, kind) not in self._ends:
            key = generation_key(self._identity.run, number, kind)
            body = read_object(self._store, key)
            with record_of(self._store, key):
                end = GenerationEnd(body["by"], body["reason"], body["exit_code"], body["saves"])
            self._ends[number, kind] = end, body.get("launch")
        end, launch = self._ends[number, kind]
        # The end of an earlier launch is history: repeating the command resumes the run.
        earlier = number <= self._history if self._history is not None else True
        if launch != self._identity.launch or (launch is None and earlier):
            return replace(end, exit_code=None)
        return end
