"""Node agents that share a process: the product's agents and store, with jobs that train nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from skytrain.aws import Notice
from skytrain.jobs.generations import JobGeneration, MeetingRules
from skytrain.jobs.machines import LocalMachines
from skytrain.jobs.node_agent import AgentLimits, HostServices, NodeAgent
from skytrain.jobs.rendezvous import HostIdentity, MeetingStore
from skytrain.runs import attempt_numbers, stop_asked
from skytrain.storage import Store


@dataclass
class IdleJob:
    """Runs until somebody ends it."""

    generation: JobGeneration
    rank: int
    code: int | None = None

    def poll(self) -> int | None:
        return self.code

    def stop(self) -> None:
        self.code = 7 if self.code is None else self.code

    def kill(self) -> None:
        self.code = 137


class Vanished(BaseException):
    """The machine is gone: the agent does nothing more, not even say so."""


@dataclass
class SimulatedHost:
    """An agent in a thread. `vanish` is a machine that is lost, `job` the job that it runs now."""

    name: str
    agent: NodeAgent
    jobs: list[IdleJob] = field(default_factory=list)
    notice: Notice | None = None
    told: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    exit_code: int | None = None
    thread: threading.Thread | None = None
    vanished: bool = False

    @property
    def job(self) -> IdleJob | None:
        return self.jobs[-1] if self.jobs and self.jobs[-1].code is None else None

    def start(self) -> SimulatedHost:
        self.thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self.thread.start()
        return self

    def _run(self) -> None:
        try:
            self.exit_code = self.agent.run()
        except Vanished:
            return

    def vanish(self) -> None:
        self.vanished = True
        assert self.thread is not None
        self.thread.join()

    def join(self) -> int | None:
        assert self.thread is not None
        self.thread.join(120)
        return self.exit_code


def simulated_host(
    store: Store,
    name: str,
    nodes: int,
    max_restarts: int = 2,
    *,
    beat_seconds: float = 11.0,
    launch: str | None = None,
) -> SimulatedHost:
    identity = HostIdentity.create("simulated", name, f"{nodes}x1", launch)
    host = SimulatedHost(name, None)  # type: ignore[arg-type]

    def start_job(generation: JobGeneration, rank: int) -> IdleJob:
        host.jobs.append(IdleJob(generation, rank))
        return host.jobs[-1]

    def tell(text: str) -> None:
        host.told.append(text)

    def asked_to_stop() -> str | None:  # as the product's agents ask
        found = stop_asked(store, "simulated", max(attempt_numbers(store, "simulated"), default=-1))
        return found.text if found is not None else None

    services = HostServices(
        start_job, dict, notice=lambda: host.notice, health=lambda: host.problems, resumed_step=lambda: 0,
        stop_asked=asked_to_stop,
    )  # fmt: skip
    machines = LocalMachines(tell)
    machines.replace_me = host.replaced.append  # type: ignore[method-assign]
    rules, limits = MeetingRules(nodes, beat_seconds), AgentLimits(max_restarts, 10.0)
    meeting = VanishingMeeting(store, identity, host)
    host.agent = NodeAgent(
        identity=identity,
        address="127.0.0.1",
        meeting=meeting,
        machines=machines,
        services=services,
        rules=rules,
        limits=limits,
        tell=tell,
    )
    return host


class VanishingMeeting(MeetingStore):
    """Every request of a host that has vanished is its last."""

    def __init__(self, store: Store, identity: HostIdentity, host: SimulatedHost) -> None:
        super().__init__(store, identity)
        self._simulated = host

    def __getattribute__(self, name: str):  # type: ignore[no-untyped-def]
        if name in ("beat", "look", "propose", "end") and object.__getattribute__(self, "_simulated").vanished:
            raise Vanished
        return object.__getattribute__(self, name)


def until(done: Callable[[], bool], seconds: float) -> float:
    """Waits, and returns how long it took."""
    began = time.monotonic()
    while not done():
        assert time.monotonic() - began < seconds, f"not within {seconds} s"
        time.sleep(0.05)
    return time.monotonic() - began
