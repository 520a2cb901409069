"""Hosts of a run that come and go: 2 nodes x 2 ranks, gloo, fsdp, over SeaweedFS, against an undisturbed run.

    python benchmarks/runs/node_campaign.py --blows 12 --log benchmarks/runs/node_campaign.log

Each host is a `skytrain node` with a metadata service of its own. Blows come at random moments, during training, right
after a commit or during a meeting:

lost      the agent is killed with its job, and another machine takes the place
restart   the agent is killed with its job, and starts again on the same machine
rank      one worker is killed
notice    a spot notice, two minutes ahead; another machine takes the place
short     a spot notice, and the machine is lost after five seconds
both      both agents are killed, and two other machines take their places
pause     agent and job freeze for longer than the silence that ends a generation, and wake up when others have taken over
outage    the store answers 503 for a minute

At the end losses and weights must be bit for bit those of the undisturbed run, no generation may have had two node 0s,
attempts must follow the order of generations, and the meter may count no host below its life nor 15 s above.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))  # for tests.support

from tests.support.faults import FaultProxy
from tests.support.imds import FakeMetadata, fake_metadata
from tests.support.s3 import start_server
from tests.support.tiny import TINY, tiny_config

from skytrain.checkpoints import committed_steps, load_model
from skytrain.jobs import list_meeting
from skytrain.jobs.lifeline import lives
from skytrain.jobs.processes import descendants
from skytrain.pipelines.prepare import prepare
from skytrain.runs import Silent, attempt_numbers, boot_clock, read_attempt, read_metrics, read_spend
from skytrain.storage import Store, open_store

STEPS = 60
SETTINGS = (
    *TINY,
    "model.dropout=0.1",
    "trainer.device=cpu",
    "trainer.micro_batch=2",
    f"trainer.steps={STEPS}",
    "trainer.validate_every=20",
    "trainer.checkpoint_every=5",
    "trainer.max_restarts=20",
    "parallel=fsdp",
    "parallel.timeout=20s",
    "budget.usd_per_hour=1",
)
PATIENCE_SECONDS = 900
PAUSE_SECONDS = 90
OUTAGE_SECONDS = 60
SHORT_SECONDS = 5
KINDS = ("lost", "restart", "rank", "notice", "short", "both", "pause", "outage")
MOMENTS = ("training", "commit", "meeting")


class NodeHost:
    """One machine: an agent, its metadata service, and how long it was rented."""

    def __init__(self, campaign: NodeCampaign, run: str, name: str, fake: FakeMetadata) -> None:
        self.name = name
        self.fake = fake
        self.log = campaign.folder / f"{run}-{name}.log"
        self._campaign = campaign
        self._run = run
        self.began = boot_clock()
        self.ended = None
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "skytrain", "node", *self._campaign.settings]
        command += [f"store.root={self._campaign.root}"]
        command += [f"run={self._run}", "--nodes", "2", "--processes", "2", "--address", "127.0.0.1"]
        environment = {**os.environ, "AWS_EC2_METADATA_SERVICE_ENDPOINT": self.fake.url}
        with self.log.open("ab") as out:
            self.agent = subprocess.Popen(command, stdout=out, stderr=out, env=environment, start_new_session=True)

    def kill(self) -> None:
        """The machine is gone, or at least its agent; nothing of its job may stay."""
        below = descendants(self.agent.pid)
        self.agent.kill()
        self.agent.wait()
        self.ended = boot_clock()
        deadline = time.monotonic() + 20
        while any(lives(pid) for pid in below):
            assert time.monotonic() < deadline, f"{self.name}: processes outlived the agent"
            time.sleep(0.1)

    def workers(self) -> list[int]:
        found = []
        for pid in descendants(self.agent.pid):
            try:
                environment = Path(f"/proc/{pid}/environ").read_bytes()
            except OSError:  # it has ended
                continue
            if b"\0LOCAL_RANK=" in environment:
                found.append(pid)
        return found

    def freeze(self, number: signal.Signals) -> None:
        for pid in [self.agent.pid, *descendants(self.agent.pid)]:
            os.kill(pid, number)

    def first_node_of(self) -> set[int]:
        return {int(number) for number in re.findall(r"generation (\d+): node 0 of 2", self.log.read_text())}


class NodeCampaign:
    settings: tuple[str, ...] = SETTINGS

    def __init__(self, folder: Path, root: str, proxy: FaultProxy, seed: int, say: Callable[[str], None]) -> None:
        self.folder = folder
        self.root = root
        self.proxy = proxy
        self.say = say
        self.generator = random.Random(seed)
        self.names = 0
        self.store: Store = open_store(root)
        self.hosts: list[NodeHost] = []
        self.all_hosts: list[NodeHost] = []
        self.stack = ExitStack()

    def new_host(self, run: str) -> NodeHost:
        self.names += 1
        now = datetime.now(UTC).isoformat(timespec="seconds")
        name = f"i-{self.names:03d}"
        fake = self.stack.enter_context(fake_metadata(instanceId=name, pendingTime=now))
        host = NodeHost(self, run, name, fake)
        self.all_hosts.append(host)
        return host

    def until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not done():
            if time.monotonic() > deadline:
                logs = "\n".join(f"{host.name}:\n{host.log.read_text()[-2500:]}" for host in self.hosts)
                raise SystemExit(f"nothing happened for {PATIENCE_SECONDS} s:\n{logs}")
            time.sleep(0.1)

    def done(self) -> bool:
        return any(host.agent.poll() == 0 for host in self.hosts)

    def run(self, run: str, blows: list[str]) -> None:
        self.hosts = [self.new_host(run), self.new_host(run)]
        first = len(self.all_hosts) - 2
        for number, kind in enumerate(blows):
            moment = self.generator.choice(MOMENTS)
            # Evenly over the run, so that each finds it under way.
            self._await(run, moment, (number + 1) * STEPS // (len(blows) + 2))
            if self.done():
                raise SystemExit(f"the run ended before blow {number}")
            before = list_meeting(self.store, run).newest
            getattr(self, kind)(run)
            self.say(f"  blow {number + 1}: {kind}, {moment}; generation {before}, step {self.step(run)}")
        self.until(self.done)
        for host in self.hosts:
            assert host.agent.wait(120) == 0, host.log.read_text()[-3000:]
            host.ended = boot_clock()
        self.check(run, self.all_hosts[first:])

    def step(self, run: str) -> int:
        return max((record["step"] for record in read_metrics(self.store, run)), default=0)

    def _await(self, run: str, moment: str, step: int) -> None:
        if moment == "meeting":
            self.until(lambda: self._newest_commit(run) >= step - 5 or self.done())
            time.sleep(self.generator.uniform(0, 2))
            return
        if moment == "commit":
            self.until(lambda: self._newest_commit(run) >= step or self.done())
        else:
            self.until(lambda: self.step(run) >= step or self.done())
            time.sleep(self.generator.uniform(0, 1))

    def _newest_commit(self, run: str) -> int:
        return max(committed_steps(self.store, run), default=0)

    def _replace(self, run: str, host: NodeHost) -> None:
        self.hosts[self.hosts.index(host)] = self.new_host(run)

    # The blows.

    def lost(self, run: str) -> None:
        host = self.generator.choice(self.hosts)
        host.kill()
        self._replace(run, host)

    def restart(self, run: str) -> None:
        host = self.generator.choice(self.hosts)
        host.kill()
        host.start()

    def rank(self, run: str) -> None:
        self.until(lambda: any(host.workers() for host in self.hosts))
        pids = [pid for host in self.hosts for pid in host.workers()]
        os.kill(self.generator.choice(pids), signal.SIGKILL)

    def notice(self, run: str) -> None:
        host = self.generator.choice(self.hosts)
        host.fake.give_notice()
        self.until(lambda: host.agent.poll() is not None)
        host.ended = boot_clock()
        assert host.agent.returncode in (7, 12), host.log.read_text()[-2000:]
        self._replace(run, host)

    def short(self, run: str) -> None:
        host = self.generator.choice(self.hosts)
        host.fake.give_notice()
        time.sleep(SHORT_SECONDS)
        host.kill()
        self._replace(run, host)

    def both(self, run: str) -> None:
        for host in list(self.hosts):
            host.kill()
            self._replace(run, host)

    def pause(self, run: str) -> None:
        host = self.generator.choice(self.hosts)
        host.freeze(signal.SIGSTOP)
        before, began = list_meeting(self.store, run).newest, time.monotonic()
        self._replace(run, host)
        self.until(lambda: list_meeting(self.store, run).newest > before)
        time.sleep(max(0.0, PAUSE_SECONDS - (time.monotonic() - began)))
        host.freeze(signal.SIGCONT)
        time.sleep(10)  # it must notice by itself that it is late
        host.agent.send_signal(signal.SIGTERM)
        self.until(lambda: host.agent.poll() is not None)
        host.ended = boot_clock()

    def outage(self, run: str) -> None:
        before = list_meeting(self.store, run).newest
        self.proxy.inject("slow_down")
        time.sleep(OUTAGE_SECONDS)
        self.proxy.clear()
        time.sleep(15)
        after = list_meeting(self.store, run).newest
        self.say(f"  outage of {OUTAGE_SECONDS} s: generation {before} before, {after} after")

    # What must hold.

    def check(self, run: str, hosts: list[NodeHost]) -> None:
        first_nodes = defaultdict(list)
        for host in hosts:
            for number in host.first_node_of():
                first_nodes[number].append(host.name)
        two = {number: names for number, names in first_nodes.items() if len(names) > 1}
        assert not two, f"two node 0s in a generation: {two}"
        generations = [
            read_attempt(self.store, run, number)["generation"] for number in attempt_numbers(self.store, run)
        ]
        assert generations == sorted(generations), f"attempts out of order: {generations}"
        counts = read_spend(self.store, run).counts
        off = []
        for host in hosts:
            (count,) = [count for key, count in counts.items() if key.startswith(f"{host.name} ")]
            assert host.ended is not None
            # The meter counts at least the machine's uptime, which all hosts share here.
            off.append(count.seconds - host.ended)
        self.say(
            f"{run}: {len(generations)} attempts in {max(generations)} generations, {len(hosts)} machines; "
            f"the meter is {min(off):.1f} to {max(off):.1f} s above their lives"
        )
        assert min(off) >= 0 and max(off) <= 15, off

    def losses(self, run: str) -> dict[tuple[int, str], float]:
        found = {}
        for record in read_metrics(self.store, run):
            for name in ("train/loss", "val/loss", "train/grad_norm"):
                if name in record:
                    found[record["step"], name] = record[name]
        return found

    def compare(self, run: str, undisturbed: str) -> None:
        expected = self.losses(undisturbed)
        found = self.losses(run)
        assert found == expected, {
            key: (found.get(key), expected[key]) for key in expected if found.get(key) != expected[key]
        }
        weights, mine = (load_model(self.store, f"{each}@{STEPS}").model.state_dict() for each in (undisturbed, run))
        assert all(torch.equal(mine[name], value) for name, value in weights.items())
        self.say(f"{run}: {len(found)} numbers and {len(mine)} weights bit for bit those of the undisturbed run")

    def close(self) -> None:
        for host in self.all_hosts:
            if host.agent.poll() is None:
                host.agent.kill()
                host.agent.wait()
        self.stack.close()


def campaign(folder: Path, blows: int, seed: int, say: Callable[[str], None]) -> Counter[str]:
    process, server = start_server(folder)
    try:
        with FaultProxy(server.port) as proxy:
            os.environ.update(server.environment(proxy.url))
            root = server.new_root()
            prepare(tiny_config(root), Silent())
            found = NodeCampaign(folder, root, proxy, seed, say)
            try:
                kinds = list(KINDS)
                found.generator.shuffle(kinds)
                chosen = [kinds[number % len(kinds)] for number in range(blows)]
                found.run("whole", [])
                found.run("disturbed", chosen)
                found.compare("disturbed", "whole")
                return Counter(chosen)
            finally:
                found.close()
    finally:
        process.kill()
        process.wait()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--blows", type=int, default=12)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--log", type=Path)
    given = arguments.parse_args()
    if given.log:
        given.log.write_text("")

    def say(text: str) -> None:
        print(text, flush=True)
        if given.log:
            with given.log.open("a") as log:
                log.write(text + "\n")

    began = time.monotonic()
    say(f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}, seed {given.seed}")
    with tempfile.TemporaryDirectory(prefix="skytrain-nodes-", ignore_cleanup_errors=True) as folder:
        where = campaign(Path(folder), given.blows, given.seed, say)
    say(json.dumps({"blows": dict(where), "identical": True, "seconds": round(time.monotonic() - began)}))


if __name__ == "__main__":
    main()
