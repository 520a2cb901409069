"""What the machines of a run cost: each from its launch to its end, whatever it does meanwhile."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

import pytest

from skytrain.aws import Ec2Instance
from skytrain.config import compose
from skytrain.jobs import NodeRequest
from skytrain.jobs.node import _agent, _Host
from skytrain.jobs.node_agent import NodeAgent
from skytrain.runs import (
    HostSpends,
    Lines,
    Meter,
    claim_attempt,
    hosts_usd,
    meter,
    new_record,
    now as utc_now,
    read_spend,
    run_status,
    save_run,
    this_machine,
    write_outcome,
)
from skytrain.storage import open_store

RUN, USD_PER_SECOND = "r", 1.0
BEAT_SECONDS, SPEND_SECONDS, OTHERS_SECONDS = 11, 5, 30
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
CONFIG = cache(lambda: compose(["budget.usd_per_hour=3600", "budget.usd=1e6"]).config)


class Machine:
    """A rented machine; AWS bills it from `launched` to `ended`."""

    def __init__(self, world: World, name: str, launched: int) -> None:
        self.world, self.name, self.launched, self.ended = world, name, launched, None
        self.agent: NodeAgent | None = None

    def instance(self) -> Ec2Instance:
        """What its metadata service says now; the machine is then the one that this process runs on."""
        self.world.monkeypatch.setattr(meter, "BOOT_ID", self.world.folder / self.name)
        meter.BOOT_ID.write_text(self.name)
        began = EPOCH + timedelta(seconds=self.launched)
        return Ec2Instance(
            id=self.name,
            type="g5.xlarge",
            region="us-east-2",
            market="spot",
            launched_at=began,
            read_at=EPOCH + timedelta(seconds=self.world.now),
        )

    def start_agent(self) -> None:
        host, request = _Host(self.name, None, self.instance()), NodeRequest(RUN, [], 2, 1, address="127.0.0.1")
        self.agent = _agent(CONFIG(), request, self.world.store, host, lambda text: None)
        self.agent._write_beat("away")

    def billed(self) -> float:
        return ((self.world.now if self.ended is None else self.ended) - self.launched) * USD_PER_SECOND


class World:
    """Machines, their agents' heartbeats and the job's records, on one clock."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store, self.folder, self.monkeypatch, self.now = open_store(str(folder / "store")), folder, monkeypatch, 0
        self.machines: dict[str, Machine] = {}
        self.job: tuple[int, Meter, HostSpends, Lines] | None = None
        monkeypatch.setattr(meter, "boot_clock", lambda: self.now - 1e6)  # below any machine's age, as an uptime is
        record = new_record(CONFIG(), name=RUN, data={}, tokenizer_id="gpt2", parameters=1, hardware={})
        save_run(self.store, record)

    def launch(self, name: str) -> Machine:
        self.machines[name] = Machine(self, name, self.now)
        return self.machines[name]

    def train(self, *members: Machine) -> None:
        """Begin an attempt on these machines, as rank 0 does."""
        hosts = [member.agent.identity.host for member in members if member.agent is not None]
        running = Meter([this_machine(member.instance()) for member in members], 3600.0, read_spend(self.store, RUN))
        number = claim_attempt(self.store, RUN)
        lines = Lines(self.store, f"runs/{RUN}/attempts/{number}/spend/")
        self.job = (number, running, HostSpends(self.store, RUN, hosts), lines)

    def end_job(self, outcome: str | None) -> None:
        assert self.job is not None
        if outcome is not None:
            self._write_spend()
            write_outcome(self.store, RUN, self.job[0], outcome, 1)
        self.job = None

    def _write_spend(self) -> None:
        assert self.job is not None
        _, running, _, lines = self.job
        lines.write({"at": utc_now(), "step": 1, **running.record()})
        lines.flush()

    def until(self, moment: int) -> None:
        while self.now < moment:
            self.now += 1
            for machine in self.machines.values():
                if machine.agent is not None and machine.ended is None and self.now % BEAT_SECONDS == 0:
                    machine.agent._write_beat("ready")
            if self.job is not None and self.now % OTHERS_SECONDS == 0:
                self.job[1].note_others(self.job[2].read())
            if self.job is not None and self.now % SPEND_SECONDS == 0:
                self._write_spend()

    def check(self, lives: int) -> None:
        """The store counts at least what is billed for machines with an agent, and at most 15 s per life more."""
        billed = sum(machine.billed() for machine in self.machines.values() if machine.agent is not None)
        counted = sum(count.usd for count in read_spend(self.store, RUN).counts.values())
        assert billed <= counted <= billed + 15 * lives * USD_PER_SECOND
        shown = run_status(self.store, RUN, 100).usd or 0.0
        assert shown == pytest.approx(counted)


def test_every_machine_counts_from_its_launch_to_its_end_across_generations_and_while_it_waits(tmp_path, monkeypatch):
    world = World(tmp_path, monkeypatch)
    a = world.launch("i-a")
    world.until(60)
    b = world.launch("i-b")
    world.until(180)
    a.start_agent()  # three minutes of boot are billed
    assert hosts_usd(world.store, RUN)[0] == pytest.approx(180 + 13)
    world.until(240)
    b.start_agent()
    world.until(420)  # both wait
    world.check(lives=2)
    world.train(a, b)
    world.until(500)
    c = world.launch("i-c")
    world.until(620)
    c.start_agent()  # a spare, which waits while the others train
    world.until(700)
    assert world.job is not None
    billed = sum(each.billed() for each in (a, b, c))
    assert billed <= world.job[1].usd() <= billed + 3 * 15  # what the budget is compared with
    world.check(lives=3)
    world.end_job("interrupted")  # b gets a notice
    assert b.agent is not None
    b.agent._end()
    world.until(710)
    b.ended = 710
    world.train(a, c)
    world.until(900)
    world.check(lives=3)
    a.ended = 900  # it vanishes, and the job with it
    world.end_job(None)
    d = world.launch("i-d")
    world.until(1000)
    world.check(lives=3)
    d.start_agent()
    world.train(c, d)
    world.until(1200)
    world.end_job("done")
    for each in (c, d):
        assert each.agent is not None
        each.agent._end()
        each.ended = 1205
    world.until(1300)
    world.check(lives=4)
    counts = read_spend(world.store, RUN).counts
    assert {key.split()[0]: round(count.seconds) for key, count in counts.items()} == {
        "i-a": pytest.approx(900, abs=15),
        "i-b": pytest.approx(650, abs=15),
        "i-c": pytest.approx(705, abs=15),
        "i-d": pytest.approx(305, abs=15),
    }
