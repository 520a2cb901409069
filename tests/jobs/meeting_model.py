"""An exhaustive search over the meeting of three machines: every interleaving up to a depth, with faults.

The agents are the product's own state machine. The world around them is a store with a clock, requests that may be
delayed or lost, and jobs that claim attempts and commit. Between a look and each of the actions that it leads to anything
may happen, so a paused host acts on what it read long ago.
"""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from skytrain.jobs.generations import (
    Action,
    EndGeneration,
    GenerationEnd,
    HostState,
    JobGeneration,
    Leave,
    MeetingRules,
    MeetingView,
    Propose,
    StartJob,
    Step,
    StopJob,
    decide,
    job_ended,
    machine_of,
    must_go,
)

MACHINES = ("a", "b", "c")
# In ticks of the store's clock.
RULES = MeetingRules(wanted=2, beat_seconds=1, fresh_seconds=1, silence_seconds=2)
FAIR_ROUNDS = 40


class Violation(AssertionError):
    """The protocol does what it never may."""


class Job(NamedTuple):
    """The job of a generation on one host. On node 0 it claims an attempt, then commits."""

    generation: int
    members: tuple[str, ...]
    listed: int = -1  # the next attempt's number when it last listed them
    checked: bool = False  # that its generation is the newest
    attempt: int = -1
    stopping: bool = False


class Host(NamedTuple):
    state: HostState
    pending: tuple[Action, ...] = ()
    job: Job | None = None
    alive: bool = True


class Stored(NamedTuple):
    """A generation in the store."""

    members: tuple[str, ...]
    end: GenerationEnd | None = None
    over: GenerationEnd | None = None


class Faults(NamedTuple):
    """How many of each may still happen, and how many of all together."""

    ticks: int = 3
    crashes: int = 1
    lost: int = 1  # requests whose answer does not come; they may still arrive, at any later time, or never
    notices: int = 1
    failures: int = 1  # jobs that fail by themselves
    duplicates: int = 1  # second agents on a machine whose first one lives
    together: int = 3  # without the ticks
    finishes: int = 0  # jobs that come to the end of the run, which is no fault

    def less(self, kind: str) -> Faults:
        return self._replace(**{kind: getattr(self, kind) - 1, "together": self.together - 1})

    def allow(self, kind: str) -> bool:
        return self.together > 0 and bool(getattr(self, kind) > 0)


NO_FAULTS = Faults(ticks=0, crashes=0, lost=0, notices=0, failures=0, duplicates=0, together=0)


class World(NamedTuple):
    clock: int
    beats: tuple[tuple[str, int], ...]
    generations: tuple[Stored, ...]
    attempts: tuple[int, ...]  # the generation of each
    committed: int  # the newest generation that has committed
    hosts: tuple[Host, ...]
    flying: tuple[tuple[str, Action], ...]  # requests under way, by host
    first_nodes: tuple[tuple[int, str], ...]  # who has started a job as node 0
    faults: Faults


@dataclass(frozen=True)
class Variant:
    """The protocol, and the ways in which tests break it."""

    look: Callable[[HostState, MeetingView, MeetingRules], Step] = decide
    conditional_create: bool = True
    check_generation: bool = True
    list_before_check: bool = True
    clock_skew: tuple[int, ...] = (0, 0, 0)  # of each machine; used only where `host_clocks` is true
    host_clocks: bool = False  # heartbeats are stamped by whoever writes them
    end_is_final: bool = True  # a generation that is proposed after the end of the run changes nothing


PROTOCOL = Variant()


def start(faults: Faults) -> World:
    hosts = tuple(Host(HostState(f"{machine}.0")) for machine in MACHINES)
    return World(
        clock=0,
        beats=(),
        generations=(),
        attempts=(),
        committed=0,
        hosts=hosts,
        flying=(),
        first_nodes=(),
        faults=faults,
    )


