"""Several workers on one sweep: machines with slots in simulated time, kills, lost machines, and real processes."""

from __future__ import annotations

import math
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from skytrain.config import ConfigError, compose
from skytrain.storage import open_store
from skytrain.tuning import HourlyPrice, Ledger, SweepStore, Trial, TrialResult, TuneSession
from skytrain.tuning.driver import SweepSetup, begin_sweep, conclude, finish, limit_of, take
from skytrain.tuning.hosts import RECENT_BEATS, SweepHost, charged_until
from skytrain.tuning.ledger import BudgetError
from skytrain.tuning.slots import check_slots
from skytrain.tuning.strategies.registry import find_strategy
from skytrain.tuning.sweeps import Decision, SweepState
from tests.tuning.simulated import FailingStore, Killed, SimulatedRunner, Truth, loss_of, make_problem

BUDGET, FINAL = 2.4, 1.1
USD_PER_HOUR = 6.0
POLL_SECONDS = 10.0
MOST_SESSIONS = 12


class SimulatedHost(SweepHost):
    """Its clock is the world's, and the world knows who is alive."""

    def __init__(self, world, sweep, session, slot) -> None:
        super().__init__(sweep, session, slot, clock=lambda: world.now)
        self._world = world

    def others(self) -> list[str]:
        return [name for name in self._world.alive if name != self.session.name]

    def recorded_usd(self, number: int) -> float:
        return self._world.spent.get(number, 0.0)


@dataclass
class Slot:
    setup: SweepSetup
    wakes_at: float
    running: tuple[Decision, TrialResult, float] | None = None  # with its start


@dataclass
class World:
    """Machines that start, wait, run trials and are killed, in simulated time; the bill is the machines' time."""

    store: object
    rng: np.random.Generator
    truth: Truth
    strategy: str
    slots: int
    kill_chance: float
    now: float = 0.0
    alive: dict[str, list[Slot]] = field(default_factory=dict)
    sessions: dict[str, TuneSession] = field(default_factory=dict)
    bill: float = 0.0
    spent: dict[int, float] = field(default_factory=dict)  # by trial, over all attempts

    def start_host(self, machine: str) -> None:
        name = f"{machine}-{len(self.sessions)}"
        session = TuneSession(
            name=name,
            machine=machine,
            place=name,
            process="1",
            began=self.now,
            usd_per_hour=USD_PER_HOUR,
            slots=self.slots,
        )
        self.sessions[name] = session
        slots = self.alive[name] = []
        for slot in range(1, self.slots + 1):
            sweep = SweepStore(self.store, "s")
            problem = make_problem(seed=1)
            ledger = Ledger(self.store, sweep.folder, BUDGET)
            runner = SimulatedRunner(self.truth, problem, self.rng)
            host = SimulatedHost(self, sweep, session, slot)
            setup = SweepSetup(
                sweep=sweep,
                ledger=ledger,
                problem=problem,
                strategy=find_strategy(self.strategy),
                runner=runner,
                final_usd=FINAL,
                host=host,
            )
            slots.append(Slot(replace(setup, parallel=2 * self.slots), self.now + 5.0 * self.rng.random()))
        host.beat()
        host.settle(slots[0].setup.ledger, sweep.state())
        host.reserve(slots[0].setup.ledger, sweep.state())
        begin_sweep(slots[0].setup)

    def step(self) -> None:
        """The next slot that wakes up: its trial has ended, or it asks for one."""
        name, slot = min(
            ((name, slot) for name, slots in self.alive.items() for slot in slots), key=lambda one: one[1].wakes_at
        )
        self.now = max(self.now, slot.wakes_at)
        if self.rng.random() < self.kill_chance:
            self.kill(name)
            return
        try:
            self._wake(name, slot)
        except Killed:
            self.kill(name)

    def _wake(self, name: str, slot: Slot) -> None:
        setup = slot.setup
        setup.host.beat()
        if slot.running is not None:
            decision, result, _ = slot.running
            slot.running = None
            self.spent[decision.number] = result.usd
            finish(setup, decision, result)
        taken = take(setup)
        if isinstance(taken, Decision):
            result = self._result(setup, taken)
            slot.running = taken, result, self.now
            slot.wakes_at = self.now + result.session_usd / setup.host.session.slot_usd_per_second
        elif taken is not None and setup.host.can_wait(setup.ledger, setup.sweep.state()):
            slot.wakes_at = self.now + POLL_SECONDS
        else:
            self.alive[name].remove(slot)
            if not self.alive[name]:
                setup.host.leave(setup.ledger, setup.sweep.state())
                self._ended(name)

    def _result(self, setup: SweepSetup, decision: Decision) -> TrialResult:
        rng = np.random.default_rng(decision.number)
        loss = loss_of(self.truth, setup.problem, decision.trial, rng)
        whole = setup.problem.rung(decision.trial.rung).usd * float(np.clip(rng.lognormal(-0.1, 0.3), 0.5, 3.0))
        whole *= 0.3 if math.isinf(loss) else 1.0
        before = self.spent.get(decision.number, 0.0)
        limit = limit_of(setup, decision)
        usd = max(before, min(whole, limit))
        return TrialResult(
            loss=None if whole > limit else loss, usd=usd, seconds=usd * 3600, extra={}, session_usd=usd - before
        )

    def kill(self, name: str) -> None:
        """The machine is gone; what its trials have cost was recorded, and another machine may take its place."""
        for slot in self.alive[name]:
            if slot.running is not None:
                decision, result, began = slot.running
                here = (self.now - began) * self.sessions[name].slot_usd_per_second
                self.spent[decision.number] = result.usd - result.session_usd + min(here, result.session_usd)
        self._ended(name)
        self.start_again(self.sessions[name].machine)

    def start_again(self, machine: str) -> None:
        """As its group does; after many kills in a row the world calms down, so that the sweep ends."""
        if len(self.sessions) > MOST_SESSIONS:
            self.kill_chance, self.store = 0.0, getattr(self.store, "_store", self.store)
        try:
            self.start_host(machine)
        except Killed:
            self.kill(next(reversed(self.sessions)))

    def _ended(self, name: str) -> None:
        self.bill += (self.now - self.sessions[name].began) * USD_PER_HOUR / 3600
        self.alive.pop(name, None)


