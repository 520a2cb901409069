"""A host of a run: puts the node agent together from a configuration and this machine."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import platform
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..aws import Ec2Instance, Metadata, find_metadata
from ..config import Config, SkytrainError, check_job
from ..runs import Meter, attempt_numbers, machine_price, read_fence, read_stop, stop_asked, this_machine
from ..storage import Store, open_store
from .generations import MeetingRules
from .health import HostNeeds, find_problems
from .host_services import AgentLimits, HostServices
from .machines import LocalMachines, RentedMachines
from .network import address_towards
from .node_agent import NodeAgent
from .node_job import PrepareCommand, ServeCommand, StartsJobs, TrainCommand, TuneCommand
from .rendezvous import HostIdentity, MeetingStore
from .waiting import WaitingBudget

STORE_SECONDS = 5.0  # for which one request is retried; the agent tries again in its next round
LOCK_BYTES = 128  # of a run's name in the name of its lock; a file's name may have 255
LATE_SECONDS = 2.0  # of a heartbeat
PUBLIC_ADDRESS = "192.0.2.1"  # reserved for documentation: its route is the default one


@dataclass(frozen=True)
class NodeRequest:
    """What `skytrain node` was asked for."""

    run: str
    words: Sequence[str]  # of `skytrain train`
    nodes: int
    processes: int
    name: str | None = None  # of this machine
    address: str | None = None
    launch: str | None = None
    job: Literal["train", "prepare", "tune", "serve"] = "train"
    keep_seconds: float = 0.0  # for which the machine stays after the run has failed
    efa_devices: int = 0  # that the machine was rented with


def run_node(
    config: Config, request: NodeRequest, tell: Callable[[str], None], machines: RentedMachines | None = None
) -> int:
    """Take part in a run on this machine until it is over, and return the exit code."""
    if request.job == "train":
        check_job(config, request.processes * request.nodes, request.nodes)
    metadata = find_metadata()
    try:
        instance = metadata.instance() if metadata is not None else None
    except OSError as error:
        raise SkytrainError(
            f"EC2's metadata service does not answer: {error}\n"
            "  let this process reach http://169.254.169.254 (IMDSv2), or set AWS_EC2_METADATA_DISABLED=true"
        ) from None
    store = open_store(config.store)
    # Credentials or an address that are wrong end this here; an outage is waited for.
    store.patient(config.store.patience).exists(f"runs/{request.run}/run.json")
    machine = request.name or (instance.id if instance is not None else platform.node())
    machine = re.sub(r"[^A-Za-z0-9-]", "-", machine)
    with machine_lock(machine, request.run):
        agent = _agent(config, request, store.hurried(STORE_SECONDS), _Host(machine, metadata, instance), tell)
        agent.machines = machines or agent.machines
        agent.handle_signals()
        dead = agent.meeting.earlier_agents()
        agent.meeting.forget(dead)
        return agent.run(dead)


@dataclass(frozen=True)
class _Host:
    machine: str
    metadata: Metadata | None
    instance: Ec2Instance | None

    def address(self) -> str:
        found = None
        with contextlib.suppress(OSError):  # it answered a moment ago; the route gives the same address
            found = self.metadata.get("meta-data/local-ipv4") if self.metadata is not None else None
        return found or address_towards(PUBLIC_ADDRESS) or "127.0.0.1"


def _agent(config: Config, request: NodeRequest, store: Store, host: _Host, tell: Callable[[str], None]) -> NodeAgent:
    run, rules = request.run, MeetingRules(request.nodes)
    meter = Meter([this_machine(host.instance)], machine_price(config.budget, host.instance))
    cache = config.loader.cache_dir

    def resumed_step() -> int | None:
        resumed = read_fence(store, run).resumed
        return resumed[max(resumed)] if resumed else None

    former = read_stop(store, run)  # whoever starts the run again knows of it

    def asked_to_stop() -> str | None:
        request = stop_asked(store, run, max(attempt_numbers(store, run), default=-1))
        return request.text if request is not None and request != former else None

    def spend() -> dict[str, Any]:
        # Until the next heartbeat, which may be late: a host that is lost was rented until then at most.
        return meter.record(in_seconds=rules.beat_seconds + LATE_SECONDS)

    commands: dict[str, StartsJobs] = {
        "train": TrainCommand(request.words, request.nodes, request.processes),
        "prepare": PrepareCommand(request.words, store, run),
        "tune": TuneCommand(request.words, store, run, host.machine),
        "serve": ServeCommand(request.words, store, run),
    }
    services = HostServices(
        start_job=commands[request.job].start,
        spend=spend,
        notice=host.metadata.notice if host.metadata is not None else lambda: None,
        health=lambda: find_problems(HostNeeds(request.processes, Path(cache) if cache else None, request.efa_devices)),
        resumed_step=resumed_step,
        stop_asked=asked_to_stop,
        budget_spent=WaitingBudget(store, run, config.budget, meter).spent,
    )
    identity = HostIdentity.create(run, host.machine, f"{request.nodes}x{request.processes}", request.launch)
    return NodeAgent(
        identity=identity,
        address=request.address or host.address(),
        meeting=MeetingStore(store, identity),
        machines=LocalMachines(tell),
        services=services,
        rules=rules,
        limits=AgentLimits(
            config.trainer.max_restarts, config.trainer.stop_within, config.store.patience, request.keep_seconds
        ),
        tell=tell,
    )


@contextlib.contextmanager
def machine_lock(machine: str, run: str) -> Iterator[None]:
    """Hold the lock that allows one agent per run and machine. Its holder knows that earlier agents have ended."""
    name = run if len(run.encode()) <= LOCK_BYTES else hashlib.sha256(run.encode()).hexdigest()
    path = Path(tempfile.gettempdir()) / f"skytrain-node-{machine}-{name}.lock"
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SkytrainError(
                f"a node agent for run {run!r} is running on {machine} already ({path} is locked)\n"
                "  to act as several nodes on one machine, give each agent its own --name"
            ) from None
        yield
