"""A rented run in one process: the product's own agents, meeting, attempts, commits, meter and requests, in a simulated world.

Simulated are the clock, the store's objects, Auto Scaling, EC2, machines that boot and vanish, and the arithmetic of
training. Requests take time, get lost before or after their effect, arrive late, and meet partitions; listings of the
store are not atomic.
"""

from __future__ import annotations

import contextlib
import json
import re
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

from skytrain.aws import Call, CloudError, Ec2Instance, Notice
from skytrain.checkpoints import CheckpointError, committed, step_key
from skytrain.checkpoints.commits import commit, save_folder
from skytrain.checkpoints.errors import TakenOver
from skytrain.checkpoints.manifest import CheckpointManifest, SavedFile
from skytrain.config import EXIT_CODES, INTERRUPTED, SUPERSEDED, UNCOMMITTED, BudgetConfig, SkytrainError
from skytrain.jobs import check_generation, node, node_agent, rendezvous
from skytrain.jobs.generations import JobGeneration
from skytrain.jobs.node_agent import NodeAgent
from skytrain.jobs.rendezvous import GenerationOver
from skytrain.planning import Budget
from skytrain.runs import (
    HostSpends,
    Meter,
    Superseded,
    claim_attempt,
    launches_of,
    read_spend,
    record_resume,
    settled_counts,
    stop_asked,
    write_outcome,
)
from skytrain.runs.meter import MeteredMachine
from skytrain.storage import DamagedRecord, NotFound, Stat, Store, StoreUnreachable
from skytrain.storage.base import Progress
from skytrain.targets import stopping
from skytrain.targets.ec2 import machines as ec2_machines
from skytrain.targets.ec2.machines import count_machines
from skytrain.targets.ec2.target import Ec2Launcher

from . import laptops
from .engine import EPOCH, Actor, Engine, Killed, SimulatedTime

RUN = "simulated"
PRICE = 36.0  # dollars an hour of one machine: a cent a second
STEP_SECONDS = 20.0
STORE_SECONDS = 5.0  # for which a request is retried
LOST_PEER_SECONDS = 20.0  # after which a job notices that a member is gone
JOIN_SECONDS = 300.0
MINIMUM_SECONDS = 60.0  # that EC2 bills at least
HOOK_SECONDS = 7200.0
MOST_SECONDS_ABOVE = (
    45.0  # by which the meter may be above a bill: heartbeats count ahead, and a shutdown is not billed
)


@dataclass
class Chaos:
    """What goes wrong with single requests: a chance for each, or one fate for one request."""

    lost: float = 0.0  # chance that a request has no effect and no answer
    unanswered: float = 0.0  # that it has its effect, and no answer
    late: float = 0.0  # that it has its effect up to a minute later, and no answer
    slow: float = 0.0  # that it takes up to 30 s
    torn: float = 0.0  # that a listing shows its halves at different times
    cloud: float = 0.0  # that a request to AWS fails, before or after its effect
    planned: dict[int, str] = field(default_factory=dict)  # number of a request -> fate, or what happens to its machine
    planned_cloud: dict[int, str] = field(default_factory=dict)  # the same for requests to AWS: lost or unanswered


class StartedJob(NamedTuple):
    at: float
    generation: int
    rank: int
    host: str
    launch: str


class RunOver(NamedTuple):
    at: float
    exit_code: int
    launch: str


