import dataclasses
import json
from datetime import UTC, datetime, timedelta

import pytest

from skytrain.config import SkytrainError
from skytrain.config.schema import BudgetConfig
from skytrain.runs import Meter, claim_attempt, meter
from skytrain.runs.imds import Instance
from skytrain.runs.meter import Count, Machine, machine_price, read_counts, this_machine
from skytrain.runs.sync import Lines
from skytrain.storage import open_store

NO_LIMIT = BudgetConfig(usd=None, usd_per_hour=None, margin=0.0)


class Clock:
    """A machine's own seconds since it booted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 1000.0
        monkeypatch.setattr(meter, "boot_clock", lambda: self.seconds)

    def machine(self, key: str = "a", age: float = 0.0, boot: str = "boot-1") -> Machine:
        return Machine(key, boot, self.seconds, age)


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def test_dollars_are_price_times_hours_times_machines_from_their_launch(clock):
    running = Meter([clock.machine("a", age=600), clock.machine("b", age=0)], 2.0, {})
    clock.seconds += 3600
    assert running.usd() == pytest.approx(2.0 * (3600 + 600) / 3600 + 2.0)
    assert running.usd(in_seconds=1800) == pytest.approx(running.usd() + 2.0)


def test_the_gap_after_a_kill_is_counted_while_the_machine_lives(clock):
    first = Meter([clock.machine()], 3.6, {})
    clock.seconds += 100
    left = first.counts()  # the last that reached the store before the kill
    clock.seconds += 50  # dead, but paid for
    second = Meter([clock.machine()], 3.6, left)
    clock.seconds += 10
    assert second.usd() == pytest.approx(0.160)


def test_another_machine_begins_its_own_count_beside_that_of_the_first(clock):
    first = Meter([clock.machine("a")], 3.6, {})
    clock.seconds += 100
    left = first.counts()
    clock.seconds += 5000  # the first machine is gone: nobody pays for it
    second = Meter([clock.machine("b", age=30, boot="boot-2")], 3.6, left)
    clock.seconds += 10
    assert second.usd() == pytest.approx(0.100 + 0.040)


def test_two_attempts_at_once_on_one_machine_count_it_once(clock, tmp_path):
    store = open_store(str(tmp_path))
    first = Meter([clock.machine()], 3.6, {})
    clock.seconds += 100
    second = Meter([clock.machine()], 3.6, first.counts())
    clock.seconds += 50
    for each in (first, second):
        lines = Lines(store, f"runs/r/attempts/{claim_attempt(store, 'r')}/spend/")
        lines.write(each.record())
        lines.flush()
    assert sum(count.usd for count in read_counts(store, "r").values()) == pytest.approx(0.150)


def test_a_machine_that_comes_twice_is_paid_once(clock):
    running = Meter([clock.machine(), clock.machine()], 3.6, {})
    clock.seconds += 100
    assert running.usd() == pytest.approx(0.1) and running.usd_per_hour == 3.6


def test_a_restart_never_resets_the_meter_and_the_newest_line_of_any_attempt_is_enough(clock, tmp_path):
    store = open_store(str(tmp_path))
    for attempt in range(12):
        running = Meter([clock.machine()], 3.6, read_counts(store, "r"))
        lines = Lines(store, f"runs/r/attempts/{attempt}/spend/")
        for _ in range(3):
            clock.seconds += 10
            lines.write(running.record())
        lines.flush()
    (count,) = read_counts(store, "r").values()
    assert (count.usd, count.seconds) == (pytest.approx(0.36), pytest.approx(360))


def test_a_rebooted_instance_counts_from_its_launch(clock):
    before = {"a": Count(usd=0.1, seconds=100, boot="boot-1", boot_seconds=5000)}
    clock.seconds = 20  # the clock began anew
    running = Meter([clock.machine(age=160, boot="boot-2")], 3.6, before)
    assert running.usd() == pytest.approx(0.16)


@pytest.mark.parametrize("jump", [timedelta(days=-400), timedelta(hours=-3)])
def test_a_clock_set_back_neither_stops_the_meter_nor_turns_it_back(clock, monkeypatch, jump):
    class Jumped(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + jump

    monkeypatch.setattr(meter, "datetime", Jumped)
    instance = Instance("i-1", "g5.xlarge", "us-east-1", "spot", datetime.now(UTC) - timedelta(hours=1))
    machine = this_machine(instance)
    assert machine.age_seconds == clock.seconds  # as long as it is up, at least
    before = {machine.key: Count(usd=5.0, seconds=7200, boot=machine.boot, boot_seconds=clock.seconds - 10)}
    assert Meter([machine], 3.6, before).usd() == pytest.approx(5.01)


def test_a_machine_that_is_no_instance_is_paid_from_the_runs_first_start(clock):
    machine = this_machine(None)
    assert machine.age_seconds == 0.0
    assert machine.key == this_machine(None).key  # the same until it boots again


def test_an_instance_is_another_machine_after_it_was_stopped_and_started():
    first = Instance("i-1", "g5.xlarge", "us-east-1", "spot", datetime(2026, 1, 1, tzinfo=UTC))
    again = dataclasses.replace(first, launched_at=datetime(2026, 1, 2, tzinfo=UTC))
    assert this_machine(first).key != this_machine(again).key


def test_the_price_is_the_configured_one_or_the_catalogues_for_this_instance():
    spot = Instance("i-1", "g5.xlarge", "us-east-1", "spot", None)
    on_demand = dataclasses.replace(spot, market="on-demand")
    assert machine_price(dataclasses.replace(NO_LIMIT, usd_per_hour=1.5), spot) == 1.5
    assert machine_price(NO_LIMIT, on_demand) == pytest.approx(1.006)
    assert 0 < machine_price(NO_LIMIT, spot) <= 1.006
    assert machine_price(NO_LIMIT, None) is None


def test_a_budget_on_an_instance_without_a_known_price_is_refused():
    unknown = Instance("i-1", "m99.large", "us-east-1", "on-demand", None)
    assert machine_price(NO_LIMIT, unknown) is None
    with pytest.raises(SkytrainError, match=r"no price is known for m99\.large .*\n  set budget\.usd_per_hour"):
        machine_price(dataclasses.replace(NO_LIMIT, usd=10.0), unknown)


def test_without_a_price_seconds_are_counted_and_dollars_are_not_claimed(clock):
    running = Meter([clock.machine()], None, {})
    clock.seconds += 60
    assert running.record()["usd"] is None
    assert json.loads(json.dumps(running.record()))["machines"]["a"]["seconds"] == 60
