"""How the hosts of a run meet: the protocol as a pure state machine, without clock, store or network.

Hosts that are ready write a heartbeat object to the store. When enough of them are, one creates the next *generation*:
an object that names its members, with its creator as node 0. The object is created conditionally, so each number
exists once. All hosts, its creator included, act on the object that they read, never on the answer to a request.
Members run one job together. Whoever sees a reason ends the generation, by a second object that is also created
conditionally; then the hosts meet again, under the next number.

A member counts as lost by the store's clock only: its heartbeat did not change while this host's own heartbeat, stamped
by the same clock, did. A gap in this host's own heartbeats counts as a single one: during an outage of the store nobody
can write, and nobody is lost.

`jobs/node_agent.py` performs the actions. `tests/jobs/meeting_model.py` explores the protocol exhaustively.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Phase = Literal["meeting", "running", "stopping", "gone"]
LAST_TURN = 3  # number of looks after which any host may propose, whatever its position


@dataclass(frozen=True)
class MeetingRules:
    """The number of hosts that a generation needs, and the times of the protocol, all by the store's clock."""

    wanted: int
    # Time between two heartbeats of a host. Each counts the host's cost until two seconds after the next is due, so a
    # lost host is never charged for 15 s too long.
    beat_seconds: float = 11.0
    # A host is invited only if its heartbeat is at most this much older than this host's: a heartbeat that is a little late
    # counts, and a host that was lost half a minute ago, before its job's failure was noticed, does not.
    fresh_seconds: float = 20.0
    silence_seconds: float = 60.0  # time without a heartbeat after which a member is lost


@dataclass(frozen=True)
class JobGeneration:
    """The members of one job; the first is node 0, and torchrun's rendezvous is at its address."""

    number: int
    members: tuple[str, ...]
    address: str
    port: int
    rendezvous_id: str


@dataclass(frozen=True)
class GenerationEnd:
    """The reason why a generation ended. With an exit code the run itself is over, and every host leaves.

    A generation may end twice, first without and then with an exit code; the first of each kind counts.
    """

    by: str  # host
    reason: str
    exit_code: int | None = None
    saves: bool = False  # all members are alive and have time for a checkpoint; otherwise the job can only be killed


@dataclass(frozen=True)
class MeetingView:
    """The state of the meeting that one look at the store shows."""

    ready: Mapping[str, float]  # host -> when its heartbeat was last written, by the store's clock
    newest: JobGeneration | None = None
    end: GenerationEnd | None = None  # of the newest generation


@dataclass(frozen=True)
class Silence:
    """A member's last heartbeat, and the time that has passed without another."""

    host: str
    beat: float | None
    seconds: float = 0.0


@dataclass(frozen=True)
class HostState:
    """One host's part in the meeting."""

    host: str  # MACHINE.TOKEN: a restarted agent is another host on the same machine
    dead: frozenset[str] = frozenset()  # earlier agents of this machine, which have certainly ended
    phase: Phase = "meeting"
    joined: int = 0  # newest generation whose job this host has started
    end: GenerationEnd | None = None  # of that generation, until the store shows one
    leaving: GenerationEnd | None = None  # this host must go, and why
    when_spare: str = ""  # this host should go when another can take its place, and why
    beat: float | None = None  # own heartbeat, as last seen
    watched: int = 0  # the generation whose members `silences` are about
    silences: tuple[Silence, ...] = ()
    turn: int = 0  # looks in which a generation could have been proposed

    @property
    def may_be_invited(self) -> bool:
        """Return whether this host may take part: one that must leave would end each new generation at once."""
        return self.leaving is None and self.phase != "gone"


@dataclass(frozen=True)
class Propose:
    """The action to create generation `number` with this host as node 0."""

    number: int
    members: tuple[str, ...]


@dataclass(frozen=True)
class EndGeneration:
    number: int
    end: GenerationEnd


@dataclass(frozen=True)
class StartJob:
    generation: JobGeneration