def random_parallel_sweep(number: int, folder, strategies, machines: int, slots: int) -> None:
    """One sweep on several machines with kills: no dollar too many, no trial lost or paid twice, one answer."""
    rng = np.random.default_rng(number)
    truth = Truth(level=10 ** rng.uniform(-3.3, -2.2), size=rng.uniform(-0.8, -0.2), wall=rng.uniform(0.8, 2.5))
    store = open_store(str(folder))
    failing = FailingStore(store, np.random.default_rng(number + 20_000), 0.004)
    world = World(
        store=failing,
        rng=rng,
        truth=truth,
        strategy=strategies[number % len(strategies)],
        slots=slots,
        kill_chance=0.04,
    )
    for host in range(machines):
        world.start_again(f"host-{host}")
    while world.alive:
        world.step()
    sweep = SweepStore(store, "s")
    ledger = Ledger(store, sweep.folder, BUDGET)
    assert world.bill + FINAL <= BUDGET + 1e-6, f"sweep {number} overspent: {world.bill + FINAL}"
    assert ledger.spent_usd + FINAL <= BUDGET + 1e-6
    assert set(sweep.history()) == {one.number for one in sweep.decisions()}, "a trial was lost"
    assert all(found.usd == pytest.approx(world.spent[each]) for each, found in sweep.history().items())
    assert answer_of(store, world.strategy) == answer_of(store, world.strategy)


def answer_of(store, strategy: str):
    sweep = SweepStore(store, "s")
    ledger = Ledger(store, sweep.folder, BUDGET)
    setup = SweepSetup(
        sweep=sweep,
        ledger=ledger,
        problem=make_problem(seed=1),
        strategy=find_strategy(strategy),
        runner=None,
        final_usd=FINAL,
    )
    try:
        return conclude(setup, sweep.state().observed)
    except BudgetError as error:
        return str(error)  # all diverged


STRATEGIES = ("grid", "greedy", "halving", "random")


def test_random_sweeps_on_machines_with_slots_and_kills_stay_within_budget(tmp_path):
    for number in range(3):
        machines, slots = ((1, 2), (2, 1), (2, 2))[number % 3]
        random_parallel_sweep(number, tmp_path / str(number), STRATEGIES, machines, slots)


