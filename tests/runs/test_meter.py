import dataclasses
import json
from datetime import UTC, datetime, timedelta

import pytest

from skytrain.aws import Ec2Instance, Metadata
from skytrain.config import SkytrainError, compose
from skytrain.runs import (
    CommandMeter,
    Count,
    HostSpends,
    Lines,
    Meter,
    Spend,
    claim_attempt,
    host_key,
    machine_price,
    meter,
    read_spend,
    this_machine,
    write_outcome,
)
from skytrain.runs.meter import MeteredMachine
from skytrain.storage import Store, open_store
from tests.support.imds import fake_metadata

NO_LIMIT = compose(["budget.margin=0s"]).config.budget


class Clock:
    """A machine's own seconds since it booted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 1000.0
        monkeypatch.setattr(meter, "boot_clock", lambda: self.seconds)

    def machine(self, key: str = "a", age: float = 0.0, boot: str = "boot-1", *, rented: bool = True) -> MeteredMachine:
        return MeteredMachine(key=key, boot=boot, boot_seconds=self.seconds, age_seconds=age, rented=rented)


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def test_dollars_are_price_times_hours_times_machines_from_their_launch(clock):
    running = Meter([clock.machine("a", age=600), clock.machine("b", age=0)], 2.0)
    clock.seconds += 3600
    assert running.usd() == pytest.approx(2.0 * (3600 + 600) / 3600 + 2.0)
    assert running.usd(in_seconds=1800) == pytest.approx(running.usd() + 2.0)


def test_the_gap_after_a_kill_is_counted_while_the_machine_lives(clock):
    first = Meter([clock.machine()], 3.6)
    clock.seconds += 100
    left = first.counts()  # the last that reached the store before the kill
    clock.seconds += 50  # dead, but paid for
    second = Meter([clock.machine()], 3.6, Spend(left))
    clock.seconds += 10
    assert second.usd() == pytest.approx(0.160)


def test_a_heartbeat_that_counts_ahead_is_not_added_to_an_attempts_own_count(clock):
    agent = Meter([clock.machine()], 3.6)
    clock.seconds += 100
    ahead = agent.counts(in_seconds=14)  # as the agent writes it: until its next heartbeat
    clock.seconds += 1
    attempt = Meter([clock.machine()], 3.6, Spend(ahead))
    clock.seconds += 60
    assert attempt.counts()["a"].seconds == pytest.approx(161) and attempt.usd() == pytest.approx(0.161)


def test_machines_that_wait_are_counted_during_an_attempt_and_after_it(clock, tmp_path):
    store = open_store(str(tmp_path))
    waiting = Meter([clock.machine("waits", age=60)], 3.6)
    running = Meter([clock.machine("trains")], 3.6)
    clock.seconds += 100
    key = host_key("r", "ready", "2x1", "waits.0")
    store.write(key, json.dumps({"phase": "meeting", "spend": waiting.record()}).encode())
    spends = HostSpends(store, "r", without=("trains.0",))
    running.note_others(spends.read())
    assert running.usd() == pytest.approx(0.100 + 0.160)
    assert running.record()["machines"].keys() == {"trains", "waits"}
    assert running.usd(in_seconds=10) == pytest.approx(0.110 + 0.170)  # both go on
    assert sum(count.usd for count in read_spend(store, "r").counts.values()) == pytest.approx(0.160)


def test_another_machine_begins_its_own_count_beside_that_of_the_first(clock):
    first = Meter([clock.machine("a")], 3.6)
    clock.seconds += 100
    left = first.counts()
    clock.seconds += 5000  # the first machine is gone: nobody pays for it
    second = Meter([clock.machine("b", age=30, boot="boot-2")], 3.6, Spend(left))
    clock.seconds += 10
    assert second.usd() == pytest.approx(0.100 + 0.040)


def test_two_attempts_at_once_on_one_machine_count_it_once(clock, tmp_path):
    store = open_store(str(tmp_path))
    first = Meter([clock.machine()], 3.6)
    clock.seconds += 100
    second = Meter([clock.machine()], 3.6, Spend(first.counts()))
    clock.seconds += 50
    for each in (first, second):
        lines = Lines(store, f"runs/r/attempts/{claim_attempt(store, 'r')}/spend/")
        lines.write(each.record())
        lines.flush()
    assert sum(count.usd for count in read_spend(store, "r").counts.values()) == pytest.approx(0.150)


def test_a_machine_that_comes_twice_is_paid_once(clock):
    running = Meter([clock.machine(), clock.machine()], 3.6)
    clock.seconds += 100
    assert running.usd() == pytest.approx(0.1) and running.usd_per_hour == 3.6


def test_a_restart_never_resets_the_meter_and_the_newest_line_of_any_attempt_is_enough(clock, tmp_path):
    store = open_store(str(tmp_path))
    for attempt in range(12):
        running = Meter([clock.machine()], 3.6, read_spend(store, "r"))
        lines = Lines(store, f"runs/r/attempts/{attempt}/spend/")
        for _ in range(3):
            clock.seconds += 10
            lines.write(running.record())
        lines.flush()
    (count,) = read_spend(store, "r").counts.values()
    assert (count.usd, count.seconds) == (pytest.approx(0.36), pytest.approx(360))


def test_a_rebooted_instance_counts_from_its_launch(clock):
    before = {"a": Count(usd=0.1, seconds=100, boot="boot-1", boot_seconds=5000)}
    clock.seconds = 20  # the clock began anew
    running = Meter([clock.machine(age=160, boot="boot-2")], 3.6, Spend(before))
    assert running.usd() == pytest.approx(0.16)


def test_the_age_of_an_instance_is_by_the_metadata_services_clock_and_never_by_the_machines_own(clock):
    """As if this machine's clock were years ahead: it is, of an instance that was launched in 2020."""
    launched = datetime(2020, 1, 1, tzinfo=UTC)
    instance = Ec2Instance(
        id="i-1",
        type="g5.xlarge",
        region="us-east-1",
        market="spot",
        launched_at=launched,
        read_at=launched + timedelta(hours=1),
    )
    assert this_machine(instance).age_seconds == 3600
    young = dataclasses.replace(instance, read_at=launched)  # a clock that is behind
    assert this_machine(young).age_seconds == clock.seconds  # as long as it is up, at least
    assert this_machine(dataclasses.replace(instance, read_at=None)).age_seconds == clock.seconds