def final_end(world: World) -> GenerationEnd | None:
    """Return the end of the run, if it is in the store."""
    return next((each.over for each in reversed(world.generations) if each.over is not None), None)


def view_of(world: World, variant: Variant) -> MeetingView:
    newest = end = None
    if world.generations:
        number, stored = len(world.generations), world.generations[-1]
        newest = JobGeneration(number=number, members=stored.members, address="", port=0, rendezvous_id="")
        end = (final_end(world) if variant.end_is_final else stored.over) or stored.end
    return MeetingView(dict(world.beats), newest, end)


def successors(world: World, variant: Variant) -> Iterator[World]:
    faults = world.faults
    if faults.ticks:
        yield world._replace(clock=world.clock + 1, faults=faults._replace(ticks=faults.ticks - 1))
    for index, (host, action) in enumerate(world.flying):
        yield perform(world._replace(flying=world.flying[:index] + world.flying[index + 1 :]), host, action, variant)
    for index, host in enumerate(world.hosts):
        if host.alive:
            yield from _host_steps(world, index, host, variant)
        elif host.state.phase != "gone":
            yield restarted(world, index)


def _host_steps(world: World, index: int, host: Host, variant: Variant) -> Iterator[World]:
    faults = world.faults
    if host.pending:
        action = host.pending[0]
        rest = put(world, index, host._replace(pending=host.pending[1:]))
        yield perform_local(rest, index, action, variant)
        if faults.allow("lost") and isinstance(action, Propose | EndGeneration):
            yield rest._replace(flying=(*rest.flying, (host.state.host, action)), faults=faults.less("lost"))
    elif host.state.phase != "gone":
        beaten = beat(world, index, variant)
        yield look(world, index, variant)
        if beaten.beats != world.beats:
            yield look(beaten, index, variant)
    if host.job is not None:
        if host.job.stopping:
            yield end_job(world, index)
        elif faults.allow("failures"):
            yield end_job(world._replace(faults=faults.less("failures")), index)
        yield from job_steps(world, index, host.job, variant)
        if faults.finishes and host.job.attempt >= 0 and world.committed >= host.job.generation:
            finished = world._replace(faults=faults._replace(finishes=faults.finishes - 1))
            yield end_job(finished, index, GenerationEnd(host.state.host, "done", exit_code=0))
    if faults.allow("notices") and host.state.phase != "gone" and host.state.leaving is None:
        state, actions = must_go(host.state, GenerationEnd(host.state.host, "notice"))
        noticed = host._replace(state=state, pending=(*host.pending, *actions))
        yield put(world, index, noticed)._replace(faults=faults.less("notices"))
    if faults.allow("crashes") and host.state.phase != "gone":
        dead = put(world, index, host._replace(alive=False, pending=(), job=None))
        yield dead._replace(faults=faults.less("crashes"))
    if faults.allow("duplicates") and index < len(MACHINES):
        second = Host(HostState(f"{machine_of(host.state.host)}.second"))
        yield world._replace(hosts=(*world.hosts, second), faults=faults.less("duplicates"))


def put(world: World, index: int, host: Host) -> World:
    return world._replace(hosts=(*world.hosts[:index], host, *world.hosts[index + 1 :]))


def restarted(world: World, index: int) -> World:
    """The machine's agent starts again, or a replacement of a machine that has left; it knows that the former has ended."""
    former = world.hosts[index].state.host
    machine, _, token = former.rpartition(".")
    again = HostState(f"{machine}.{token}x", dead=frozenset({former}))
    beats = tuple(pair for pair in world.beats if pair[0] != former)
    return put(world, index, Host(again))._replace(beats=beats)


def beat(world: World, index: int, variant: Variant) -> World:
    state = world.hosts[index].state
    host = state.host
    if not state.may_be_invited:
        return world._replace(beats=tuple(pair for pair in world.beats if pair[0] != host))
    skew = variant.clock_skew[index % len(MACHINES)] if variant.host_clocks else 0
    beats = dict(world.beats) | {host: world.clock + skew}
    return world._replace(beats=tuple(sorted(beats.items())))