@pytest.mark.slow
def test_two_hundred_random_sweeps_on_machines_with_slots_and_kills(tmp_path):
    strategies = ("ladder", *STRATEGIES, "hyperband", "model-scaling", "early-stopping+ladder")
    for number in range(200):
        machines, slots = ((1, 2), (2, 1), (2, 2), (3, 1), (1, 4))[number % 5]
        random_parallel_sweep(number, tmp_path / str(number), strategies, machines, slots)


def test_a_session_is_alive_while_its_heart_beats_and_its_process_exists(tmp_path):
    sweep = SweepStore(open_store(str(tmp_path)), "s")
    price = HourlyPrice(1.0, 0.1)
    mine = SweepHost(sweep, TuneSession.here("a", 0.0, price, 1))
    elsewhere = replace(TuneSession.here("b", 0.0, price, 1), place="another kernel", process="1-1")
    ended = replace(TuneSession.here("c", 0.0, price, 1), process=f"{2**22 - 1}-1")
    namesake = TuneSession.here("a", 0.0, price, 1)
    for session in (elsewhere, ended):
        SweepHost(sweep, session).beat()
    mine.beat()
    assert mine.others() == [elsewhere.name] and mine.twin() is None
    assert mine.is_alive(f"{elsewhere.name}/1") and not mine.is_alive(f"{ended.name}/1")
    silent = tmp_path / sweep.folder / "workers" / f"{elsewhere.name}.json"
    os.utime(silent, (time.time() - 120, time.time() - 120))
    assert mine.others() == [] and not mine.is_alive(f"{elsewhere.name}/1")
    SweepHost(sweep, namesake).beat()
    assert SweepHost(sweep, namesake).twin() == mine.session and mine.twin() is None
    mine.withdraw()  # it has ended
    assert SweepHost(sweep, namesake).twin() is None and mine.twin() == namesake


def test_of_processes_that_start_a_sweep_at_the_same_instant_one_runs_it_and_the_others_name_it(tmp_path):
    sweep = SweepStore(open_store(str(tmp_path)), "s")
    hosts = [SweepHost(sweep, TuneSession.here("a", 0.0, HourlyPrice(1.0, 0.1), 1)) for _ in range(8)]
    barrier = threading.Barrier(len(hosts))

    def start(host: SweepHost) -> TuneSession | None:
        host.beat()
        barrier.wait()
        return host.twin()

    with ThreadPoolExecutor(len(hosts)) as pool:
        found = list(pool.map(start, hosts))
    winners = [host.session for host, twin in zip(hosts, found, strict=True) if twin is None]
    assert len(winners) == 1 and [twin for twin in found if twin is not None] == 7 * winners