def test_the_metadata_service_says_what_time_it_is():
    with fake_metadata() as fake:
        found = Metadata(fake.url).instance()
    assert found is not None and found.read_at is not None
    assert abs(found.read_at - datetime.now(UTC)) < timedelta(hours=1)


def test_time_after_a_deliberate_stop_is_paid_for_on_a_rented_machine_alone(clock):
    first = Meter([clock.machine("rented"), clock.machine("own", rented=False)], 3.6)
    clock.seconds += 100
    stopped = Spend(first.counts(), stopped=True)
    clock.seconds += 5000
    again = Meter([clock.machine("rented"), clock.machine("own", rented=False)], 3.6, stopped)
    clock.seconds += 10
    counts = again.counts()
    assert counts["rented"].usd == pytest.approx(5.110) and again.idle_seconds == 5000
    assert counts["own"].usd == pytest.approx(0.110)
    killed = Meter([clock.machine("own", rented=False)], 3.6, dataclasses.replace(stopped, stopped=False))
    assert killed.counts()["own"].usd > 5


def test_the_slowest_save_and_a_deliberate_stop_are_remembered_with_the_run(clock, tmp_path):
    store = open_store(str(tmp_path))
    running, attempt = Meter([clock.machine()], 3.6), claim_attempt(store, "r")
    running.note_save(40.0)
    running.note_save(4.0)
    lines = Lines(store, f"runs/r/attempts/{attempt}/spend/")
    lines.write(running.record())
    lines.flush()
    found = read_spend(store, "r")
    assert (found.save_seconds, found.stopped) == (40.0, False)
    assert Meter([clock.machine()], 3.6, found).save_seconds == 40.0
    write_outcome(store, "r", attempt, "interrupted", 3)
    assert read_spend(store, "r").stopped


@pytest.mark.parametrize("usd", [float("nan"), float("inf"), -5.0])
def test_a_cost_that_no_budget_could_be_compared_with_is_damage(tmp_path, usd):
    store = open_store(str(tmp_path))
    count = {"usd": usd, "seconds": 60.0, "boot": "", "boot_seconds": 60.0}
    spend = {"usd": 1.0, "usd_per_hour": 1.0, "machines": {"i-1 then": count}}
    store.write("runs/one/meeting/boot/i-1.json", json.dumps({"spend": spend}).encode())
    with pytest.raises(SkytrainError, match=r"i-1\.json is damaged"):
        read_spend(store, "one")


def test_the_checkpoints_own_spend_is_the_least_that_is_counted(clock, tmp_path):
    """Also where the attempt's stream never reached the store."""
    store = open_store(str(tmp_path))
    running = Meter([clock.machine()], 3.6)
    clock.seconds += 100
    saved = json.loads(json.dumps(running.record()))
    assert read_spend(store, "r", saved).counts["a"].usd == pytest.approx(0.1)
    clock.seconds += 100
    lines = Lines(store, f"runs/r/attempts/{claim_attempt(store, 'r')}/spend/")
    lines.write(running.record())
    lines.flush()
    assert read_spend(store, "r", saved).counts["a"].usd == pytest.approx(0.2)


def test_a_machine_that_is_no_instance_is_paid_from_the_runs_first_start(clock):
    machine = this_machine(None)
    assert machine.age_seconds == 0.0
    assert machine.key == this_machine(None).key  # the same until it boots again