def look(world: World, index: int, variant: Variant) -> World:
    host = world.hosts[index]
    state, actions = variant.look(host.state, view_of(world, variant), RULES)
    if final_end(world) is not None and any(isinstance(action, StartJob | Propose) for action in actions):
        raise Violation(f"{host.state.host} starts another generation although the run is over")
    for action in actions:
        decided_before = isinstance(action, EndGeneration) and action.end == host.state.end  # sent again
        if isinstance(action, EndGeneration) and action.end.reason.startswith("lost") and not decided_before:
            _check_stale(world, action, variant)
    world = put(world, index, host._replace(state=state))
    # What happens on the host itself takes no request: a pause before it is a pause of the job.
    for action in actions:
        if not isinstance(action, Propose | EndGeneration):
            world = perform_local(world, index, action, variant)
    requests = tuple(action for action in actions if isinstance(action, Propose | EndGeneration))
    return put(world, index, world.hosts[index]._replace(pending=requests))


def _check_stale(world: World, action: EndGeneration, variant: Variant) -> None:
    """Only a generation with a member that is silent by the store's clock may be taken over."""
    members = world.generations[action.number - 1].members
    index = {each.state.host: number % len(MACHINES) for number, each in enumerate(world.hosts)}
    for host, stamp in world.beats:
        skew = variant.clock_skew[index.get(host, 0)] if variant.host_clocks else 0
        if host in action.end.reason and host in members and world.clock - (stamp - skew) < RULES.silence_seconds:
            raise Violation(f"{action.end.by} takes over although {host} was heard")


def perform_local(world: World, index: int, action: Action, variant: Variant) -> World:
    host = world.hosts[index]
    if isinstance(action, StartJob):
        generation = action.generation
        world = put(world, index, host._replace(job=Job(generation.number, generation.members)))
        if generation.members[0] == host.state.host:
            world = world._replace(
                first_nodes=tuple(sorted({*world.first_nodes, (generation.number, host.state.host)}))
            )
            if len({number for number, _ in world.first_nodes}) < len(world.first_nodes):
                raise Violation(f"two node 0s in generation {generation.number}: {world.first_nodes}")
        return world
    if isinstance(action, StopJob):
        return put(world, index, host._replace(job=host.job and host.job._replace(stopping=True)))
    if isinstance(action, Leave):
        beats = tuple(pair for pair in world.beats if pair[0] != host.state.host)
        return put(world, index, host._replace(alive=False))._replace(beats=beats)
    return perform(world, host.state.host, action, variant)


def perform(world: World, host: str, action: Action, variant: Variant) -> World:
    """A request arrives at the store."""
    if isinstance(action, Propose):
        machines = {machine_of(member) for member in action.members}
        if len(machines) < len(action.members):
            raise Violation(f"two members on one machine: {action.members}")
        if action.number == len(world.generations) + 1:
            return world._replace(generations=(*world.generations, Stored(action.members)))
        if not variant.conditional_create:
            changed = list(world.generations)
            changed[action.number - 1] = Stored(action.members)
            return world._replace(generations=tuple(changed))
    if isinstance(action, EndGeneration):
        kind = "end" if action.end.exit_code is None else "over"
        stored = world.generations[action.number - 1]
        if getattr(stored, kind) is None:
            changed = list(world.generations)
            changed[action.number - 1] = stored._replace(**{kind: action.end})
            return world._replace(generations=tuple(changed))
    return world


