"""A host of a run: builds the node agent from a configuration and this machine."""

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

from ..aws import Ec2Instance, Metadata, find_metadata, read_secrets
from ..config import BudgetConfig, Config, SkytrainError
from ..models import check_mesh
from ..planning import Budget, Spending
from ..runs import Meter, attempt_numbers, machine_price, read_fence, read_stop, recorded_usd, stop_asked, this_machine
from ..storage import Store, open_store
from .generations import MeetingRules
from .health import HostNeeds, find_problems
from .machines import LocalMachines, RentedMachines
from .network import address_towards
from .node_agent import AgentLimits, HostServices, NodeAgent
from .node_job import FinishCommand, PrepareCommand, ServeCommand, StartsJobs, TrainCommand, TuneCommand
from .progress import has_met, lasting_progress
from .rendezvous import HostIdentity, MeetingStore

STORE_SECONDS = 5.0  # how long one request is retried; the agent tries again in its next round
LOCK_BYTES = 128  # limit on a run's name in the name of its lock file, which may have 255 bytes
LATE_SECONDS = 2.0  # how late a heartbeat may be
PUBLIC_ADDRESS = "192.0.2.1"  # reserved for documentation; its route is the default route


@dataclass(frozen=True)
class NodeRequest:
    """The arguments of `skytrain node`."""

    run: str
    arguments: Sequence[str]  # of `skytrain train`
    nodes: int
    processes: int
    name: str | None = None  # of this machine
    address: str | None = None
    launch: str | None = None
    job: Literal["train", "prepare", "tune", "serve", "finish"] = "train"
    keep_seconds: float = 0.0  # how long the machine is kept after the run has failed
    keep: bool = False  # it is kept until its kill time after the run is done
    efa_devices: int = 0  # that the machine was rented with


def run_node(
    config: Config, request: NodeRequest, tell: Callable[[str], None], machines: RentedMachines | None = None
) -> int:
    """Take part in a run on this machine until it is over, and return the exit code."""
    if request.job == "train":
        check_mesh(config, request.processes * request.nodes, request.nodes)
    metadata = find_metadata()
    try:
        instance = metadata.instance() if metadata is not None else None
    except OSError as error:
        raise SkytrainError(
            f"EC2's metadata service does not answer: {error}\n"
            "  let this process reach http://169.254.169.254 (IMDSv2), or set AWS_EC2_METADATA_DISABLED=true"
        ) from None
    store = open_store(config.store)
    # Wrong credentials or a wrong address fail here; an outage is waited out.
    store.patient(config.store.patience).exists(f"runs/{request.run}/run.json")
    machine = request.name or (instance.id if instance is not None else platform.node())
    machine = re.sub(r"[^A-Za-z0-9-]", "-", machine)
    with machine_lock(machine, request.run):
        agent = _agent(config, request, store.hurried(STORE_SECONDS), _Host(machine, metadata, instance), tell)
        agent.machines = machines or agent.machines
        agent.handle_signals()
        meeting = MeetingStore(store.patient(config.store.patience), agent.identity)
        dead = meeting.earlier_agents()
        meeting.forget(dead)
        return agent.run(dead)


@dataclass(frozen=True)
class _Host:
    machine: str
    metadata: Metadata | None
    instance: Ec2Instance | None

    def address(self) -> str:
        address = None
        with contextlib.suppress(OSError):  # it answered a moment ago; the route gives the same address
            address = self.metadata.get("meta-data/local-ipv4") if self.metadata is not None else None
        return address or address_towards(PUBLIC_ADDRESS) or "127.0.0.1"


def _agent(config: Config, request: NodeRequest, store: Store, host: _Host, tell: Callable[[str], None]) -> NodeAgent:
    run = request.run
    rules = MeetingRules(request.nodes)
    meter = Meter([this_machine(host.instance)], machine_price(config.budget, host.instance))
    cache = config.loader.cache_dir

    def resumed_step() -> int | None:
        resumed = read_fence(store, run).resumed
        return resumed[max(resumed)] if resumed else None

    # An earlier request does not stop a run that is started again.
    former = read_stop(store.patient(config.store.patience), run)

    def asked_to_stop() -> str | None:
        request = stop_asked(store, run, max(attempt_numbers(store, run), default=-1))
        return request.text if request is not None and request != former else None

    def spend() -> dict[str, Any]:
        # Until the next heartbeat, which may be late: a lost host was rented until then at most.
        return meter.record(in_seconds=rules.beat_seconds + LATE_SECONDS)

    # In the environment of the job only: this process and its records never have them.
    secrets = read_secrets(config) if request.job != "serve" else {}
    commands: dict[str, StartsJobs] = {
        "train": TrainCommand(request.arguments, request.nodes, request.processes, secrets),
        "prepare": PrepareCommand(request.arguments, store, run, secrets),
        "tune": TuneCommand(request.arguments, store, run, machine=host.machine, secrets=secrets),
        "finish": FinishCommand(request.arguments, store, run, secrets),
        "serve": ServeCommand(request.arguments, store, run),
    }
    services = HostServices(
        start_job=commands[request.job].start,
        spend=spend,
        notice=host.metadata.notice if host.metadata is not None else lambda: None,
        health=lambda: find_problems(HostNeeds(request.processes, Path(cache) if cache else None, request.efa_devices)),
        resumed_step=resumed_step,
        stop_asked=asked_to_stop,
        budget_spent=WaitingBudget(store, run, config.budget, meter).spent,
        progress=lambda: lasting_progress(store, run, request.job, config),
        has_met=lambda generation: request.job != "train" or has_met(store, run, generation),
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
            max_restarts=config.trainer.max_restarts,
            stop_seconds=config.trainer.stop_within,
            patience_seconds=config.store.patience,
            keep_seconds=request.keep_seconds,
            keep_after_success=request.keep,
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


class WaitingBudget:
    """The run's estimated cost while its hosts wait: what the newest attempt recorded, and each host's time since.

    All hosts are assumed to cost what this one does: reading every host's record would take too many requests.
    """

    def __init__(self, store: Store, run: str, settings: BudgetConfig, meter: Meter) -> None:
        self._store = store
        self._run = run
        self._budget = Budget.of(settings)
        self._meter = meter
        self._attempt = -1  # whose record was read last
        self._before_usd = 0.0  # the run's cost at that time
        self._own_before_usd = 0.0  # this host's share of it

    def spent(self, hosts: int) -> str | None:
        """Return why the run must end if its budget is spent, or None; `hosts` are rented now."""
        own = self._meter.spending()
        if self._budget.usd is None or own.usd_per_hour is None:
            return None  # there is no limit, so nothing is read from the store
        newest = max(attempt_numbers(self._store, self._run), default=-1)
        if newest > self._attempt:
            self._attempt = newest
            self._own_before_usd = own.usd
            self._before_usd = recorded_usd(self._store, self._run, newest) or self._before_usd
        hosts = max(1, hosts)
        waiting = Spending(self._before_usd + (own.usd - self._own_before_usd) * hosts, own.usd_per_hour * hosts)
        if not self._budget.is_spent(waiting):
            return None
        return f"the budget is spent: ${waiting.usd_in(self._budget.margin_seconds):.2f} of ${self._budget.usd:g}"