def test_an_instance_is_another_machine_after_it_was_stopped_and_started():
    launched = datetime(2026, 1, 1, tzinfo=UTC)
    first = Ec2Instance(
        id="i-1", type="g5.xlarge", region="us-east-1", market="spot", launched_at=launched, read_at=launched
    )
    again = dataclasses.replace(first, launched_at=datetime(2026, 1, 2, tzinfo=UTC))
    assert this_machine(first).key != this_machine(again).key


def test_the_price_is_the_configured_one_or_the_catalogues_for_this_instance():
    spot = Ec2Instance(id="i-1", type="g5.xlarge", region="us-east-1", market="spot", launched_at=None)
    on_demand = dataclasses.replace(spot, market="on-demand")
    assert machine_price(dataclasses.replace(NO_LIMIT, usd_per_hour=1.5), spot) == 1.5
    assert machine_price(NO_LIMIT, on_demand) == pytest.approx(1.006)
    assert 0 < machine_price(NO_LIMIT, spot) <= 1.006
    assert machine_price(NO_LIMIT, None) is None


def test_a_budget_on_an_instance_without_a_known_price_is_refused():
    unknown = Ec2Instance(id="i-1", type="m99.large", region="us-east-1", market="on-demand", launched_at=None)
    assert machine_price(NO_LIMIT, unknown) is None
    with pytest.raises(SkytrainError, match=r"no price is known for m99\.large .*\n  set budget\.usd_per_hour"):
        machine_price(dataclasses.replace(NO_LIMIT, usd=10.0), unknown)


def test_without_a_price_seconds_are_counted_and_dollars_are_not_claimed(clock):
    running = Meter([clock.machine()], None)
    clock.seconds += 60
    assert running.record()["usd"] is None
    assert json.loads(json.dumps(running.record()))["machines"]["a"]["seconds"] == 60


class Command:
    """A command that runs on this machine, by the test's clock, and what its workers count."""

    def __init__(self, clock: Clock, store: Store) -> None:
        self.clock, self.store, self.began = clock, store, clock.seconds
        self.meter = CommandMeter(store, "r", 3.6, self.began)

    def worker(self) -> Meter:
        return Meter([this_machine(None, self.began)], 3.6, read_spend(self.store, "r"))


def counted(store: Store) -> float:
    return sum(count.seconds for count in read_spend(store, "r").counts.values())


def test_a_command_counts_its_start_its_workers_and_its_end(clock, tmp_path):
    store = open_store(str(tmp_path))
    store.write("runs/r/run.json", b"{}")
    command = Command(clock, store)
    command.meter.write()
    clock.seconds += 20  # imports torch
    worker = command.worker()
    assert worker.usd() == pytest.approx(0.020)
    clock.seconds += 100
    lines = Lines(store, f"runs/r/attempts/{claim_attempt(store, 'r')}/spend/")
    lines.write(worker.record())
    lines.flush()
    clock.seconds += 3  # the worker writes its outcome and ends
    write_outcome(store, "r", 0, "stopped", 5)
    command.meter.close()
    assert counted(store) == pytest.approx(123)
    clock.seconds += 5000  # stopped: nobody pays
    again = Command(clock, store)
    clock.seconds += 20
    assert again.worker().usd() == pytest.approx(0.143)
    again.meter.close()
    assert counted(store) == pytest.approx(143)


def test_commands_that_are_killed_before_their_workers_write_are_counted(clock, tmp_path):
    store = open_store(str(tmp_path))
    began = clock.seconds
    for _ in range(5):
        Command(clock, store).meter.write()
        clock.seconds += 4  # killed with all its workers, and started again
    last = Command(clock, store)
    clock.seconds += 20
    assert last.worker().usd() == pytest.approx((clock.seconds - began) / 1000)


def test_a_command_that_is_killed_after_a_stopped_run_counts_from_its_own_start(clock, tmp_path):
    store = open_store(str(tmp_path))
    store.write("runs/r/run.json", b"{}")
    first = Command(clock, store)
    clock.seconds += 50
    claim_attempt(store, "r")
    write_outcome(store, "r", 0, "interrupted", 5)
    first.meter.close()
    clock.seconds += 1000
    Command(clock, store).meter.write()
    clock.seconds += 6  # killed before it claims an attempt
    third = Command(clock, store)
    clock.seconds += 10
    assert third.worker().usd() == pytest.approx(0.066)


def test_a_command_that_is_refused_leaves_nothing_under_the_runs_name(clock, tmp_path):
    store = open_store(str(tmp_path))
    command = Command(clock, store)
    command.meter.write()
    assert store.list("runs/r/")
    command.meter.close()
    assert not store.list("runs/r/")


def test_dollars_that_were_shown_do_not_fall_when_an_attempt_counts_from_now(clock):
    agent = Meter([clock.machine()], 3.6)
    clock.seconds += 100
    shown = agent.usd(in_seconds=14)
    attempt = Meter([clock.machine()], 3.6, Spend(agent.counts(in_seconds=14)))
    assert attempt.usd() == pytest.approx(shown)
    clock.seconds += 60
    assert attempt.usd() == pytest.approx(0.160)