@dataclass(frozen=True)
class StopJob:
    """The action to let the workers save, if they can, and stop."""

    reason: str
    saves: bool = False


@dataclass(frozen=True)
class Leave:
    end: GenerationEnd


Action = Propose | EndGeneration | StartJob | StopJob | Leave
Step = tuple[HostState, tuple[Action, ...]]


def decide(state: HostState, view: MeetingView, rules: MeetingRules) -> Step:
    """Return the host's next state and its actions, given what it saw in the store."""
    if state.phase == "gone":
        return state, ()
    state = _watch(state, view, rules)
    if state.phase in ("running", "stopping"):
        return _decide_with_job(state, view, rules)
    active = view.newest is not None and view.end is None
    if view.end is not None and view.end.exit_code is not None:
        return _leave(state, view.end)
    if active and view.newest is not None:
        return _decide_without_job(state, view.newest, rules)
    if state.end is not None and state.end.exit_code is not None:
        if view.newest is None:  # somebody has deleted the meeting: nobody is left to tell, and no job must begin
            return _leave(state, state.end)
        return state, (EndGeneration(view.newest.number, state.end),)  # the others must learn that the run is over
    if state.leaving is not None:
        return _leave(state, state.leaving)
    return _propose(state, view, rules)


def must_go(state: HostState, end: GenerationEnd) -> Step:
    """Let this host leave soon, for example after a spot notice; with an exit code, let all hosts leave."""
    if state.phase == "gone" or state.leaving is not None:
        return state, ()
    state = dataclasses.replace(state, leaving=end, end=state.end if end.exit_code is None else end)
    if state.phase == "meeting":
        # A generation that names this host may have been created a moment ago; the next look shows it.
        return state, ()
    return _end_job(state, end)


def job_ended(state: HostState, end: GenerationEnd) -> Step:
    """Return the state and actions after the job of the joined generation has ended on this host."""
    if state.phase not in ("running", "stopping"):
        return state, ()
    if end.exit_code is None:
        end = state.end or end  # the first reason is the cause of the others
    state = dataclasses.replace(state, phase="meeting", end=end, turn=0)
    return state, (EndGeneration(state.joined, end),)


def _decide_with_job(state: HostState, view: MeetingView, rules: MeetingRules) -> Step:
    newest = view.newest
    if newest is None or newest.number < state.joined:
        return state, ()  # an outdated view
    if newest.number > state.joined or view.end is not None:
        if state.phase == "stopping":
            return state, ()
        end = view.end or GenerationEnd(state.host, f"generation {newest.number} has begun")
        return dataclasses.replace(state, phase="stopping", end=view.end), (StopJob(end.reason, end.saves),)
    if state.end is not None:
        return state, (EndGeneration(state.joined, state.end),)  # again: the request may have been lost
    lost = _lost(state, rules)
    if lost is not None:
        return _end_job(state, lost)
    if state.when_spare and _spares(view, newest, rules, state):
        leaving = GenerationEnd(state.host, state.when_spare, saves=True)
        return _end_job(dataclasses.replace(state, leaving=leaving), leaving)
    return state, ()


def _decide_without_job(state: HostState, newest: JobGeneration, rules: MeetingRules) -> Step:
    """Decide what to do while a generation is under way and this host runs no job."""
    if state.host in newest.members and newest.number > state.joined and state.leaving is None:
        state = dataclasses.replace(state, phase="running", joined=newest.number, end=None, turn=0)
        return state, (StartJob(newest),)
    end = None
    if state.host in newest.members:
        end = state.leaving or state.end or GenerationEnd(state.host, "its job has ended on this host")
    elif not state.dead.isdisjoint(newest.members):
        end = GenerationEnd(state.host, "the node agent was restarted")
    elif state.leaving is not None and state.leaving.exit_code is None:
        return _leave(state, state.leaving)
    elif state.leaving is not None:
        end = state.leaving  # the run is over: its members save and leave, and this host when it sees that
    else:
        end = _lost(state, rules)
    return state, (EndGeneration(newest.number, end),) if end is not None else ()