class World:
    """The store, the cloud and the machines of one run."""

    def __init__(
        self,
        seed: int,
        *,
        nodes: int = 2,
        steps: int = 12,
        save_every: int = 3,
        budget_usd: float | None = None,
        kill_after_seconds: float = 4 * 3600.0,
        chaos: Chaos | None = None,
        hooks: bool = True,
    ) -> None:
        self.engine = Engine(seed)
        self.random = self.engine.random
        self.nodes = nodes
        self.steps = steps
        self.save_every = save_every
        self.budget = BudgetConfig(
            usd=budget_usd, usd_per_hour=PRICE, margin=30.0, overrun="continue", whole_machine=False, planned_usd=None, planned_step_seconds=None,
        )  # fmt: skip
        self.config = SimpleNamespace(
            budget=self.budget,
            store=SimpleNamespace(patience=1800.0),
            cloud=SimpleNamespace(secrets={}),
            loader=SimpleNamespace(cache_dir=None),
            trainer=SimpleNamespace(max_restarts=3, stop_within=60.0),
        )
        self.kill_after_seconds = kill_after_seconds
        self.events_until = 0.0  # when the last thing happens to it from outside
        self.offers = 1  # groups of a launch
        self.price = PRICE
        self.skews = (0.0,)  # seconds by which the clocks of machines are wrong
        self.sleepy = 0.0  # how long a launching computer may sleep before a request
        self.laptops: list[Actor] = []
        self.hooks = hooks  # whether groups have a launch hook
        self.chaos = chaos or Chaos()
        self.objects: dict[str, tuple[bytes, str, float]] = {}
        self.writers: dict[str, object] = {}  # of objects that were created conditionally
        self.requests = 0
        self.store = SimulatedStore(self)
        self.cloud = SimulatedCloud(self)
        self.machines: dict[str, Machine] = {}
        self.spares = 0  # machines that the first group has beyond those that a generation needs
        self.unreachable: set[str] = set()  # machines that do not reach the store and AWS
        self.storeless: set[str] = set()  # machines that do not reach the store
        self.cloudless: set[str] = set()  # machines that do not reach AWS
        self.throttled = False  # AWS refuses every request that changes something: too many were made
        self.separated: set[frozenset[str]] = set()  # pairs of machines that do not reach each other
        self.outage = False
        self.tampered = False  # somebody has damaged or deleted records: what they had counted may be lost
        self.started_jobs: list[StartedJob] = []
        self.commits: list[tuple[float, int, int]] = []  # time, step, attempt
        self.over: list[RunOver] = []
        self.failing: Callable[[Machine], str | None] = lambda machine: None  # what is wrong with a machine
        self.job_fails: Callable[[Machine, int], int | None] = lambda machine, step: None
        self.log: list[str] = []

    # Who is asking.

    @property
    def caller(self) -> Machine | None:
        actor = self.engine.current
        return getattr(actor, "machine", None)

    def say(self, text: str) -> None:
        self.log.append(f"{self.engine.now:8.1f}  {text}")

    # The launch.

    def launch(self, *, disturbed: bool = False) -> None:
        """Launch the run from a laptop that then goes away."""

        def work() -> None:
            try:
                laptops.launch(self)
            except SkytrainError as error:
                self.say(f"launch: {str(error).splitlines()[0]}")

        with contextlib.nullcontext() if disturbed else self.undisturbed():
            laptop = self.engine.spawn("laptop", work)
            self.engine.run(lambda: laptop.ended, 600)
        for group in self.cloud.groups.values():
            if group.desired:
                group.maximum = group.desired = self.nodes + self.spares

    def launch_again(self, seconds: float) -> None:
        """Launch the run once more from another computer, which may sleep between two requests, and follow it."""
        self.say("somebody launches the run")
        self.sleepy = seconds

        def work() -> None:
            try:
                record = laptops.launch(self)
            except SkytrainError as error:
                self.say(f"launch: {str(error).splitlines()[0]}")
                return
            self.say(f"launch {record.id} is complete")
            laptops.follow(self, record)

        self.laptops.append(self.engine.spawn("colleague", work))

    def follow(self) -> None:
        """Let a terminal follow the newest launch."""
        records = launches_of(self.store, RUN)
        if records:
            self.laptops.append(self.engine.spawn("terminal", lambda: laptops.follow(self, records[-1])))

    def is_over(self, launch: str) -> bool:
        return any(each.launch == launch for each in self.over)

    def clock(self) -> datetime:
        """Return the time of day as the caller's clock has it; those of machines may not be set yet."""
        machine = self.caller
        return self.engine.time + timedelta(seconds=machine.skew if machine is not None else 0.0)

    def uptime(self) -> float:
        """Return the seconds since the caller's machine booted."""
        machine = self.caller
        return self.engine.now - (machine.launched if machine is not None else 0.0)

    def count_machines(self) -> None:
        """Do what `skytrain costs` does: count what machines have not recorded themselves."""

        def work() -> None:
            for record in launches_of(self.store, RUN):
                count_machines(self.cloud, self.store, record)  # type: ignore[arg-type]

        with self.undisturbed():
            actor = self.engine.spawn("costs", work)
            self.engine.run(lambda: actor.ended, 600)

    @contextlib.contextmanager
    def undisturbed(self) -> Iterator[None]:
        chaos, self.chaos = self.chaos, Chaos()
        try:
            yield
        finally:
            self.chaos = chaos

    def spawn(self, name: str, work: Callable[[], object], machine: Machine | None, after: float = 0.0) -> Actor:
        actor = self.engine.spawn(name, work, after)
        actor.machine = machine  # type: ignore[attr-defined]
        return actor

    def quiet(self) -> bool:
        """Return whether nothing is rented, nothing asks for a machine, and nobody is about to."""
        groups = self.cloud.groups.values()
        asleep = all(laptop.ended for laptop in self.laptops)
        return asleep and not self.cloud.running and not any(group.desired for group in groups)

    def end(self) -> None:
        self.engine.close()

    @contextlib.contextmanager
    def patched(self) -> Iterator[World]:
        """Let product modules see the simulated clock, and names that the seed decides."""
        clock = SimulatedTime(self.engine, self.clock)
        time_of_day = _clocked(self)
        names = _Names(self.random)
        with contextlib.ExitStack() as stack:
            for module in (node_agent, ec2_machines, stopping):
                stack.enter_context(mock.patch.object(module, "time", clock))
            stack.enter_context(
                mock.patch.object(
                    node_agent, "threading", SimpleNamespace(Thread=partial(SimulatedThread, self)), create=True
                )
            )
            stack.enter_context(laptops.patched_clocks(time_of_day))
            stack.enter_context(laptops.patched_machines(self))
            stack.enter_context(laptops.patched_stop(self))
            stack.enter_context(mock.patch("skytrain.runs.launches.boot_clock", lambda: self.engine.now))
            stack.enter_context(mock.patch.object(node_agent, "random", self.random))
            stack.enter_context(mock.patch.object(node_agent, "free_port", lambda address: 29500))
            stack.enter_context(mock.patch.object(node_agent, "ROUND_SECONDS", 1.0))
            stack.enter_context(mock.patch.object(rendezvous, "secrets", names))
            stack.enter_context(mock.patch("skytrain.runs.meter.boot_clock", self.uptime))
            stack.enter_context(mock.patch("skytrain.aws.removal.time", clock))
            stack.enter_context(mock.patch("skytrain.storage.retry.time", clock))
            stack.enter_context(mock.patch("skytrain.jobs.supervisor.random", self.random))
            for name, replacement in {
                "find_metadata": lambda: self.caller,
                "open_store": lambda config: self.store,
                "check_mesh": lambda *_: None,
                "find_problems": lambda needs: [],
                "TrainCommand": lambda *_: self.caller,
                "NodeAgent": self._agent,
            }.items():
                stack.enter_context(mock.patch.object(node, name, replacement))
            stack.enter_context(mock.patch.object(node.tempfile, "gettempdir", stack.enter_context(_folder()).__str__))
            stack.callback(self.end)
            yield self

    def _agent(self, **parts: Any) -> NodeAgent:
        agent = NodeAgent(**parts)
        agent.handle_signals = lambda: None  # type: ignore[method-assign]
        assert self.caller is not None
        self.caller.agent = agent
        return agent

    # What must hold, whatever happened.

    def check(self) -> None:
        """Raise AssertionError where the run did what it never may."""
        text = "\n".join(self.log[-60:])
        assert not self.engine.crashes, f"{self.engine.crashes[0]}\n{text}"
        first: dict[int, str] = {}
        for job in self.started_jobs:
            if job.rank == 0:
                found = first.setdefault(job.generation, job.host)
                assert found == job.host, f"two node 0s in generation {job.generation}\n{text}"
        launches = {machine.group.launch for machine in self.machines.values()}
        for launch in launches:
            most = self.most_machines_without_commit(launch)
            assert most <= self.bound, f"{most} machines without a committed step, more than {self.bound}\n{text}"
        if self.budget.usd is not None:
            above = (self.bound * 60 + self.nodes * STEP_SECONDS) * PRICE / 3600
            most_usd = self.budget.usd + max(1, len(launches)) * above
            assert self.usd <= most_usd, f"${self.usd:.2f} spent of ${self.budget.usd:.2f}\n{text}"
        for over in self.over:
            late = [
                job.at - over.at for job in self.started_jobs if job.launch == over.launch and job.at > over.at + 60
            ]
            assert not late, f"a job began {late[0]:.0f} s after the run was over\n{text}"

    def check_meter(self) -> None:
        """Raise AssertionError where the meter has counted less than EC2 bills for a machine, or much more."""
        if self.tampered:
            return
        self.count_machines()
        counts = read_spend(self.store, RUN).counts
        text = "\n".join(self.log[-60:])
        for machine in self.machines.values():
            counted = max(
                (count.seconds for key, count in counts.items() if key.startswith(f"{machine.id} ")), default=0.0
            )
            billed = machine.billed_seconds
            if not machine.end_described:
                continue  # nobody asked EC2 within the hour in which it describes an ended machine
            assert counted > billed - 1.0, f"{machine.id}: billed {billed:.0f} s, counted {counted:.0f} s\n{text}"
            most = billed + max(MOST_SECONDS_ABOVE, 0.02 * billed)
            assert counted <= most, f"{machine.id}: billed {billed:.0f} s, counted {counted:.0f} s\n{text}"
        if (settled := settled_counts(self.store, RUN, counts)) is not None:
            usd = sum(count.usd for count in settled.values())
            # EC2's times are whole seconds.
            assert self.usd - 1e-9 <= usd <= 1.02 * self.usd + len(self.machines) * PRICE / 3600, (
                f"EC2 bills ${self.usd:.2f}, settled: ${usd:.2f}\n{text}"
            )

    @property
    def bound(self) -> int:
        return 2 * (self.nodes + self.spares) + 3

    def most_machines_without_commit(self, launch: str) -> int:
        """Return the most machines of a launch that were started within two hours without a commit in between."""
        starts = sorted(machine.launched for machine in self.machines.values() if machine.group.launch == launch)
        ends = sorted(at for at, *_ in self.commits)
        most = 0
        for first in starts:
            next_commit = min((at for at in ends if at > first), default=float("inf"))
            most = max(most, sum(first <= each < min(next_commit, first + HOOK_SECONDS) for each in starts))
        return most

    @property
    def usd(self) -> float:
        """Return what EC2 bills: each machine from its launch to its end, at least a minute."""
        return sum(machine.billed_seconds for machine in self.machines.values()) * PRICE / 3600


