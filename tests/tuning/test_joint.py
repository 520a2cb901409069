"""The joint fit against synthetic truth."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from skytrain.tuning import Observation, Priors, Trial, fit_jointly
from tests.tuning.simulated import Truth, loss_of, make_problem

RATES = (0.5, 0.71, 1.0, 1.41, 2.0)


def observed(problem, truth, rng=None, rates=RATES, rungs=None):
    history = []
    for rung in rungs or problem.rungs:
        centre = math.exp(truth.optimum(rung, problem.target))
        for rate in rates:
            trial = Trial(rung.name, centre * rate)
            history.append(Observation(trial, loss_of(truth, problem, trial, rng), rung.usd))
    return history


def wide(problem):
    return replace(problem, priors=Priors(lambda rung: math.log(1e-3), offset=1.5, size=1.0, horizon=1.0, nugget=0.02))


def test_known_exponents_are_recovered():
    truth = Truth(level=3e-3, size=-0.62, horizon=0.23)
    problem = wide(make_problem(noise=0.0005))
    fit = fit_jointly(problem, observed(problem, truth, np.random.default_rng(1)))
    size, horizon, _ = np.median(fit.exponents, 0)
    assert size == pytest.approx(-0.62, abs=0.04)
    assert horizon == pytest.approx(0.23, abs=0.06)
    assert fit.best_rate() == pytest.approx(3e-3, rel=0.12)


def test_each_rung_gets_its_own_minimum():
    truth = Truth(size=-0.4, horizon=0.1)
    problem = make_problem(noise=0.0003)
    fit = fit_jointly(problem, observed(problem, truth))
    for curve in fit.curves:
        assert curve.optimum == pytest.approx(math.exp(truth.optimum(curve.rung, problem.target)), rel=0.03)
        assert curve.curvature == pytest.approx(0.03, rel=0.15)


def test_a_diverged_rate_bounds_the_optimum_from_above_and_is_no_point_of_the_curve():
    problem = make_problem()
    rung = problem.rungs[0]
    finite = [Observation(Trial(rung.name, rate), 3.0, 0.1) for rate in (1e-3, 2e-3)]
    free = fit_jointly(problem, finite)
    walled = fit_jointly(problem, [*finite, Observation(Trial(rung.name, 4e-3), math.inf, 0.1)])
    assert walled.curves[0].optimum < free.curves[0].optimum
    assert np.isfinite(walled.optima).all()
    assert walled.divergence(math.log(0.1)) > free.divergence(math.log(0.1)) - 1e-9


def test_a_search_whose_trials_all_diverged_still_has_a_finite_fit():
    problem = make_problem()
    fit = fit_jointly(problem, [Observation(Trial(problem.rungs[0].name, 0.05), math.inf, 0.1)])
    assert np.isfinite(fit.optima).all()


def test_a_minimum_at_the_edge_leaves_a_wider_interval_than_a_bracketed_one():
    truth, problem = Truth(), wide(make_problem())
    bracketed = fit_jointly(problem, observed(problem, truth, rates=(0.5, 1.0, 2.0), rungs=problem.rungs[-1:]))
    edge = fit_jointly(problem, observed(problem, truth, rates=(0.06, 0.12, 0.25), rungs=problem.rungs[-1:]))
    widths = [math.log(fit.curves[0].high / fit.curves[0].low) for fit in (edge, bracketed)]
    assert widths[0] > widths[1]


def test_a_trial_that_its_limit_stopped_changes_nothing():
    truth, problem = Truth(), make_problem()
    history = observed(problem, truth, rungs=problem.rungs[:2])
    stopped = Observation(Trial(problem.rungs[0].name, 9e-3), math.nan, 0.1)
    assert fit_jointly(problem, [*history, stopped]).best_rate() == fit_jointly(problem, history).best_rate()


def calibration(draws: int) -> float:
    """The share of intervals that hold the truth, where truth is drawn from what the priors say."""
    rng = np.random.default_rng(7)
    inside = 0
    for _ in range(draws):
        base = make_problem(sizes=(0.1, 0.3), horizons=(0.0625, 0.25), seed=int(rng.integers(2**31)))
        p = base.priors
        shift, size, horizon = p.offset * rng.normal(), p.size * rng.normal(), p.horizon * rng.normal()
        curvature = p.curvature * math.exp(p.curvature_offset * rng.normal())
        history = []
        for rung in base.rungs:
            places = math.log(rung.parameters / 4e8), math.log(rung.tokens / 2e10)
            centre = p.law(rung) + shift + size * places[0] + horizon * places[1] + p.nugget * rng.normal()
            a = curvature * math.exp(p.curvature_spread * rng.normal())
            for step in (-1.0, 0.0, 1.0):
                x = p.law(rung) + step * math.log(2)
                u = 2 * (math.exp(0.7 * (x - centre)) - 0.7 * (x - centre) - 1) / 0.49
                loss = 3.0 + a * u
                history.append(Observation(Trial(rung.name, math.exp(x)), loss + base.noise * rng.normal(), 0.1))
        truth = p.law(base.target) + shift + p.nugget * rng.normal()
        low, high = fit_jointly(base, history).interval()
        inside += low <= math.exp(truth) <= high
    return inside / draws


@pytest.mark.slow
def test_eighty_percent_intervals_hold_the_truth_76_to_84_percent_of_the_time():
    share = calibration(500)
    print(f"coverage over 500 draws: {share:.3f}")
    assert 0.76 <= share <= 0.84
