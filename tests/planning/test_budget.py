"""Every question to a budget, in one table of situations."""

import math
from dataclasses import dataclass

import pytest

from skytrain.config import compose
from skytrain.planning import Budget, Spending

DOLLAR_A_SECOND = 3600.0


@dataclass(frozen=True)
class Situation:
    """A limit of $100 with a margin of 10 s, saves of 20 s and steps of 4 s, at a dollar a second for 50 s more."""

    spent: float
    limit: float | None = 100.0
    usd_per_hour: float | None = DOLLAR_A_SECOND


YES, NO = True, False
TABLE = {
    # situation: (is_spent, can_afford_save, can_afford_step, can_afford_evaluation of 8 s, of 2 steps, will_overrun)
    "much is left": (Situation(10.0), (NO, YES, YES, YES, YES, NO)),
    "exactly enough for the run": (Situation(50.0), (NO, YES, YES, NO, NO, NO)),
    "the run will not end within it": (Situation(50.5), (NO, YES, YES, NO, NO, YES)),
    "one step and its save, but no evaluation": (Situation(53.9), (NO, YES, YES, NO, NO, YES)),
    "a save, but no step before it": (Situation(54.0), (NO, YES, NO, NO, NO, YES)),
    "only the margin": (Situation(90.0), (YES, YES, NO, NO, NO, YES)),
    "a cent of the margin": (Situation(99.99), (YES, YES, NO, NO, NO, YES)),
    "nothing": (Situation(100.0), (YES, NO, NO, NO, NO, YES)),
    "less than nothing": (Situation(140.0), (YES, NO, NO, NO, NO, YES)),
    "no dollar from the start": (Situation(0.0, limit=0.0), (YES, NO, NO, NO, NO, YES)),
    "no limit": (Situation(1e6, limit=None), (NO, YES, YES, YES, YES, NO)),
    "a price of nothing": (Situation(0.0, usd_per_hour=0.0), (NO, YES, YES, YES, YES, NO)),
    "an unknown price": (Situation(0.0, usd_per_hour=None), (NO, YES, YES, YES, YES, NO)),
    "an unknown price and no limit": (Situation(0.0, limit=None, usd_per_hour=None), (NO, YES, YES, YES, YES, NO)),
}


@pytest.mark.parametrize(("situation", "answers"), TABLE.values(), ids=TABLE.keys())
def test_each_question_has_one_answer_in_each_situation(situation, answers):
    budget = Budget(situation.limit, margin_seconds=10.0)
    spending = Spending(situation.spent, situation.usd_per_hour, save_seconds=20.0)
    assert answers == (
        budget.is_spent(spending),
        budget.can_afford_save(spending),
        budget.can_afford_step(spending, step_seconds=4.0),
        budget.can_afford_evaluation(spending, step_seconds=4.0, seconds=8.0),
        budget.can_afford_evaluation(spending, step_seconds=4.0, steps=2.0),
        budget.will_overrun(spending, seconds_left=50.0),
    )


KILL_TIMES = {
    "no budget: twice the p90 and an hour": (None, 3.0, 10.0, 7 * 3600.0),
    "a budget that pays for longer": (100.0, 3.0, 10.0, 7 * 3600.0),
    "a budget that ends it earlier": (50.0, 3.0, 10.0, 5 * 3600.0),
    "a budget below the p90": (15.0, 3.0, 10.0, 1.5 * 3600.0),
    "no dollar": (0.0, 3.0, 10.0, 0.0),
}


@pytest.mark.parametrize(("usd", "hours_p90", "usd_per_hour", "seconds"), KILL_TIMES.values(), ids=KILL_TIMES.keys())
def test_machines_are_ended_late_enough_for_a_slow_run_and_before_the_budget_is_exceeded(
    usd, hours_p90, usd_per_hour, seconds
):
    assert Budget(usd).kill_after_seconds(hours_p90, usd_per_hour) == pytest.approx(seconds)


def test_a_limit_covers_what_costs_as_much_and_lasts_for_its_hours():
    assert Budget(10.0).covers(10.0) and not Budget(10.0).covers(10.01) and Budget(None).covers(math.inf)
    assert Budget(10.0).hours_at(4.0) == 2.5 and Budget(None).hours_at(4.0) == math.inf


def test_a_budget_is_made_of_the_settings_and_says_what_is_spent_of_it():
    budget = Budget.of(compose(["budget.usd=12.5", "budget.margin=30s"]).config.budget)
    assert budget == Budget(12.5, margin_seconds=30.0)
    assert budget.spent_text(Spending(3.204, 1.0)) == "$3.20 of $12.5"