class _Names:
    """`secrets`, by the seed."""

    def __init__(self, source: Any) -> None:
        self._source = source

    def token_hex(self, count: int) -> str:
        return f"{self._source.getrandbits(8 * count):0{2 * count}x}"


class SimulatedThread:
    """What product modules see in place of `threading.Thread`: an actor of the machine that starts it."""

    def __init__(
        self, world: World, target: Callable[..., object], args: Sequence[Any] = (), daemon: bool = True
    ) -> None:
        self._world = world
        self._work = lambda: target(*args)
        self._actor: Actor | None = None

    def start(self) -> None:
        assert self._world.caller is not None
        self._actor = self._world.caller.spawn("thread", self._work)

    def is_alive(self) -> bool:
        return self._actor is not None and not self._actor.ended

    def join(self, timeout: float | None = None) -> None:
        while self.is_alive():
            self._world.engine.sleep(0.1)


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def _clocked(world: World) -> type[datetime]:
    class Clocked(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
            return world.clock()

    return Clocked


class SimulatedStore(Store):
    """A bucket: strongly consistent single requests, each of which takes time and may go wrong."""

    def __init__(self, world: World, patience_seconds: float = STORE_SECONDS) -> None:
        self._world = world
        self.root = "s3://simulated"
        self.patience_seconds = patience_seconds

    def _request(self, operation: str, key: str, effect: Callable[[], Any]) -> Any:
        """Perform a request, and retry for `patience_seconds` while it is not answered, as the product's client does."""
        engine = self._world.engine
        if engine.current is None:  # a test looks
            return effect()
        deadline = engine.now + self.patience_seconds
        while True:
            answered, answer = self._try(operation, effect)
            if answered:
                return answer
            if engine.now >= deadline:
                raise StoreUnreachable(operation, self.url(key), "no answer", tried_seconds=self.patience_seconds)
            engine.sleep(self._world.random.uniform(0.5, 2.0))

    def _try(self, operation: str, effect: Callable[[], Any]) -> tuple[bool, Any]:
        """Send a request once, and return whether there is an answer, and which."""
        world = self._world
        engine = world.engine
        world.requests += 1
        fate = self._fate(operation)
        if fate == "lose" and world.caller is not None:
            world.caller.lose()
        if fate == "freeze" and world.caller is not None:
            world.caller.freeze(90.0)
        engine.sleep(world.random.uniform(0.01, 0.1))
        if fate == "slow":
            engine.sleep(world.random.uniform(1, 30))
        cut_off = world.caller is not None and world.caller.id in world.unreachable | world.storeless
        if world.outage or cut_off or fate == "lost":
            engine.sleep(3.0)
            return False, None
        if fate == "late":
            engine.later(world.random.uniform(0, 60), lambda: _ignore(effect))
            engine.sleep(3.0)
            return False, None
        answer = effect()
        if fate == "unanswered":
            engine.sleep(3.0)
            return False, None
        engine.sleep(world.random.uniform(0.01, 0.05))
        return True, answer

    def _fate(self, operation: str) -> str:
        chaos = self._world.chaos
        if self._world.requests in chaos.planned:
            return chaos.planned[self._world.requests]
        chances = {"lost": chaos.lost, "unanswered": chaos.unanswered, "slow": chaos.slow}
        if operation in ("write", "create", "delete"):
            chances["late"] = chaos.late
        drawn = self._world.random.random()
        for fate, chance in chances.items():
            if drawn < chance:
                return fate
            drawn -= chance
        return ""

    def _put(self, key: str, data: bytes) -> None:
        count = self._world.requests
        self._world.objects[key] = (data, str(count), EPOCH.timestamp() + self._world.engine.now)

    def read(self, key: str, at_most: int | None = None) -> bytes:
        def effect() -> bytes:
            if key not in self._world.objects:
                raise NotFound("read", self.url(key), "there is no such object")
            return self._world.objects[key][0]

        data: bytes = self._request("read", key, effect)
        return data

    def read_range(self, key: str, start: int, length: int) -> bytes:
        return self.read(key)[start : start + length]

    def write(self, key: str, data: bytes) -> None:
        self._request("write", key, lambda: self._put(key, bytes(data)))

    def write_parts(self, key: str, parts: Sequence[memoryview]) -> None:
        self.write(key, b"".join(parts))

    def create(self, key: str, data: bytes) -> bool:
        writer = object()  # the client marks its object, and recognises it if the first answer was lost

        def effect() -> bool:
            if key in self._world.objects:
                return self._world.writers.get(key) is writer
            self._put(key, data)
            self._world.writers[key] = writer
            self._created(key, data)
            return True

        created: bool = self._request("create", key, effect)
        return created

    def _created(self, key: str, data: bytes) -> None:
        if key.endswith(".over.json"):
            end = json.loads(data)
            self._world.over.append(RunOver(self._world.engine.now, end["exit_code"], end["launch"]))

    def list(self, prefix: str = "") -> list[Stat]:
        below = prefix if not prefix or prefix.endswith("/") else f"{prefix}/"

        def effect() -> list[Stat]:
            return [
                Stat(key, len(data), etag, at)
                for key, (data, etag, at) in sorted(self._world.objects.items())
                if key.startswith(below)
            ]

        first: list[Stat] = self._request("list", prefix, effect)
        if self._world.engine.current is None or self._world.random.random() >= self._world.chaos.torn:
            return first
        # Pages: keys up to the middle as they were, later ones as they are now.
        middle = first[len(first) // 2].key if first else below
        second: list[Stat] = self._request("list", prefix, effect)
        return [each for each in first if each.key < middle] + [each for each in second if each.key >= middle]

    def folders(self, prefix: str = "") -> list[str]:
        return sorted({stat.key.removeprefix(prefix).partition("/")[0] for stat in self.list(prefix) if "/" in stat.key.removeprefix(prefix)})  # fmt: skip

    def stat(self, key: str) -> Stat | None:
        def effect() -> Stat | None:
            held = self._world.objects.get(key)
            return None if held is None else Stat(key, len(held[0]), held[1], held[2])

        stat: Stat | None = self._request("stat", key, effect)
        return stat

    def delete(self, key: str) -> None:
        self._request("delete", key, lambda: self._world.objects.pop(key, None))

    def delete_all(self, prefix: str) -> None:
        for stat in self.list(prefix):
            self.delete(stat.key)

    def upload(self, path: Path | str, key: str, progress: Progress | None = None, sha256: str | None = None) -> str:
        raise AssertionError("no files here")

    def download(self, key: str, path: Path | str, sha256: str | None = None, progress: Progress | None = None) -> None:
        raise AssertionError("no files here")

    def local_path(self, key: str) -> Path | None:
        return None

    def patient(self, seconds: float) -> Store:
        return SimulatedStore(self._world, seconds)


def _ignore(effect: Callable[[], object]) -> None:
    with contextlib.suppress(NotFound, CloudError):
        effect()


def _method(operation: str) -> str:
    return re.sub("(?=[A-Z])", "_", operation).lower()


@dataclass
class Group:
    """An Auto Scaling group."""

    name: str
    maximum: int
    has_hook: bool
    tags: list[dict[str, Any]] = field(default_factory=list)
    desired: int = 0
    members: list[str] = field(default_factory=list)  # ids, whether alive or not

    @property
    def launch(self) -> str:
        return self.name.split("-")[-2]


class SimulatedCloud:
    """Auto Scaling and EC2, as their documentation describes them.

    A new machine waits in Pending:Wait if the group has a launch hook: there nothing checks its health, and it is
    replaced only when the hook is abandoned, or after two hours. In service it is replaced about a minute after its end.
    """

    ROUND = 10.0

    def __init__(self, world: World) -> None:
        self.world = world
        self.groups: dict[str, Group] = {}
        self.requests = 0
        self.capacity = 10**6  # machines that may run at the same time
        self._count = 0
        self.world.engine.later(self.ROUND, self._round)

    @property
    def running(self) -> list[Machine]:
        return [machine for machine in self.world.machines.values() if machine.ended is None]

    def _create_launch_template(self, parameters: dict[str, Any]) -> dict[str, Any]:
        return {}

    def _create_auto_scaling_group(self, parameters: dict[str, Any]) -> dict[str, Any]:
        name = parameters["AutoScalingGroupName"]
        if name in self.groups:
            raise CloudError("already exists", fix="", code="AlreadyExists")
        hooks = [each for each in parameters["LifecycleHookSpecificationList"] if each["DefaultResult"] == "ABANDON"]
        self.groups[name] = Group(
            name, parameters["MaxSize"], has_hook=bool(hooks) and self.world.hooks, tags=parameters["Tags"]
        )
        return {}

    def _put_scheduled_update_group_action(self, parameters: dict[str, Any]) -> dict[str, Any]:
        name = parameters["AutoScalingGroupName"]

        def kill() -> None:
            if name in self.groups:
                self.groups[name].maximum = parameters["MaxSize"]
                self._resize(self.groups[name], parameters["DesiredCapacity"])

        after = (parameters["StartTime"] - self.world.engine.time).total_seconds()
        if after <= 0:
            raise CloudError("Given start time is in the past", fix="", code="ValidationError")
        self.world.engine.later(after, kill)
        return {}

    def _round(self) -> None:
        for group in list(self.groups.values()):
            self._keep(group)
        self.world.engine.later(self.ROUND, self._round)

    def _keep(self, group: Group) -> None:
        now = self.world.engine.now
        for name in list(group.members):
            machine = self.world.machines[name]
            if machine.waits and now - machine.hook_at >= HOOK_SECONDS:
                self.abandon(machine)
            elif (
                not machine.waits
                and machine.ended is not None
                and now - machine.ended > self.world.random.uniform(10, 90)
            ):
                group.members.remove(name)
        while len(group.members) < group.desired and len(self.running) < self.capacity:
            self._start(group)

    def _start(self, group: Group) -> None:
        self._count += 1
        machine = Machine(self.world, f"i-{self._count:04x}", group)
        self.world.machines[machine.id] = machine
        group.members.append(machine.id)
        machine.power_on()

    def abandon(self, machine: Machine) -> None:
        machine.waits = False
        machine.lose()
        machine.stopped = False
        if machine.id in machine.group.members:
            machine.group.members.remove(machine.id)

    def _resize(self, group: Group, desired: int) -> None:
        group.desired = desired
        for name in group.members[desired:]:
            group.members.remove(name)
            self.world.machines[name].power_button()

    # The API, as `AwsSession` offers it.

    region = "us-east-2"
    identity = SimpleNamespace(account="1", arn="test")

    def offers(self, service: str, region: str) -> bool:
        return True

    def perform(self, call: Call, region: str | None = None) -> dict[str, Any]:
        call.body()  # botocore checks the request
        world = self.world
        world.engine.sleep(world.random.uniform(0.05, 0.5))
        failed = CloudError(
            f"{call.operation}: no answer", fix="try again", cause="capacity", code="ConnectionClosedError"
        )
        caller = world.caller
        if caller is not None and caller.id in world.unreachable | world.cloudless:
            world.engine.sleep(5.0)
            raise failed
        if world.throttled and call.mutates:
            world.engine.sleep(world.random.uniform(1, 20))  # botocore's own retries
            raise CloudError(f"{call.operation}: Rate exceeded", fix="wait", cause="capacity", code="Throttling")
        if caller is None and world.sleepy and call.mutates and world.random.random() < 0.3:
            world.engine.sleep(world.random.uniform(0, world.sleepy))
        self.requests += 1
        fate = world.chaos.planned_cloud.get(self.requests, "")
        if not fate and world.random.random() < world.chaos.cloud:
            fate = world.random.choice(["lost", "unanswered", "late", "slow"])
        if fate == "slow":
            world.engine.sleep(world.random.uniform(1, 60))
        if fate == "late" and call.mutates:
            effect = partial(getattr(self, _method(call.operation)), dict(call.parameters))
            world.engine.later(world.random.uniform(0, 60), lambda: _ignore(effect))
        if fate in ("lost", "late"):
            raise failed
        answer: dict[str, Any] = getattr(self, _method(call.operation))(dict(call.parameters))
        if fate == "unanswered":
            raise failed
        for described in (one for each in answer.get("Reservations", []) for one in each["Instances"]):
            machine = world.machines[described["InstanceId"]]
            machine.end_described = machine.end_described or machine.ended is not None
        return answer

    def items(self, call: Call, key: str, region: str | None = None) -> Iterator[Any]:
        yield from self.perform(call, region)[key]

    def _group(self, parameters: dict[str, Any]) -> Group:
        name = parameters["AutoScalingGroupName"]
        if name not in self.groups:
            raise CloudError(f"AutoScalingGroup name not found - {name}", fix="", code="ValidationError")
        return self.groups[name]

    def _set_desired_capacity(self, parameters: dict[str, Any]) -> dict[str, Any]:
        group = self._group(parameters)
        if parameters["DesiredCapacity"] > group.maximum:
            raise CloudError("New SetDesiredCapacity value is above max value", fix="", code="ValidationError")
        self._resize(group, parameters["DesiredCapacity"])
        return {}

    def _describe_auto_scaling_groups(self, parameters: dict[str, Any]) -> dict[str, Any]:
        names = parameters.get("AutoScalingGroupNames", list(self.groups))
        groups = [self.groups[name] for name in names if name in self.groups]
        return {"AutoScalingGroups": [self._described(group) for group in groups]}

    def _described(self, group: Group) -> dict[str, Any]:
        members = [
            {
                "InstanceId": name,
                "LifecycleState": "Pending:Wait" if self.world.machines[name].waits else "InService",
                "HealthStatus": "Healthy",
            }
            for name in group.members
        ]
        return {
            "AutoScalingGroupName": group.name,
            "DesiredCapacity": group.desired,
            "MaxSize": group.maximum,
            "Instances": members,
            "Tags": group.tags,
        }

    def _update_auto_scaling_group(self, parameters: dict[str, Any]) -> dict[str, Any]:
        self._resize(self._group(parameters), parameters["DesiredCapacity"])
        return {}

    def _describe_regions(self, parameters: dict[str, Any]) -> dict[str, Any]:
        return {"Regions": [{"RegionName": self.region}]}

    def _describe_parameters(self, parameters: dict[str, Any]) -> dict[str, Any]:
        return {"Parameters": []}

    def _list_roles(self, parameters: dict[str, Any]) -> dict[str, Any]:
        return {"Roles": []}

    def _describe_instances(self, parameters: dict[str, Any]) -> dict[str, Any]:
        filters = {each["Name"]: each["Values"] for each in parameters.get("Filters", [])}
        groups = filters.get("tag:aws:autoscaling:groupName")
        states = filters.get("instance-state-name")
        names = parameters.get("InstanceIds")
        listed = [
            machine
            for machine in self.world.machines.values()
            if (machine.ended is None or self.world.engine.now - machine.ended < 3600)
            and (groups is None or machine.group.name in groups)
            and (names is None or machine.id in names)
        ]
        instances = [machine.described() for machine in listed]
        chosen = [each for each in instances if states is None or each["State"]["Name"] in states]
        return {
            "Reservations": [{"Instances": chosen}],
            "ResponseMetadata": {"HTTPHeaders": {"date": self.world.engine.time.strftime("%a, %d %b %Y %H:%M:%S GMT")}},
        }

    def _terminate_instances(self, parameters: dict[str, Any]) -> dict[str, Any]:
        for name in parameters["InstanceIds"]:
            self.world.machines[name].power_button()
        return {}

    def _terminate_instance_in_auto_scaling_group(self, parameters: dict[str, Any]) -> dict[str, Any]:
        machine = self.world.machines[parameters["InstanceId"]]
        if machine.id not in machine.group.members:
            raise CloudError("Instance Id not found", fix="", code="ValidationError")
        machine.group.members.remove(machine.id)
        machine.waits = False
        if parameters["ShouldDecrementDesiredCapacity"]:
            machine.group.desired -= 1
        machine.power_button()
        return {}

    def _delete_auto_scaling_group(self, parameters: dict[str, Any]) -> dict[str, Any]:
        self.delete_group(self._group(parameters).name)
        return {}

    def delete_group(self, name: str) -> None:
        self._resize(self.groups[name], 0)
        del self.groups[name]

    def _waiting(self, parameters: dict[str, Any]) -> Machine:
        machine = self.world.machines.get(parameters["InstanceId"])
        if machine is None or not machine.waits:
            raise CloudError("No active Lifecycle Action found with instance ID", fix="", code="ValidationError")
        return machine

    def _complete_lifecycle_action(self, parameters: dict[str, Any]) -> dict[str, Any]:
        machine = self._waiting(parameters)
        if parameters["LifecycleActionResult"] == "CONTINUE":
            machine.waits = False
            machine.proven = self.world.engine.now
        else:
            self.abandon(machine)
        return {}

    def _record_lifecycle_action_heartbeat(self, parameters: dict[str, Any]) -> dict[str, Any]:
        self._waiting(parameters).hook_at = self.world.engine.now
        return {}

    def _delete_launch_template(self, parameters: dict[str, Any]) -> dict[str, Any]:
        return {}

    def _delete_placement_group(self, parameters: dict[str, Any]) -> dict[str, Any]:
        return {}

    def _get_console_output(self, parameters: dict[str, Any]) -> dict[str, Any]:
        return {"Output": ""}

    def _describe_auto_scaling_instances(self, parameters: dict[str, Any]) -> dict[str, Any]:
        listed = [
            {**each, "AutoScalingGroupName": group.name}
            for group in self.groups.values()
            for each in self._described(group)["Instances"]
            if each["InstanceId"] in parameters["InstanceIds"]
        ]
        return {"AutoScalingInstances": listed}

    def _describe_scaling_activities(self, parameters: dict[str, Any]) -> dict[str, Any]:
        machines = [
            each for each in self.world.machines.values() if each.group.name == parameters["AutoScalingGroupName"]
        ]
        return {"Activities": [each.launch_activity() for each in reversed(machines)]}


class Machine:
    """An EC2 instance: boots, runs the product's node agent, and ends."""

    def __init__(self, world: World, name: str, group: Group) -> None:
        self.world = world
        self.id = name
        self.group = group
        self.launched = world.engine.now
        self.skew = world.random.choice(world.skews)
        self.ended: float | None = None
        self.stopped = False  # it ended as a stopped machine, which keeps its place while it waits for its proof
        self.waits = group.has_hook
        self.hook_at = self.launched
        self.end_described = False  # EC2 has told somebody that it has ended
        self.proven: float | None = None  # when its hook was completed
        self.noticed: Notice | None = None
        self.agent: NodeAgent | None = None
        self.actors: list[Actor] = []
        self.jobs: list[SimulatedJob] = []

    @property
    def billed_seconds(self) -> float:
        until = self.world.engine.now if self.ended is None else self.ended
        return max(MINIMUM_SECONDS, until - self.launched)

    def described(self) -> dict[str, Any]:
        ended = self.ended is not None
        at = (EPOCH + timedelta(seconds=self.ended or 0.0)).strftime("%Y-%m-%d %H:%M:%S")
        return {
            "InstanceId": self.id,
            "LaunchTime": EPOCH + timedelta(seconds=self.launched),
            "State": {"Name": "stopped" if self.stopped else "terminated" if ended else "running"},
            "StateTransitionReason": f"User initiated ({at} GMT)" if ended else "",
            "InstanceType": "p5.48xlarge",
            "Tags": [{"Key": "aws:autoscaling:groupName", "Value": self.group.name}, *self.group.tags],
        }

    def launch_activity(self) -> dict[str, Any]:
        """Return how the group's history describes this machine's launch, which lasts until its hook is completed."""
        proven = self.launched if not self.group.has_hook else self.proven
        at = {} if proven is None else {"EndTime": EPOCH + timedelta(seconds=proven)}
        status = "WaitingForInstanceWarmup" if self.waits else "Cancelled" if proven is None else "Successful"
        description = f"Launching a new EC2 instance: {self.id}"
        return {
            "Description": description,
            "StartTime": EPOCH + timedelta(seconds=self.launched),
            "StatusCode": status,
            **at,
        }

    def power_on(self) -> None:
        self.world.say(f"{self.id} starts")
        self.spawn("boot", self._boot)

    def spawn(self, name: str, work: Callable[[], object]) -> Actor:
        actor = self.world.spawn(f"{self.id} {name}", work, self)
        self.actors.append(actor)
        return actor

    def _boot(self) -> None:
        self.world.engine.sleep(self.world.random.uniform(30, 90))
        trouble = self.world.failing(self)
        if trouble is not None:
            self.world.say(f"{self.id} ends in boot: {trouble}")
            self._end()
            return
        self.spawn("agent", self._run_agent)

    def _run_agent(self) -> None:
        """Do what systemd does: run `skytrain node`, and shut down when it has ended."""
        request = node.NodeRequest(RUN, [], self.world.nodes, 1, launch=self.group.launch)
        try:
            machines = Ec2Launcher().machines(self.world.config, request, self.id, self.tell)  # type: ignore[arg-type]
            code = node.run_node(self.world.config, request, self.tell, machines)  # type: ignore[arg-type]
            self.world.say(f"{self.id}: the agent exits with {code}")
        except SkytrainError as error:
            self.world.say(f"{self.id}: the agent fails: {error}")
        self._end()

    def tell(self, text: str) -> None:
        self.world.say(f"{self.id}: {text.splitlines()[0]}")

    # As the metadata service.

    def instance(self) -> Ec2Instance:
        launched = EPOCH + timedelta(seconds=self.launched)
        return Ec2Instance(
            id=self.id,
            type="p5.48xlarge",
            region="us-east-2",
            market="spot",
            launched_at=launched,
            read_at=self.world.engine.time,
        )

    def get(self, path: str) -> str:
        return self.id

    def notice(self) -> Notice | None:
        return self.noticed

    def _end(self) -> None:
        """Shut down from within."""
        if self.ended is None:
            self.ended = self.world.engine.now
            self.world.say(f"{self.id} has shut itself down")
        self._kill_actors()

    def start(self, generation: JobGeneration, rank: int) -> SimulatedJob:
        """Start the job of a generation, as `TrainCommand` does."""
        host = generation.members[rank]
        self.world.started_jobs.append(
            StartedJob(
                at=self.world.engine.now, generation=generation.number, rank=rank, host=host, launch=self.group.launch
            )
        )
        job = SimulatedJob(self, generation, rank)
        self.jobs.append(job)
        job.actor = self.spawn(f"job {generation.number}", job.run)
        return job

    def power_button(self) -> None:
        """EC2 ends the machine: billing stops, its system gets a signal, and soon the power is cut."""
        if self.ended is not None:
            return
        self.ended = self.world.engine.now
        self.world.say(f"{self.id} is terminated by EC2")
        if self.agent is not None:
            self.agent._handle(signal.SIGTERM, None)
        self.world.engine.later(30.0, self._kill_actors)

    def lose(self) -> None:
        """The machine is gone, without a word."""
        if self.ended is None:
            self.ended = self.world.engine.now
            self.world.say(f"{self.id} is lost")
        self._kill_actors()

    def stop(self) -> None:
        """The hardware fails, and EC2 stops the machine."""
        if self.ended is None:
            self.stopped = True
            self.lose()

    def freeze(self, seconds: float) -> None:
        self.world.say(f"{self.id} is frozen for {seconds:.0f} s")
        for actor in self.actors:
            actor.frozen_until = self.world.engine.now + seconds

    def _kill_actors(self) -> None:
        current = self.world.engine.current
        for job in self.jobs:
            job.code = 137 if job.code is None else job.code
        for actor in self.actors:
            if actor is not current:
                self.world.engine.kill(actor)
        if current in self.actors:
            raise Killed


class SimulatedJob:
    """The job of a generation on one machine. Node 0 claims an attempt, resumes, and commits with the product's code."""

    def __init__(self, machine: Machine, generation: JobGeneration, rank: int) -> None:
        self.machine = machine
        self.world = machine.world
        self.generation = generation
        self.rank = rank
        self.code: int | None = None
        self.joined = False
        self.stopping = False
        self.step: int | None = None
        self.actor: Actor | None = None
        self.store = machine.world.store.patient(1800.0)

    def poll(self) -> int | None:
        return self.code

    def stop(self) -> None:
        self.stopping = True

    def kill(self) -> None:
        self.code = 137
        if self.actor is not None:
            self.world.engine.kill(self.actor)

    def run(self) -> None:
        try:
            code = self._train()
        except (Superseded, GenerationOver, TakenOver):
            code = EXIT_CODES[SUPERSEDED]
        except CheckpointError:
            code = 1
        except StoreUnreachable:
            code = EXIT_CODES["store"]
        except DamagedRecord:
            code = EXIT_CODES["damaged"]
        self.code = self.code if self.code is not None else code

    def _peers(self) -> list[SimulatedJob | None]:
        """Return the jobs of all members that this one can reach, in the order of ranks."""
        return [self._peer(host.rpartition(".")[0]) for host in self.generation.members]

    def _peer(self, name: str) -> SimulatedJob | None:
        machine = self.world.machines[name]
        if frozenset((name, self.machine.id)) in self.world.separated:
            return None
        jobs = [job for job in machine.jobs if job.generation == self.generation]
        return jobs[-1] if jobs and machine.ended is None else None

    def _train(self) -> int:
        engine = self.world.engine
        engine.sleep(self.world.random.uniform(5, 15))  # imports
        self.joined = True
        deadline = engine.now + JOIN_SECONDS
        while not all(peer is not None and peer.joined for peer in self._peers()):
            if engine.now > deadline:
                return 1
            if self.stopping:
                return EXIT_CODES[UNCOMMITTED]
            engine.sleep(1.0)
        return self._lead() if self.rank == 0 else self._follow()

    def _alone(self) -> bool:
        """Return whether a member is gone; a job notices that after a while, and fails."""
        return any(peer is None or peer.code not in (None, 0) for peer in self._peers())

    def _follow(self) -> int:
        engine = self.world.engine
        while True:
            leader = self._peers()[0]
            if leader is not None and leader.code in (
                0,
                *(EXIT_CODES[each] for each in ("budget", INTERRUPTED, UNCOMMITTED, SUPERSEDED)),
            ):
                return leader.code
            if self._alone():
                engine.sleep(LOST_PEER_SECONDS)
                return 1
            failed = self.world.job_fails(self.machine, leader.step or 0 if leader else 0)
            if failed is not None:
                return failed
            if self.stopping and leader is not None:
                leader.stopping = True  # the signal reaches every rank by way of the next step's agreement
            engine.sleep(1.0)

    def _lead(self) -> int:
        world = self.world
        store = self.store
        number = self.generation.number
        attempt = claim_attempt(store, RUN, lambda: check_generation(store, RUN, number), generation=number)
        known = committed(store, RUN)
        start = known[-1].step if known else 0
        record_resume(store, RUN, attempt, start)
        world.say(f"{self.machine.id}: attempt {attempt} resumes from step {start}")
        names = [host.rpartition(".")[0] for host in self.generation.members]
        price = Meter([self._metered(world.machines[name]) for name in names], PRICE, read_spend(store, RUN))
        others = HostSpends(store, RUN, without=self.generation.members)
        budget = Budget.of(world.budget)
        saves = 0
        self.step = start
        while True:
            if self.step >= world.steps:
                if self.step > start:
                    self._save(attempt, saves := saves + 1)
                write_outcome(store, RUN, attempt, "done", self.step)
                return 0
            if self.stopping:
                return self._save_and_end(attempt, saves + 1, INTERRUPTED, start)
            asked = None
            with contextlib.suppress(DamagedRecord):
                asked = stop_asked(store, RUN, attempt)
            if asked is not None:
                return self._save_and_end(attempt, saves + 1, "stopped", start)
            with contextlib.suppress(StoreUnreachable, DamagedRecord):  # `Sync` survives any error
                price.note_others(others.read())
            if not budget.can_afford_step(price.spending(), STEP_SECONDS):
                return self._save_and_end(attempt, saves + 1, "budget", start)
            world.engine.sleep(STEP_SECONDS)
            if self._alone():
                world.engine.sleep(LOST_PEER_SECONDS)
                return 1
            failed = world.job_fails(self.machine, self.step + 1)
            if failed is not None:
                return failed
            self.step += 1
            if self.step % world.save_every == 0 and self.step < world.steps:
                self._save(attempt, saves := saves + 1)

    def _metered(self, machine: Machine) -> MeteredMachine:
        age = self.world.engine.now - machine.launched
        launched = EPOCH + timedelta(seconds=machine.launched)
        return MeteredMachine(
            f"{machine.id} {launched.isoformat()}", boot=machine.id, boot_seconds=age, age_seconds=age
        )

    def _save_and_end(self, attempt: int, number: int, outcome: str, start: int) -> int:
        assert self.step is not None
        if self.step > start:
            self._save(attempt, number)
        write_outcome(self.store, RUN, attempt, outcome, self.step)
        return EXIT_CODES[INTERRUPTED] if outcome == "stopped" else EXIT_CODES[outcome]

    def _save(self, attempt: int, number: int) -> None:
        """Write and commit with the product's code."""
        assert self.step is not None
        key = step_key(RUN, self.step)
        folder = save_folder(attempt, number)
        self.store.write(f"{key}/{folder}/rank-00000.bin", b"weights")
        commit(self.store, key, attempt, folder, CheckpointManifest({"rank-00000.bin": SavedFile(7)}))
        self.world.commits.append((self.world.engine.now, self.step, attempt))
        self.world.say(f"{self.machine.id}: committed step {self.step}")
