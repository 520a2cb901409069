"""A run as people watch it: nodes, generation, progress, dollars and kill time, from the store and from tags only."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from ..jobs import GenerationRecord, MeetingObjects, list_meeting, read_generation
from ..runs import (
    HostHeartbeats,
    HostRecord,
    HostSpends,
    LaunchRecord,
    RunStatus,
    current_offer,
    inputs_folder,
    launch_folder,
)
from ..storage import NotFound, Store, is_amount, maybe, read_object, record_of
from .account import AccountMachine
from .run_status import FINISHING, PREPARING, TUNING, find_status

SHAPE = re.compile(r"(\d{1,9})x\d{1,9}")  # nodes x processes
SILENT_SECONDS = 60.0  # without a heartbeat, of which a host writes one every 11 s


@dataclass(frozen=True)
class NodeView:
    """One machine that is rented for the run, or takes part in it."""

    machine: str
    state: str  # trains, waits, spare, stops, not ready, silent, boots
    rank: int | None = None  # its number in the generation
    seconds: float | None = None  # for which it has booted or been silent


@dataclass(frozen=True)
class LaunchView:
    """What the launch has rented: the offer that is tried now."""

    id: str
    machines: str
    nodes: int
    usd_per_hour: float  # of all machines of the offer
    offer: int  # from 1
    offers: int
    kill_at: str
    planned_usd: float | None
    budget_usd: float | None


@dataclass(frozen=True)
class RunView:
    """The state of a run at one moment."""

    at: str
    status: RunStatus
    nodes: tuple[NodeView, ...]
    wanted: int | None  # nodes of a generation
    left: int  # nodes that have left
    generation: GenerationRecord | None
    launch: LaunchView | None
    by_agents: bool  # node agents run it, which begin a new generation after an interruption
    trouble: str | None = None  # why its machines ended before they did any work

    @property
    def trains(self) -> bool:
        """Whether a generation is under way."""
        return self.generation is not None and self.generation.end_reason is None

    @property
    def state(self) -> str:
        """The state of the newest attempt; a generation whose job has not claimed one yet is starting.

        A job that prepares data claims none.
        """
        if self.generation is None or not self.trains or self.status.state in (PREPARING, TUNING, FINISHING):
            return self.status.state
        return self.status.state if self.status.generation == self.generation.number else "starting"


class RunWatch:
    """Looks at a run again and again. `machines` reads the run's instances by their tags; None: not in an account.

    With `launched`, agents of the launch run it, whatever happened before.
    """

    def __init__(
        self,
        store: Store,
        run: str,
        record: LaunchRecord | None = None,
        machines: Callable[[], Sequence[AccountMachine]] | None = None,
        *,
        launched: bool = False,
        trouble: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._trouble = trouble
        self._store = store
        self._run = run
        self._record = record
        self._launched = launched
        self._machines = machines or (lambda: ())
        self._heartbeats = HostHeartbeats(store, run)
        self._spends = HostSpends(store, run)
        self._heard: dict[str, tuple[str, float]] = {}  # host -> its last heartbeat, and when it was first seen here
        self._plan: tuple[str, dict[str, Any]] | None = None
        self._shown_usd = 0.0

    def look(self) -> RunView:
        """Return the state of the run now. Raises StoreError if the store does not answer, and CloudError if AWS does not."""
        status = find_status(self._store, self._run)
        meeting = list_meeting(self._store, self._run)
        generation = read_generation(self._store, self._run, meeting)
        launch = self._launch()
        if generation is not None and launch is not None and generation.launch not in (None, launch.id):
            generation = replace(generation, exit_code=None)  # the end of an earlier launch is history
        booting = list(self._booting(meeting))
        nodes = [*self._hosts(meeting, generation), *booting]
        nodes.sort(key=lambda node: (node.rank is None, node.rank or 0, node.machine))
        agents = bool(nodes) or status.generation is not None or (launch is not None and not status.attempts)
        shapes = {each.shape for each in meeting.hosts if each.presence != "left"}
        sizes = [int(found[1]) for each in shapes if (found := SHAPE.fullmatch(each))]
        wanted = launch.nodes if launch else max(sizes, default=None)
        return RunView(
            at=datetime.now(UTC).isoformat(timespec="seconds"),
            status=self._with_launch(status, launch, booting),
            nodes=tuple(nodes),
            wanted=wanted,
            left=sum(each.presence == "left" for each in meeting.hosts),
            generation=generation,
            launch=launch,
            by_agents=self._launched or agents,
            trouble=None if any(node.state in ("trains", "joins") for node in nodes) else self._trouble(),
        )

    def _launch(self) -> LaunchView | None:
        record = self._record
        if record is None:
            return None
        number, _ = current_offer(self._store, record)
        group = record.groups[number]
        key, plan = self._read_plan(record)
        with record_of(self._store, key):
            offers = plan.get("offers") or []
            planned = offers[number]["cost"]["usd"] if number < len(offers) else None
            if wrong := [usd for usd in (planned, plan.get("budget_usd")) if not maybe(is_amount)(usd)]:
                raise ValueError(f"{wrong[0]!r:.60} is not an amount of dollars")
        return LaunchView(
            id=record.id,
            machines=group.text,
            nodes=group.nodes,
            usd_per_hour=group.nodes * group.usd_per_hour,
            offer=number + 1,
            offers=len(record.groups),
            kill_at=group.kill_at,
            planned_usd=planned,
            budget_usd=plan.get("budget_usd"),
        )

    def _read_plan(self, record: LaunchRecord) -> tuple[str, dict[str, Any]]:
        """Return the plan and its key. Launches of earlier versions have it where their machines may write."""
        for folder in (inputs_folder(record.run, record.id), launch_folder(record)) if self._plan is None else ():
            key = f"{folder}/plan.json"
            with contextlib.suppress(NotFound):
                self._plan = key, read_object(self._store, key)
                break
        self._plan = self._plan or ("", {})
        return self._plan

    def _hosts(self, meeting: MeetingObjects, generation: GenerationRecord | None) -> Iterator[NodeView]:
        present = [each for each in meeting.hosts if each.presence != "left"]
        newest = max((each.stat.modified for each in present), default=0.0)
        for host, record in self._heartbeats.read(present):
            silent = max(newest - host.stat.modified, self._seconds_unheard(host))
            state, rank = host_state(host, record, generation)
            machine = host.host.rpartition(".")[0]
            if silent > SILENT_SECONDS:
                yield NodeView(machine, "silent", rank, silent)
            else:
                yield NodeView(machine, state, rank)

    def _seconds_unheard(self, host: HostRecord) -> float:
        """Return for how long its heartbeat has not changed while this process looked: no two clocks are compared."""
        now = time.monotonic()
        known = self._heard.get(host.host)
        if known is None or known[0] != host.stat.etag:
            self._heard[host.host] = known = (host.stat.etag, now)
        return now - known[1]

    def _booting(self, meeting: MeetingObjects) -> Iterator[NodeView]:
        """Yield the machines that are rented and have not registered yet."""
        known = {each.host.rpartition(".")[0] for each in meeting.hosts}
        for each in self._machines():
            if each.instance not in known:
                yield NodeView(each.instance, "boots", seconds=each.age_seconds)

    def _with_launch(self, status: RunStatus, launch: LaunchView | None, booting: Sequence[NodeView]) -> RunStatus:
        """Add what the store does not have yet: machines cost money before they record it, and the plan has a budget."""
        if launch is None:
            return status
        budget = status.budget_usd if status.budget_usd is not None else launch.budget_usd
        counted = {key.split()[0] for spend in self._spends.read() for key in spend.get("machines") or {}}
        seconds = sum(node.seconds or 0.0 for node in booting if node.machine not in counted)
        if status.metered_usd is not None and not seconds:  # all machines have ended, and EC2's own count is known
            return replace(status, budget_usd=budget)
        usd = (status.metered_usd or status.usd or 0.0) + seconds * launch.usd_per_hour / launch.nodes / 3600
        # What was shown does not fall when a machine ends before it records its cost.
        self._shown_usd = max(self._shown_usd, usd)
        shown = self._shown_usd if self._shown_usd else status.usd
        return replace(status, usd=shown, metered_usd=None, budget_usd=budget)


def host_state(host: HostRecord, record: dict[str, Any], generation: GenerationRecord | None) -> tuple[str, int | None]:
    """Return what a host does, in one word, and its number in the generation that is under way."""
    under_way = generation is not None and generation.end_reason is None
    member = generation is not None and under_way and host.host in generation.members
    rank = generation.members.index(host.host) if generation is not None and member else None
    phase = record.get("phase")
    if host.presence == "away":
        return "not ready", rank
    if phase == "running":
        return ("trains" if member else "stops"), rank
    if phase == "stopping":
        return "stops", rank
    return ("joins" if member else "spare" if under_way else "waits"), rank
