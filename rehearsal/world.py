"""The rehearsal's world: network, account, store, laptop and hypervisor; and one launched run in it, as seen from outside."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest import mock

from tests.support.faults import FaultProxy
from tests.support.s3 import ACCESS_KEY, SECRET_KEY, start_server

from skytrain.checkpoints import committed_steps
from skytrain.config import compose
from skytrain.jobs import generation_key, list_meeting
from skytrain.pipelines.prepare import prepare
from skytrain.runs import Silent, read_launch, read_metrics
from skytrain.storage import NotFound, Store, open_store

from .account import REGION, Account, account
from .hosts import HostNetwork, MachineParts, host_network, namespaces
from .hypervisor import Hypervisor, Life
from .laptop import PRICES, SETTINGS, Laptop, Wanted

SERVICES = "10.0.255.1"  # the address of AWS, in the base's network
PATIENCE_SECONDS = 900.0
LOOK_SECONDS = 0.3
CONSOLE_CHARACTERS = 2500


class RehearsalFailed(Exception):
    """Something that must hold does not."""


@dataclass
class World:
    """Everything that stands in for AWS, and what runs in it."""

    folder: Path
    network: HostNetwork
    account: Account
    proxy: FaultProxy  # between the store and everyone but the rehearsal itself
    laptop: Laptop
    hypervisor: Hypervisor
    store: Store
    random: random.Random
    say: Callable[[str], None]
    interruptions: int = 12
    baseline: RehearsedRun | None = None  # the run that nobody interrupted
    measured: dict[str, list[dict[str, float]]] = field(default_factory=dict)

    def clean_up(self) -> None:
        """After a failure: end everything, so that the next scenario starts with an empty account."""
        self.proxy.clear()
        with self.account.lock:
            for name in list(self.account.scaling.autoscaling_groups):
                self.account.scaling.delete_auto_scaling_group(name)
            self.account.scaling.scheduled_actions.clear()
            self.account.ec2.launch_templates.clear()
            self.account.ec2.launch_template_name_to_ids.clear()
        deadline = time.monotonic() + 60
        while self.hypervisor.running and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)


@contextlib.contextmanager
def world(seed: int, say: Callable[[str], None]) -> Iterator[World]:
    """Build it, with prepared data in the store; everything is removed at the end."""
    with contextlib.ExitStack() as stack:
        # Not in /tmp: each host has its own.
        name = tempfile.TemporaryDirectory(prefix="skytrain-rehearsal-", dir="/var/tmp", ignore_cleanup_errors=True)
        folder = Path(stack.enter_context(name))
        folder.chmod(0o755)  # the image's Python is in it, and the agent has a user of its own
        network = stack.enter_context(host_network(SERVICES))
        aws = stack.enter_context(account(SERVICES, PRICES))
        process, server = start_server(folder)
        stack.callback(process.wait)
        stack.callback(process.kill)
        proxy = stack.enter_context(FaultProxy(server.port, SERVICES, REGION))
        keys = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_REGION": REGION}
        alone = {"AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": "none", "AWS_SHARED_CREDENTIALS_FILE": "none"}
        ways = {"AWS_ENDPOINT_URL": aws.endpoint, "AWS_ENDPOINT_URL_S3": proxy.url}
        ours = {**keys, **alone, **ways, "AWS_ENDPOINT_URL_S3": server.url}
        stack.enter_context(mock.patch.dict(os.environ, ours))
        laptop = Laptop(folder / "laptop", aws, server.bucket, {**keys, **alone, **ways})
        prepare(compose([*SETTINGS, f"store.root={laptop.root}"]).config, Silent())
        # Real machines need none of these: DNS leads them to AWS, and a GPU machine has enough cores.
        machines = MachineParts(folder / "machines", {**ways, "OMP_NUM_THREADS": "1"}, (ACCESS_KEY, SECRET_KEY))
        hypervisor = stack.enter_context(Hypervisor(aws, network, machines, lambda text: say(f"    {text}")))
        store = open_store(laptop.root)
        yield World(
            folder=folder,
            network=network,
            account=aws,
            proxy=proxy,
            laptop=laptop,
            hypervisor=hypervisor,
            store=store,
            random=random.Random(seed),
            say=say,
        )


@dataclass
class RehearsedRun:
    """One launched run, from outside: the store's objects, its machines and the launching process."""

    world: World
    wanted: Wanted

    def __post_init__(self) -> None:
        self.run = self.wanted.run
        self.store = self.world.store
        self.log = self.world.folder / f"{self.run}.log"
        self.process: subprocess.Popen[bytes] | None = None

    def launch(self, wait: bool = True, follow: bool = True) -> int | None:
        """Start `skytrain launch`; with `wait`, return its exit code."""
        self.process = self.world.laptop.launch(self.wanted, self.log, follow)
        if wait:
            self.until(lambda: self.process is not None and self.process.poll() is not None, "the launch ends")
        return self.process.poll()

    def killed_at(self) -> list[float]:
        """When AWS ends the groups of the launch."""
        record = read_launch(self.store, self.run, "00001")
        return [datetime.fromisoformat(group.kill_at).timestamp() for group in record.groups]

    @property
    def lives(self) -> list[Life]:
        """All machines of the run so far."""
        mark = f"-{self.run}-"
        return [life for life in list(self.world.hypervisor.lives.values()) if mark in life.group]

    def of_generation(self) -> list[Life]:
        """The machines of the newest generation, node 0 first; only those that run."""
        newest = list_meeting(self.store, self.run).newest
        if not newest:
            return []
        members = self.generation(newest)["members"]
        found = [self.world.hypervisor.lives[member.rpartition(".")[0]] for member in members]
        return [life for life in found if life.host.is_on and life.ended is None]

    def generation(self, number: int, kind: str = "") -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.store.read(generation_key(self.run, number, kind)))
        return found

    def step(self) -> int:
        return max((record["step"] for record in read_metrics(self.store, self.run)), default=0)

    def commits(self) -> list[int]:
        return committed_steps(self.store, self.run)

    def exit_code(self) -> int | None:
        """The run's exit code, once it is over."""
        newest = list_meeting(self.store, self.run)
        if not newest.over:
            return None
        return int(self.generation(newest.newest, "over")["exit_code"])

    def is_training(self) -> bool:
        """Whether the newest generation is under way and has claimed its attempt."""
        found = list_meeting(self.store, self.run)
        if not found.newest or found.ended or found.over:
            return False
        return found.newest in self.claimed()

    def claimed(self) -> dict[int, int]:
        """The attempt of each generation."""
        attempts = {}
        for number in self.store.folders(f"runs/{self.run}/attempts/"):
            with contextlib.suppress(NotFound):
                facts = json.loads(self.store.read(f"runs/{self.run}/attempts/{number}/attempt.json"))
                attempts[facts["generation"]] = int(number)
        return attempts

    def until(self, done: Callable[[], Any], what: str, seconds: float = PATIENCE_SECONDS) -> Any:
        """Wait; returns the first true answer."""
        deadline = time.monotonic() + seconds
        while True:
            if found := done():
                return found
            if self.world.hypervisor.problems:
                raise RehearsalFailed(f"the hypervisor failed:\n{self.world.hypervisor.problems[0]}")
            if time.monotonic() > deadline:
                raise RehearsalFailed(f"{self.run}: {what}: not within {seconds:.0f} s\n{self.consoles()}")
            time.sleep(LOOK_SECONDS)

    def consoles(self) -> str:
        parts = [f"launch:\n{self.log.read_text()[-CONSOLE_CHARACTERS:]}"]
        parts += [f"{life.facts.id}:\n{life.host.console[-CONSOLE_CHARACTERS:]}" for life in self.lives[-4:]]
        return "\n".join(parts)

    def wait_until_nothing_is_left(self, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until the account has nothing that costs money, and no machine runs."""
        world = self.world
        self.until(
            # The hypervisor removes a host's namespace a moment after the host is off.
            lambda: not world.account.leftovers() and not world.hypervisor.running and not namespaces(),
            "nothing that costs money",
            seconds,
        )