def job_steps(world: World, index: int, job: Job, variant: Variant) -> Iterator[World]:
    """Node 0 claims an attempt as `claim_attempt` does, and commits if no newer attempt was claimed."""
    host = world.hosts[index]
    if job.members[0] != host.state.host:
        return
    if job.attempt >= 0:
        if job.attempt == len(world.attempts) - 1:
            if job.generation < max(world.attempts):
                raise Violation(f"generation {job.generation} commits after {max(world.attempts)} has claimed")
            yield world._replace(committed=max(world.committed, job.generation))
    elif job.listed < 0 or (not variant.list_before_check and not job.checked):
        yield from _list_or_check(world, index, job, variant)
    elif not job.checked:
        if not variant.check_generation or is_current(world, job):
            yield put(world, index, host._replace(job=job._replace(checked=True)))
        else:
            yield end_job(world, index)
    elif len(world.attempts) == job.listed:
        claimed = put(world, index, host._replace(job=job._replace(attempt=job.listed)))
        yield claimed._replace(attempts=(*world.attempts, job.generation))
    else:  # the number is taken: list and check again
        yield put(world, index, host._replace(job=job._replace(listed=-1, checked=not variant.list_before_check)))


def _list_or_check(world: World, index: int, job: Job, variant: Variant) -> Iterator[World]:
    host = world.hosts[index]
    if variant.list_before_check or job.checked:
        yield put(world, index, host._replace(job=job._replace(listed=len(world.attempts))))
    elif is_current(world, job):
        yield put(world, index, host._replace(job=job._replace(checked=True)))
    else:
        yield end_job(world, index)


def is_current(world: World, job: Job) -> bool:
    stored = world.generations[job.generation - 1]
    return job.generation == len(world.generations) and stored.end is None and stored.over is None


def end_job(world: World, index: int, end: GenerationEnd | None = None) -> World:
    host = world.hosts[index]
    state, actions = job_ended(host.state, end or GenerationEnd(host.state.host, "the job ended"))
    return put(world, index, host._replace(state=state, job=None, pending=(*host.pending, *actions)))


@dataclass
class Explored:
    states: int
    schedules: int = 0  # fair schedules that ended in a commit


def explore(
    seeds: Iterable[World], faults: Faults, depth: int, variant: Variant = PROTOCOL, *, fair_every: int = 50
) -> Explored:
    """Every interleaving of so many steps, breadth first from all `seeds`, each state once.

    From every `fair_every`-th state a schedule without faults must lead to a generation that commits, or, where the run
    is over, to the leave of every host.
    """
    front = list(dict.fromkeys(world._replace(faults=faults) for world in seeds))
    seen, found = set(front), Explored(len(front))
    with no_garbage_collection():
        for _ in range(depth):
            following = []
            for world in front:
                for after in successors(world, variant):
                    if after in seen:
                        continue
                    seen.add(after)
                    following.append(after)
                    found.states += 1
                    if found.states % fair_every == 0:
                        check_progress(after, variant)
                        found.schedules += 1
            front = following
    return found


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Millions of tuples without a cycle: the collector would take most of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def undisturbed(variant: Variant = PROTOCOL) -> list[World]:
    """The states of a run without faults, up to its first commit."""
    return list(dict.fromkeys(_fair_run(start(NO_FAULTS), variant)))


def paused(variant: Variant = PROTOCOL) -> list[World]:
    """The states of all runs in which one host, with its job, pauses at some moment and the others go on without it.

    It wakes up wherever the search begins.
    """
    found: dict[World, None] = {}
    for world in undisturbed(variant):
        for index in range(len(MACHINES)):
            found.update(dict.fromkeys(_fair_run(world, variant, without=index)))
    return list(found)


def committed(variant: Variant = PROTOCOL) -> list[World]:
    """The states of a run without faults from its first commit on: it may come to its end."""
    *_, last = undisturbed(variant)
    found = [last]
    for _ in range(3):
        for index in range(len(MACHINES)):
            found.append(_fair_turn(found[-1], index, variant))
    return [world for world in dict.fromkeys(found) if world.committed]


def _fair_run(world: World, variant: Variant, without: int | None = None) -> Iterator[World]:
    attempts = len(world.attempts)
    yield world
    for _ in range(FAIR_ROUNDS):
        for index in range(len(world.hosts)):
            if index != without:
                world = _fair_turn(world, index, variant)
                yield world
        if len(world.attempts) > attempts:
            return
        world = world._replace(clock=world.clock + 1)


