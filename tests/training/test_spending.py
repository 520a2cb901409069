from dataclasses import replace
from types import SimpleNamespace

import pytest

from skytrain.config import compose
from skytrain.planning import Budget
from skytrain.runs import Meter, meter
from skytrain.runs.meter import MeteredMachine
from skytrain.training.spending import BudgetWatch, OverrunWatch, format_step


def verdicts(monkeypatch, steps, *, total=1000, first=1, spent=0.0, **changed):
    """What is said after each step, for steps of so many seconds at a dollar a second."""
    clock = [spent]
    monkeypatch.setattr(meter, "boot_clock", lambda: clock[0])
    running = Meter([MeteredMachine("a", "boot", 0.0, spent)], 3600.0)
    budget = replace(compose().config.budget, **{"usd": 1500.0, "usd_per_hour": 3600.0, "margin": 0.0, **changed})
    watch, trained, found = OverrunWatch(running, budget, total), 0.0, []
    for step, seconds in enumerate(steps, first):
        clock[0] += seconds
        trained += seconds
        found.append(watch.after_step(step, lambda now=trained: now))
    return found


def test_the_slowest_of_steps_10_to_19_decides_and_nothing_before_or_after(monkeypatch):
    steady = [1.0] * 25
    assert verdicts(monkeypatch, steady) == [None] * 25  # $1000 of $1500
    assert verdicts(monkeypatch, [60.0] * 9 + [1.0] * 16, usd=2000.0) == [None] * 25  # compilers and caches
    assert verdicts(monkeypatch, [1.0] * 19 + [60.0] * 6) == [None] * 25
    for slow in (10, 14, 19):
        steps = [1.0] * 25
        steps[slow - 1] = 2.0
        found = verdicts(monkeypatch, steps)
        assert [verdict is not None for verdict in found] == [False] * 19 + [True] + [False] * 5
        assert found[19].stops
        assert found[19].text == "a step takes up to 2.00 s: the run will cost $1981.00, and the budget is $1500"


def test_what_was_planned_is_part_of_the_sum_and_a_slower_run_within_its_budget_is_only_reported(monkeypatch):
    plan = {"planned_usd": 800.0, "planned_step_seconds": 0.8}
    [found] = [each for each in verdicts(monkeypatch, [2.0] * 25, **plan) if each]
    assert found.stops and found.text == (
        "a step takes up to 2.00 s (planned 800 ms): the run will cost $2000.00 (planned $800.00), and the budget is $1500"
    )
    [found] = [each for each in verdicts(monkeypatch, [1.0] * 25, **plan) if each]
    assert not found.stops and found.text.endswith("cost $1000.00 (planned $800.00), within the budget of $1500")
    [found] = [each for each in verdicts(monkeypatch, [1.0] * 25, **plan, usd=None) if each]
    assert not found.stops
    assert not any(verdicts(monkeypatch, [0.85] * 25, **plan))


def test_a_setting_lets_it_go_on(monkeypatch):
    [found] = [each for each in verdicts(monkeypatch, [2.0] * 25, overrun="continue") if each]
    assert not found.stops and found.text.startswith("warning: a step takes up to 2.00 s")


def test_a_resumed_run_counts_its_own_steps_and_what_was_spent_before(monkeypatch):
    found = verdicts(monkeypatch, [1.0] * 25, first=501, spent=1200.0)
    assert [number for number, each in enumerate(found) if each] == [19] and found[19].stops
    assert "the run will cost $1700.00" in found[19].text
    assert not any(verdicts(monkeypatch, [9.0] * 20, total=20))  # it is done: nothing can be saved


@pytest.mark.parametrize(("seconds", "text"), [(0.0314, "31 ms"), (1.9234, "1.92 s"), (90.0, "1m30s")])
def test_the_time_of_a_step_is_readable(seconds, text):
    assert format_step(seconds) == text


def test_the_slow_first_step_of_an_attempt_does_not_forbid_a_validation_at_its_end(monkeypatch):
    clock = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(meter, "boot_clock", lambda: clock.seconds)
    monkeypatch.setattr("skytrain.training.spending.time", SimpleNamespace(monotonic=lambda: clock.seconds))
    budget = BudgetWatch(Meter([MeteredMachine("a", "boot", 0.0, 0.0)], 3600.0), Budget(100.0, margin_seconds=10.0))
    for step, seconds in enumerate((8.0, 1.0, 1.0)):
        clock.seconds += seconds
        assert not budget.must_stop_after_step()
        assert budget.can_afford_evaluation(steps=30.0) == (step > 0)  # 30 steps of 1 s fit, 30 of 8 s do not