def _propose(state: HostState, view: MeetingView, rules: MeetingRules) -> Step:
    candidates = fresh_hosts(view, rules, state.host)
    if state.host not in candidates or len(candidates) < rules.wanted:
        return dataclasses.replace(state, turn=0), ()
    # One at a time, so that 64 hosts do not send 64 proposals; the next one follows if the first has gone.
    if state.turn < min(candidates.index(state.host), LAST_TURN):
        return dataclasses.replace(state, turn=state.turn + 1), ()
    others = [host for host in candidates if host != state.host]
    # Numbers go on where somebody has deleted the meeting: this host would join none that it has had.
    number = 1 + max(state.joined, view.newest.number if view.newest is not None else 0)
    return state, (Propose(number, (state.host, *others[: rules.wanted - 1])),)


def fresh_hosts(view: MeetingView, rules: MeetingRules, host: str) -> Sequence[str]:
    """Return the hosts with a recent heartbeat, sorted; for each machine, the one with the latest."""
    own = view.ready.get(host)
    if own is None:
        return []
    newest: dict[str, str] = {}
    for each in sorted(view.ready):
        machine = machine_of(each)
        beat = view.ready[each]
        if own - beat <= rules.fresh_seconds and (machine not in newest or beat >= view.ready[newest[machine]]):
            newest[machine] = each
    return sorted(newest.values())


def _spares(view: MeetingView, newest: JobGeneration, rules: MeetingRules, state: HostState) -> Sequence[str]:
    machines = {machine_of(member) for member in newest.members}
    return [host for host in fresh_hosts(view, rules, state.host) if machine_of(host) not in machines]


def _watch(state: HostState, view: MeetingView, rules: MeetingRules) -> HostState:
    """Count how long the members of the current generation have been silent."""
    own = view.ready.get(state.host)
    if view.newest is None or view.end is not None:
        return dataclasses.replace(state, beat=own, watched=0, silences=())
    others = [member for member in view.newest.members if member != state.host]
    if state.watched != view.newest.number:
        silences = tuple(Silence(host, view.ready.get(host)) for host in others)
        return dataclasses.replace(state, beat=own, watched=view.newest.number, silences=silences)
    silences = state.silences
    if own is not None:
        since = own if state.beat is None else state.beat
        silences = tuple(_listen(each, view.ready.get(each.host), (since, own), rules) for each in silences)
    return dataclasses.replace(state, beat=own if own is not None else state.beat, silences=silences)


def _listen(silence: Silence, beat: float | None, own: tuple[float, float], rules: MeetingRules) -> Silence:
    """Update a member's silence, where `own` is this host's former and present heartbeat.

    Only the time after the member's own heartbeat counts.
    """
    if beat is not None and beat != silence.beat:
        return Silence(silence.host, beat)
    since = own[0] if silence.beat is None else max(own[0], silence.beat)
    passed = min(max(0.0, own[1] - since), rules.beat_seconds)
    return dataclasses.replace(silence, seconds=silence.seconds + passed) if passed else silence


def _lost(state: HostState, rules: MeetingRules) -> GenerationEnd | None:
    lost = [silence.host for silence in state.silences if silence.seconds >= rules.silence_seconds]
    return GenerationEnd(state.host, f"lost {', '.join(lost)}: no heartbeat") if lost else None


def _end_job(state: HostState, end: GenerationEnd) -> Step:
    actions: tuple[Action, ...] = (EndGeneration(state.joined, end),)
    if state.phase == "running":
        actions = (*actions, StopJob(end.reason, end.saves))
    return dataclasses.replace(state, phase="stopping", end=state.end or end), actions


def _leave(state: HostState, end: GenerationEnd) -> Step:
    return dataclasses.replace(state, phase="gone"), (Leave(end),)


def machine_of(host: str) -> str:
    return host.rpartition(".")[0]