def check_progress(world: World, variant: Variant) -> None:
    """Once hosts stay and requests are answered, a new generation commits."""
    world = world._replace(faults=NO_FAULTS, flying=(), clock=world.clock + 1)
    for _ in range(FAIR_ROUNDS):
        if final_end(world) is not None:
            return check_end(world, variant)
        for index in range(len(world.hosts)):
            world = _fair_turn(world, index, variant)
        if any(_commits(world, host) for host in world.hosts):
            return
        world = world._replace(clock=world.clock + 1)
    raise Violation(f"no commit in {FAIR_ROUNDS} rounds without faults: {world}")


def check_end(world: World, variant: Variant) -> None:
    """Once the end of the run is in the store, and hosts can act, every one of them leaves."""
    for _ in range(FAIR_ROUNDS):
        for index, host in enumerate(world.hosts):
            if host.alive:
                world = _fair_turn(world, index, variant)
        if not any(host.alive for host in world.hosts):
            return
        world = world._replace(clock=world.clock + 1)
    raise Violation(f"hosts stay {FAIR_ROUNDS} rounds after the run is over: {world}")


def _commits(world: World, host: Host) -> bool:
    """Whether this host is node 0 of a job that all members run, and that may commit."""
    job = host.job
    if job is None or job.attempt < 0 or job.attempt != len(world.attempts) - 1 or not is_current(world, job):
        return False
    return len(_joined(world, job)) == len(job.members)


def _joined(world: World, job: Job) -> list[Host]:
    return [each for each in world.hosts if each.job is not None and each.job.generation == job.generation]


def _fair_turn(world: World, index: int, variant: Variant) -> World:
    host = world.hosts[index]
    if not host.alive:
        # Also where it has left: its machine is replaced, unless a second agent of that machine is there.
        machine = machine_of(host.state.host)
        taken = any(machine_of(each.state.host) == machine and each.alive for each in world.hosts)
        return world if taken else restarted(world, index)
    world = beat(world, index, variant)
    if not world.hosts[index].pending:
        world = look(world, index, variant)
    while world.hosts[index].pending and world.hosts[index].alive:
        host = world.hosts[index]
        world = perform_local(
            put(world, index, host._replace(pending=host.pending[1:])), index, host.pending[0], variant
        )
    job = world.hosts[index].job
    if job is None:
        return world
    if job.stopping:
        return end_job(world, index)
    if len(_joined(world, job)) < len(job.members):
        return world  # torchrun waits for the others
    return next(job_steps(world, index, job, variant), world)


def never_takes_over(state: HostState, view: MeetingView, rules: MeetingRules) -> Step:
    after, actions = decide(state, view, dataclasses.replace(rules, silence_seconds=10**9))
    return after, actions


def by_host_clocks(state: HostState, view: MeetingView, rules: MeetingRules) -> Step:
    """Compares stamps of different hosts, as an agent that reads a wall clock would."""
    after, actions = decide(state, view, rules)
    own = view.ready.get(state.host)
    if own is not None and view.newest is not None and view.end is None:
        for host in view.newest.members:
            if host != state.host and own - view.ready.get(host, own) >= rules.silence_seconds:
                lost = GenerationEnd(state.host, f"lost {host}: no heartbeat")
                return after, (*actions, EndGeneration(view.newest.number, lost))
    return after, actions


def trusts_its_proposal(state: HostState, view: MeetingView, rules: MeetingRules) -> Step:
    """Starts the job of a generation when it proposes it, before it has read who created it."""
    after, actions = decide(state, view, rules)
    for action in actions:
        if isinstance(action, Propose):
            own = JobGeneration(number=action.number, members=action.members, address="", port=0, rendezvous_id="")
            return dataclasses.replace(after, phase="running", joined=own.number), (action, StartJob(own))
    return after, actions
