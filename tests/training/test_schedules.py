import math

import pytest

from skytrain.config import BatchSizes, ConstantScheduleConfig, PowerScheduleConfig, WSDScheduleConfig
from skytrain.config.schema import DecayScheduleConfig
from skytrain.training import learning_rate
from skytrain.training.schedules import warmup_steps

COSINE = DecayScheduleConfig("cosine", warmup_steps=10, final_fraction=0.1)
LINEAR = DecayScheduleConfig("linear", warmup_steps=10, final_fraction=0.0)
WSD = WSDScheduleConfig("wsd", warmup_steps=10, decay_fraction=0.2, decay_power=1.0, final_fraction=0.05)
CONSTANT = ConstantScheduleConfig("constant", warmup_steps=10)


@pytest.mark.parametrize("schedule", [COSINE, LINEAR, WSD, CONSTANT])
def test_warmup_rises_evenly_to_the_peak(schedule):
    assert [learning_rate(schedule, step, 100) for step in range(11)] == pytest.approx(
        [*(n / 10 for n in range(1, 11)), 1.0], abs=1e-9
    )


@pytest.mark.parametrize("schedule", [COSINE, LINEAR, WSD, CONSTANT])
def test_a_run_shorter_than_its_warmup_warms_up_over_a_tenth_of_its_steps(schedule):
    assert [learning_rate(schedule, step, 9) for step in range(2)] == [1.0, pytest.approx(1.0, abs=0.02)]
    assert warmup_steps(schedule, 9) == 1
    assert warmup_steps(schedule, 10) == 10


def test_a_shortened_warmup_leaves_room_for_the_decay():
    long = DecayScheduleConfig("linear", warmup_steps=100, final_fraction=0.0)
    assert [learning_rate(long, step, 20) for step in (0, 1, 2, 11, 20)] == pytest.approx([0.5, 1, 1, 0.5, 0])


def test_cosine_passes_half_way_at_half_time_and_ends_at_its_final_fraction():
    assert learning_rate(COSINE, 55, 100) == pytest.approx(0.55)
    assert learning_rate(COSINE, 100, 100) == pytest.approx(0.1)
    quarter = 1 + (0.1 - 1) * 0.5 * (1 - math.cos(math.pi / 4))
    assert learning_rate(COSINE, 10 + 22.5, 100) == pytest.approx(quarter)


def test_linear_falls_evenly_to_zero():
    assert [learning_rate(LINEAR, step, 100) for step in (10, 55, 100)] == pytest.approx([1.0, 0.5, 0.0])


def test_wsd_stays_at_the_peak_until_the_last_fifth_and_then_falls():
    assert [learning_rate(WSD, step, 100) for step in (10, 50, 80, 90, 100)] == pytest.approx([1, 1, 1, 0.525, 0.05])


def test_constant_stays():
    assert learning_rate(CONSTANT, 10_000, 100) == 1.0


def test_nothing_falls_below_the_end_after_the_horizon():
    assert learning_rate(COSINE, 500, 100) == pytest.approx(0.1)
    assert learning_rate(WSD, 500, 100) == pytest.approx(0.05)


def test_a_power_decay_falls_fast_and_then_slowly():
    power = PowerScheduleConfig("power", warmup_steps=10, power=2.0, final_fraction=0.1)
    found = [learning_rate(power, step, 100) for step in (9, 10, 55, 100, 500)]
    assert found == pytest.approx([1.0, 1.0, 0.1 + 0.9 * 0.25, 0.1, 0.1])
    late = WSDScheduleConfig("wsd", warmup_steps=10, decay_fraction=0.2, decay_power=3.0, final_fraction=0.0)
    assert [learning_rate(late, step, 100) for step in (80, 90, 100)] == pytest.approx([1, 0.125, 0])


@pytest.mark.parametrize("schedule", [COSINE, LINEAR, WSD])
def test_a_decay_follows_the_tokens_where_steps_differ_in_size(schedule):
    """Forty half steps are as far as twenty whole ones; steps of one size have the rates of before, to the last bit."""
    halves = BatchSizes(8, ((4, 160),))
    linear = learning_rate(LINEAR, 75, 120, halves)
    assert linear == pytest.approx(1 - (55 - 5) / (100 - 5))  # ten half steps of warm-up are five whole ones
    for step in range(0, 101, 7):
        assert learning_rate(schedule, step, 100, BatchSizes(8)) == learning_rate(schedule, step, 100)
