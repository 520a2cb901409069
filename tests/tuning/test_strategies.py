"""Strategies on a simulated table: what they buy, what they answer, and that they never overspend."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from skytrain.config import SkytrainError
from skytrain.storage import open_store
from skytrain.tuning import Observation, SweepStore, Trial
from skytrain.tuning.fits import fit_all
from skytrain.tuning.problem import Answer, Search
from skytrain.tuning.rehearsal import rehearse
from skytrain.tuning.strategies.base import horizon_rungs, size_rungs
from skytrain.tuning.strategies.halving import counts
from skytrain.tuning.strategies.hyperband import bracket_rates, table
from skytrain.tuning.strategies.registry import all_strategies, find_strategy
from tests.tuning.simulated import Truth, loss_of, make_problem

TRUTH = Truth()
NAMES = sorted(all_strategies())


def play(name: str, problem, truth=TRUTH, usd: float = 0.6):
    strategy, history, left = find_strategy(name), [], usd
    while (trial := strategy.propose(Search(problem, tuple(history), left, usd))) is not None:
        cost = problem.rung(trial.rung).usd
        assert cost <= left + 1e-9, f"{name} overspends"
        left -= cost
        history.append(Observation(trial, loss_of(truth, problem, trial, np.random.default_rng(len(history))), cost))
        assert len(history) < 100
    return strategy.answer(Search(problem, tuple(history), left, usd)), history


@pytest.mark.parametrize("name", [*NAMES, "early-stopping+ladder", "literature+greedy"])
def test_every_strategy_stays_within_its_money_tries_nothing_twice_and_answers_within_a_factor_of_three(name):
    problem = make_problem()
    answer, history = play(name, problem)
    keys = [one.trial.key for one in history]
    assert len(keys) == len(set(keys))
    assert problem.lowest <= answer.rate <= problem.highest
    assert abs(math.log(answer.rate / TRUTH.level)) < math.log(3)
    assert answer.why


@pytest.mark.parametrize("name", NAMES)
def test_every_strategy_answers_without_any_money(name):
    answer, history = play(name, make_problem(), usd=0.0)
    assert not history and answer.rate == pytest.approx(2e-3, rel=0.2)  # a little lower: a diverged run is dear


def test_the_ladder_is_the_nearest_to_the_truth_and_says_how_sure_it_is():
    answer, history = play("ladder", make_problem(), Truth(level=3e-3, size=-0.45))
    assert abs(math.log(answer.rate / 3e-3)) < 0.35
    assert answer.low < 3e-3 < answer.high
    assert 0 < answer.regret_nats < 0.02 and 0 <= answer.divergence < 0.05
    assert len({one.trial.rung for one in history}) > 1


def test_the_ladder_brackets_a_minimum_that_lies_far_from_what_is_expected():
    truth = Truth(level=2e-4)
    answer, history = play("ladder", make_problem(), truth, usd=1.5)
    assert answer.rate < 6e-4
    assert min(one.trial.rate for one in history) < 4e-4


def test_the_ladder_buys_trials_at_the_target_where_the_money_is_for_several():
    problem = make_problem(sizes=(0.3, 1.0), horizons=(0.0625, 0.25, 1.0))
    wide = replace(problem, priors=replace(problem.priors, offset=0.9, exponent=0.4))
    _, rich = play("ladder", wide, Truth(horizon=0.6), usd=6.0)
    _, poor = play("ladder", wide, Truth(horizon=0.6), usd=0.4)
    assert "n1-d1" in {one.trial.rung for one in rich}
    assert poor and "n1-d1" not in {one.trial.rung for one in poor}


def test_the_ladder_finishes_a_rung_before_it_begins_another():
    _, history = play("ladder", make_problem(), Truth(level=1e-3), usd=1.0)
    names = [one.trial.rung for one in history]
    assert len(set(names)) > 1
    for name in set(names):
        begun = names.index(name)
        assert names[begun : begun + 3] == [name] * 3


def test_a_chain_weighs_prices_if_its_last_strategy_does():
    weighing = [
        getattr(find_strategy(name), "weighs_prices", False) for name in ("ladder", "grid+ladder", "ladder+grid")
    ]
    assert weighing == [True, True, False]


def test_the_ladder_begins_where_the_money_is_for_more_than_three_rates_while_the_level_is_unknown():
    problem = make_problem(sizes=(0.1, 0.3), horizons=(0.25,))
    small, near = problem.rungs
    short, enough = (
        find_strategy("ladder").propose(Search(problem, (), usd, usd)) for usd in (3 * near.usd, 9 * near.usd)
    )
    assert short.rung == small.name and enough.rung == near.name


def test_the_ladder_says_when_its_answer_lies_beyond_what_was_tried():
    problem = make_problem()
    rung = problem.rungs[-1]
    falling = [Observation(Trial(rung.name, rate), 3.0 - 0.1 * number, 0.1) for number, rate in enumerate((1e-4, 2e-4))]
    answer = find_strategy("ladder").answer(Search(problem, tuple(falling), 0.0, 1.0))
    assert answer.rate > 2e-4
    assert any("extrapolation" in words for words in answer.warnings)
    assert any("highest that was tried" in words for words in answer.warnings)


def test_a_rung_that_has_only_higher_rates_than_expected_still_gets_three_of_them():
    problem = make_problem()
    rungs = tuple(replace(one, rates=(0.02, 0.04, 0.08, 0.16)) for one in problem.rungs)
    _, history = play("ladder", replace(problem, rungs=rungs), Truth(level=0.04, wall=3.0), usd=1.0)
    first = [one.trial.rate for one in history if one.trial.rung == history[0].trial.rung]
    assert len(first) >= 3


def test_erratic_short_runs_do_not_blur_what_the_targets_own_rates_say():
    problem = make_problem(sizes=(0.1, 1.0), horizons=(0.0625, 1.0))
    truth = Truth(size=0.0, horizon=0.0, curvature=0.1)
    clean = [
        Observation(Trial("n1-d1", rate), loss_of(truth, problem, Trial("n1-d1", rate)), 1.0)
        for rate in (5e-4, 1e-3, 2e-3, 4e-3, 8e-3)
    ]
    erratic = [
        Observation(Trial(rung, rate), 3.0 + 0.15 * (-1) ** number, 0.1)
        for rung in ("n0.1-d0.0625", "n1-d0.0625")
        for number, rate in enumerate((2.5e-4, 3.5e-4, 5e-4, 7e-4, 1e-3, 1.4e-3))
    ]
    answer = find_strategy("ladder").answer(Search(problem, tuple(clean + erratic), 0.0, 9.0))
    assert answer.rate == pytest.approx(2e-3, rel=0.15)
    assert answer.high < 2.4 * answer.low


def test_a_rung_of_a_coarse_table_gets_rates_on_both_sides_of_its_best_though_the_law_is_below_all_of_them():
    problem = make_problem(sizes=(0.1,), horizons=(0.25,))  # expects 5e-3 there
    coarse = tuple(8e-3 * 4**step for step in range(5))
    problem = replace(problem, rungs=tuple(replace(rung, rates=coarse) for rung in problem.rungs), highest=coarse[-1])
    _, history = play("ladder", problem, Truth(level=0.1, size=0.0, horizon=0.0, wall=9.0), usd=1.0)
    tried = {one.trial.rate for one in history}
    assert {coarse[1], coarse[2], coarse[3]} <= tried


def test_the_answer_names_the_shape_that_the_rungs_agree_with():
    problem = make_problem(sizes=(0.01, 0.1, 1.0), horizons=(0.0625, 0.25))
    same, _ = play("ladder", problem, Truth(size=0.0, horizon=0.0), usd=3.0)
    law, _ = play("ladder", problem, Truth(size=-0.4, horizon=0.0), usd=3.0)
    assert "one best rate on all rungs" in same.why
    assert "the law that the search began with" in law.why


def test_the_ladder_goes_down_while_everything_diverges():
    answer, history = play("ladder", make_problem(), Truth(level=1e-4, wall=0.7), usd=1.0)
    rates = [one.trial.rate for one in history]
    assert history[0].diverged and min(rates) < rates[0] / 4
    assert answer.low < 1e-4 < answer.high
    assert answer.rate < min(one.trial.rate for one in history if one.diverged)


def test_projections_follow_the_exponent_of_their_axis():
    answer, _ = play("model-scaling", make_problem(), Truth(size=-0.6, horizon=0.0), usd=2.0)
    assert answer.rate == pytest.approx(2e-3, rel=0.15)
    assert "parameters^-0." in answer.why
    answer, _ = play("data-scaling", make_problem(), Truth(horizon=-0.3), usd=4.0)
    assert answer.rate == pytest.approx(2e-3, rel=0.15)


def test_a_projection_shows_four_curves_with_the_errors_of_predicting_each_optimum_from_the_others():
    answer, _ = play("data-scaling", make_problem(), Truth(horizon=-0.3), usd=20.0)
    fits = {fit.name: fit for fit in answer.fits}
    assert list(fits) == ["power", "linear", "polynomial", "exponential"]
    assert fits["power"].rate == pytest.approx(answer.rate) and str(fits["power"]) in answer.why
    assert fits["power"].error is not None and fits["linear"].error is not None
    assert fits["power"].error < fits["linear"].error  # the truth is a power law


@pytest.mark.parametrize(
    ("name", "truth"),
    [
        ("power", lambda x: 0.01 * x**-0.4),
        ("linear", lambda x: 0.01 - 0.001 * x),
        ("polynomial", lambda x: 0.01 - 0.001 * x + 0.0001 * x * x),
        ("exponential", lambda x: 0.01 * math.exp(-0.3 * x)),
    ],
)
def test_each_curve_finds_its_own_law_and_predicts_its_optima(name, truth):
    fits = {fit.name: fit for fit in fit_all([(x, truth(x)) for x in (1.0, 2.0, 3.0, 4.0)], 6.0)}
    assert fits[name].rate == pytest.approx(truth(6.0), rel=1e-6)
    assert fits[name].error == pytest.approx(0, abs=1e-6)


def test_a_curve_that_falls_below_zero_has_no_rate_and_two_optima_have_no_error():
    fits = {fit.name: fit for fit in fit_all([(1.0, 0.01), (2.0, 0.005)], 6.0)}
    assert fits["linear"].rate is None and fits["polynomial"].rate is None
    assert fits["power"].error is None and fits["exponential"].rate is not None


def test_model_scaling_sweeps_two_sizes_with_fewer_rates_where_the_money_is_short():
    problem = make_problem()
    sizes = sorted(size_rungs(problem), key=lambda one: one.usd)
    short = 2.5 * (sizes[0].usd + sizes[1].usd)  # not four rates on each
    answer, history = play("model-scaling", problem, Truth(size=-0.6, horizon=0.0), usd=short)
    assert {one.trial.rung for one in history} >= {sizes[0].name, sizes[1].name}
    assert "one rung only" not in answer.why


@pytest.mark.parametrize("strategy", ["grid", "early-stopping", "data-scaling"])
def test_trials_per_rung_is_how_many_rates_a_rung_gets_before_its_edges_are_searched(strategy):
    problem = replace(make_problem(), trials_per_rung=7)
    _, history = play(strategy, problem, Truth(), usd=60.0)
    counts_by_rung = Counter(one.trial.rung for one in history)
    assert counts_by_rung and min(counts_by_rung.values()) >= 7


def test_hyperbands_table_with_r_555_and_eta_3_has_611_runs_of_415_rates_and_says_what_money_buys():
    problem = make_problem(sizes=(1.0,), horizons=tuple(steps / 4725 for steps in (2, 7, 21, 62, 185, 555)))
    brackets = table(horizon_rungs(problem))
    assert len(brackets) == 6
    assert sum(bracket.sizes[0] for bracket in brackets) == 415
    assert sum(sum(bracket.sizes) for bracket in brackets) == 611
    rich = sum(bracket.usd for bracket in brackets)
    [whole] = find_strategy("hyperband").announce(problem, rich)
    assert "6 brackets, 611 runs of 415 rates" in whole
    _, bought = find_strategy("hyperband").announce(problem, rich / 20)
    assert bought.startswith(f"${rich / 20:,.2f} buys")
    search = Search(problem, (), rich, rich)
    rates = [rate for number in range(6) for rate in bracket_rates(search, brackets, number)]
    assert len(rates) == len(set(rates)) == 415


def test_a_projection_says_in_advance_which_rungs_the_money_does_not_buy():
    problem = replace(make_problem(sizes=(1.0,), horizons=(0.01, 0.02, 0.04)), trials_per_rung=10)
    rungs = sorted(horizon_rungs(problem), key=lambda one: one.usd)
    all_of_them = 10 * sum(rung.usd for rung in rungs)
    assert find_strategy("data-scaling").announce(problem, all_of_them) == []
    asked, bought = find_strategy("data-scaling").announce(problem, all_of_them - rungs[-1].usd)
    assert asked == f"10 rates at each of {', '.join(rung.name for rung in rungs)} cost at most ${all_of_them:,.2f}"
    assert f"buys 10 at each of {rungs[0].name}, {rungs[1].name}, at most" in bought


def test_greedy_doubles_until_it_diverges_and_then_tries_fractions():
    problem = make_problem()
    _, history = play("greedy", problem, Truth(wall=1.0), usd=2.0)
    rates = [one.trial.rate for one in history]
    first = next(number for number, one in enumerate(history) if one.diverged)
    assert all(later == pytest.approx(2 * earlier, rel=0.01) for earlier, later in pairwise(rates[: first + 1]))
    assert len(rates) > first + 1 and max(rates) == rates[first]


def test_hyperbands_table_is_the_published_one():
    rungs = sorted(
        make_problem(sizes=(1.0,), horizons=(1 / 81, 1 / 27, 1 / 9, 1 / 3, 0.99)).rungs, key=lambda one: one.tokens
    )
    assert [bracket.sizes for bracket in table(rungs)] == [(81, 27, 9, 3, 1), (34, 11, 3, 1), (15, 5, 1), (8, 2), (5,)]
    assert counts(9, 3) == [9, 3, 1]


def test_a_hybrid_starts_its_second_part_from_the_answer_of_the_first():
    _, history = play("early-stopping+greedy", make_problem(), Truth(level=1e-3), usd=2.0)
    assert len({one.trial.rung for one in history}) >= 1
    answer, _ = play("early-stopping+greedy", make_problem(), Truth(level=1e-3), usd=2.0)
    assert abs(math.log(answer.rate / 1e-3)) < 0.8


def test_an_unknown_strategy_is_refused_with_the_nearest_name():
    with pytest.raises(SkytrainError, match="did you mean ladder"):
        find_strategy("lader")


def test_a_rehearsal_spends_no_more_than_it_is_given():
    problem = make_problem()
    trials = rehearse(problem, find_strategy("ladder"), 0.5)
    assert trials and sum(one.usd for one in trials) <= 0.5


def test_an_answer_with_its_projections_is_kept_in_the_store(tmp_path: Path) -> None:
    sweep = SweepStore(open_store(str(tmp_path)), "s")
    answer = Answer(rate=0.01, why="a projection", fits=tuple(fit_all([(1.0, 0.01), (2.0, 0.005)], 6.0)))
    sweep.save_answer(answer)
    assert sweep.answer() == replace(answer, fits=())
    kept = sweep.load("answer")
    assert kept is not None and [fit["name"] for fit in kept["fits"]] == [
        "power",
        "linear",
        "polynomial",
        "exponential",
    ]
    assert kept["fits"][0]["rate"] == answer.fits[0].rate