def test_more_trials_at_the_same_time_than_cores_are_refused(monkeypatch):
    """64 processes on two cores spent a whole budget on loading torch, and bought no trial."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    words = ["recipe=quickstart", "trainer.device=cpu"]
    with pytest.raises(ConfigError, match=r"need as many cores, and this machine has 2\n  try tune.parallel=2"):
        check_slots(compose([*words, "tune.parallel=3"]).config)
    check_slots(compose([*words, "tune.parallel=2"]).config)


def test_an_idle_slot_is_reserved_while_the_slowest_trial_runs():
    session = TuneSession("m", "m", "p", "1", began=0.0, usd_per_hour=3.6, slots=2)
    decision = Decision(1, Trial("a", 1e-3), 0.05, "grid", limit_usd=0.1, worker="m/1", at=10.0)
    state = SweepState([], [], {}).with_decision(decision)
    # The trial may run for 200 s at half of the price: with 20 s ahead, the machine is paid for 230 s by then.
    assert session.reserve_usd(state, now=10.0) == pytest.approx(0.230 - 0.1)
    assert session.spent_usd(state, 110.0, lambda number: 0.05) == pytest.approx(0.110 - 0.05)
    # It was killed during the start-up of the trial: nothing was recorded, and the machine has cost all of it.
    assert session.spent_usd(state, 110.0, lambda number: 0.0) == pytest.approx(0.110)


def test_the_end_of_a_process_is_charged_before_it_has_come(tmp_path):
    sweep = SweepStore(open_store(str(tmp_path)), "s")
    session = TuneSession.here("a", 0.0, HourlyPrice(3.6, 0.1), 1)
    host = SweepHost(sweep, session, clock=lambda: 100.0)
    host.start_seconds = 20.0
    ledger = Ledger(sweep.store, sweep.folder, 1.0)
    host.beat()
    host.leave(ledger, sweep.state())
    assert ledger.spent_usd == pytest.approx(0.100 + 0.02 * 0.020)


def test_the_end_of_a_process_takes_as_long_as_a_busy_machine_delays_its_heartbeats(tmp_path):
    now = 100.0
    sweep = SweepStore(open_store(str(tmp_path)), "s")
    host = SweepHost(sweep, TuneSession.here("a", 0.0, HourlyPrice(3.6, 0.1), 1), clock=lambda: now)
    ledger = Ledger(sweep.store, sweep.folder, 1.0)
    for late in (0.0, 5.0, *[0.7] * RECENT_BEATS):
        now += host.beat() + late
    host.count_spent(ledger, sweep.state())
    assert ledger.spent_usd == pytest.approx(1e-3 * (now + 0.7))
    for _ in range(RECENT_BEATS):
        now += host.beat()  # the machine is idle again
    host.leave(ledger, sweep.state())
    assert ledger.spent_usd == pytest.approx(1e-3 * now)


def test_a_store_that_takes_long_for_the_last_record_of_a_session_is_charged(tmp_path, monkeypatch):
    now = 100.0
    sweep = SweepStore(open_store(str(tmp_path)), "s")
    host = SweepHost(sweep, TuneSession.here("a", 0.0, HourlyPrice(3.6, 0.1), 1), clock=lambda: now)
    ledger = Ledger(sweep.store, sweep.folder, 1.0)
    host.beat()
    delete = sweep.store.delete

    def slow_delete(key: str) -> None:
        nonlocal now
        now += 30.0
        delete(key)

    monkeypatch.setattr(sweep.store, "delete", slow_delete)
    host.leave(ledger, sweep.state())
    assert ledger.spent_usd == pytest.approx(0.130)


def test_a_machine_that_ends_a_session_and_begins_another_is_charged_once(tmp_path):
    """Its second session counts from the end of the first, whether that left in order or another machine settled it."""
    now = 100.0
    sweep = SweepStore(open_store(str(tmp_path)), "s")
    ledger = Ledger(sweep.store, sweep.folder, 1.0)
    price = HourlyPrice(3.6, 0.1)
    assert charged_until(sweep, "i-1") is None
    host = SweepHost(sweep, TuneSession.here("i-1", 0.0, price, 1), clock=lambda: now)
    host.beat()
    host.leave(ledger, sweep.state())
    assert charged_until(sweep, "i-1") == 100.0 and charged_until(sweep, "i-2") is None
    killed = SweepHost(sweep, TuneSession.here("i-1", 100.0, price, 1), clock=lambda: now)
    now = 160.0
    next_beat = now + killed.beat()
    assert charged_until(sweep, "i-1") == next_beat
    other = SweepHost(sweep, TuneSession.here("i-2", 0.0, price, 1))
    other.others = lambda by_clock=False: []
    other.settle(ledger, sweep.state())
    assert charged_until(sweep, "i-1") == next_beat
    assert ledger.spent_usd == pytest.approx(1e-3 * next_beat)


def test_a_killed_session_is_charged_until_its_next_heartbeat_would_have_come(tmp_path):
    sweep = SweepStore(open_store(str(tmp_path)), "s")
    times = iter([1.0, 1.0, 1.7, 1.7, 400.0, 400.0])  # each heartbeat takes no time itself
    killed = TuneSession("killed", "a", "another place", "1", began=0.0, usd_per_hour=3.6)
    host = SweepHost(sweep, killed, clock=lambda: next(times))
    assert host.beat() == 0.5  # early heartbeats are frequent: half a second of one is a lot
    host.beat()  # it should have come after 1.5 s, so the machine delays heartbeats by 0.2 s
    ledger = Ledger(sweep.store, sweep.folder, 1.0)
    other = SweepHost(sweep, TuneSession("b", "b", "here", "2", began=0.0, usd_per_hour=3.6))
    other.others = lambda by_clock=False: []
    other.settle(ledger, sweep.state())
    assert ledger.spent_usd == pytest.approx(1e-3 * (1.7 + 0.5 + 0.2))
    host._due = 400.0
    assert host.beat() == pytest.approx(2.0)  # half a percent of 400 s
