"""The joint fit against synthetic truth."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from skytrain.tuning import Observation, Problem, Rung, Trial
from skytrain.tuning.curve import SKEWS, u_shape
from skytrain.tuning.joint import fit_jointly
from skytrain.tuning.laws import centred_law, priors_for
from skytrain.tuning.problem import Priors
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
    return replace(
        problem, priors=Priors(lambda rung: math.log(1e-3), offset=1.5, size_exponent=1.0, exponent=1.0, nugget=0.02)
    )


def test_exponents_that_no_law_has_are_followed_to_the_target():
    truth = Truth(level=3e-3, size=-0.62, horizon=0.23)
    problem = wide(make_problem(noise=0.0005))
    fit = fit_jointly(problem, observed(problem, truth, np.random.default_rng(1)))
    assert fit.best_rate() == pytest.approx(3e-3, rel=0.12)
    halfway = Rung(name="between", parameters=2e8, tokens=2e10, batch_tokens=5e5, usd=1.0)
    low, middle, high = fit.projected([halfway])[0]
    assert low < 3e-3 * 0.5**-0.62 < high and middle == pytest.approx(3e-3 * 0.5**-0.62, rel=0.15)


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
    walled = fit_jointly(problem, [*finite, Observation(Trial(rung.name, 2.5e-3), math.inf, 0.1)])
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


def test_a_law_that_is_off_by_a_factor_of_ten_does_not_hold_the_fit_back():
    truth, problem = Truth(level=2e-2), make_problem(noise=0.0005)
    fit = fit_jointly(problem, observed(problem, truth))
    assert fit.best_rate() == pytest.approx(2e-2, rel=0.25)


def test_a_jump_above_the_optimum_moves_it_less_than_a_steep_curve_would():
    problem, rung = wide(make_problem()), make_problem().rungs[-1]
    centre = math.exp(Truth().optimum(rung, problem.target))
    curve = [
        (rate, loss_of(Truth(), problem, Trial(rung.name, centre * rate))) for rate in (0.35, 0.5, 0.71, 1.0, 1.41)
    ]
    history = [Observation(Trial(rung.name, centre * rate), loss, 0.1) for rate, loss in curve]
    jumped = Observation(Trial(rung.name, centre * 2.0), curve[3][1] + 0.4, 0.1)  # the U says 0.02
    fit = fit_jointly(problem, [*history, jumped])
    assert fit.curves[0].optimum == pytest.approx(centre, rel=0.2)


def test_one_rate_on_each_rung_leaves_the_prior_as_it_was():
    problem = make_problem()
    alone = fit_jointly(problem, [])
    fit = fit_jointly(problem, [Observation(Trial(rung.name, 2e-3), 3.0, 0.1) for rung in problem.rungs])
    widths = [math.log(one.interval()[1] / one.interval()[0]) for one in (alone, fit)]
    assert widths[1] == pytest.approx(widths[0], rel=0.3)
    assert len(fit.curves) == len(problem.rungs) and not alone.curves


def test_noise_that_hides_the_curve_widens_the_interval():
    rates = tuple(2.0**step for step in range(-2, 3))
    spans = []
    for noise in (0.001, 0.1):
        problem = wide(make_problem(noise=0.001))
        history = observed(replace(problem, noise=noise), Truth(), np.random.default_rng(3), rates, problem.rungs[-2:])
        low, high = fit_jointly(problem, history).interval()
        spans.append(math.log(high / low))
    assert spans[1] > 2 * spans[0]


def test_the_same_rate_measured_twice_counts_twice_and_breaks_nothing():
    truth, problem = Truth(), make_problem()
    history = observed(problem, truth, rungs=problem.rungs[-1:])
    twice = [*history, *(replace(one, trial=replace(one.trial, seed=1)) for one in history)]
    assert fit_jointly(problem, twice).best_rate() == pytest.approx(fit_jointly(problem, history).best_rate(), rel=0.1)


def test_a_trial_at_the_targets_size_and_horizon_is_worth_more_than_one_far_from_it():
    truth, base = Truth(), make_problem(sizes=(0.1, 1.0), horizons=(0.0625, 1.0))
    spans = {}
    for name in ("n0.1-d0.0625", "n1-d1"):
        history = observed(base, truth, rungs=[base.rung(name)])
        low, high = fit_jointly(base, history).interval()
        spans[name] = math.log(high / low)
    assert spans["n1-d1"] < 0.7 * spans["n0.1-d0.0625"]


def calibration(draws: int) -> float:
    """The share of intervals that hold the truth, where truth is drawn from what the priors say."""
    rng = np.random.default_rng(7)
    inside = 0
    for _ in range(draws):
        base = make_problem(sizes=(0.1, 0.3), horizons=(0.0625, 0.25), seed=int(rng.integers(2**31)))
        believed = fit_jointly(base, (), base.rungs)
        component = rng.choice(len(believed.mixture.weights), p=believed.mixture.weights)
        optima = rng.multivariate_normal(
            believed.mixture.means[component], believed.mixture.covariances[component], method="svd"
        )
        curvature = 0.08 * math.exp(1.0 * rng.normal())
        skew = float(rng.choice(SKEWS))
        history = []
        for rung in base.rungs:
            place = optima[believed.rungs.index(rung)]
            best = believed.expected(rung)
            for step in (-2, -1.0, 0.0, 1.0, 2):
                x = math.log(best) + step * math.log(2)
                above = curvature * float(u_shape(np.array(x - place), skew))
                history.append(Observation(Trial(rung.name, math.exp(x)), 3.0 + above + base.noise * rng.normal(), 0.1))
        low, high = fit_jointly(base, history).interval()
        inside += low <= math.exp(optima[believed.rungs.index(base.target)]) <= high
    return inside / draws


@pytest.mark.slow
def test_eighty_percent_intervals_hold_the_truth_74_to_88_percent_of_the_time():
    share = calibration(300)
    print(f"coverage over 300 draws: {share:.3f}")
    assert 0.74 <= share <= 0.88


def test_a_law_that_predicts_the_rungs_outweighs_one_that_does_not():
    problem = make_problem(noise=0.0005)
    follows = fit_jointly(problem, observed(problem, Truth(size=-0.4, horizon=0.0)))
    unchanged = fit_jointly(problem, observed(problem, Truth(size=0.0, horizon=0.0)))
    assert follows.shape_weights["law"] > 0.7
    assert unchanged.shape_weights["unchanged"] > 0.7


def test_rungs_that_contradict_each_other_widen_the_interval():
    problem = replace(make_problem(sizes=(0.3, 1.0)), priors=replace(make_problem().priors, nugget=0.05))
    truth = Truth(size=-0.4, horizon=0.0, scatter=0.0)
    agreeing = fit_jointly(problem, observed(problem, truth))
    odd = {problem.rungs[0].name: 6.0, problem.rungs[2].name: 1 / 6.0}
    shifted = [
        replace(one, trial=replace(one.trial, rate=one.trial.rate * odd.get(one.trial.rung, 1.0)))
        for one in observed(problem, truth)
    ]
    contradicting = fit_jointly(problem, shifted)
    assert agreeing.wider == 1.0
    assert contradicting.wider > 1.3
    spans = [math.log(one.interval()[1] / one.interval()[0]) for one in (agreeing, contradicting)]
    assert spans[1] > 1.5 * spans[0]


def test_the_nearest_rung_does_not_silence_all_others_that_contradict_it():
    problem, truth = make_problem(sizes=(0.1, 0.3, 1.0), noise=0.0005), Truth(size=-0.3, horizon=0.1, scatter=0.0)
    odd = problem.rungs[-1].name
    history = [
        replace(one, trial=replace(one.trial, rate=4 * one.trial.rate)) if one.trial.rung == odd else one
        for one in observed(problem, truth)
    ]
    away = math.log(fit_jointly(problem, history).best_rate()) - truth.optimum(problem.target, problem.target)
    assert abs(away) < 0.25


def walled(problem, truth, gap, rungs):
    """The trials of some rungs, with the first rate that diverges `gap` above the best."""
    trials = [
        Observation(Trial(rung.name, math.exp(truth.optimum(rung, problem.target) + gap)), math.inf, rung.usd)
        for rung in rungs
    ]
    return [*observed(problem, truth, rungs=rungs), *trials]


def test_how_far_the_best_rate_is_from_diverging_is_learned_from_other_rungs():
    problem, truth = make_problem(noise=0.0005), Truth(size=0.0, horizon=0.0, scatter=0.0)
    near, far = (fit_jointly(problem, walled(problem, truth, gap, problem.rungs[:3])) for gap in (0.8, 2.6))
    place = math.log(near.best_rate()) + 1.2
    assert near.divergence(place) > 0.6 > 0.3 > far.divergence(place)


def test_far_trials_never_say_more_than_near_ones_however_many():
    truth, problem = Truth(), make_problem(sizes=(0.1, 1.0), horizons=(0.0625, 0.25))
    far = observed(problem, truth, rates=(0.25, 0.35, *RATES, 2.8, 4.0), rungs=[problem.rung("n0.1-d0.0625")])
    near = observed(problem, truth, rates=(0.5, 1.0, 2.0), rungs=[problem.rung("n1-d0.25")])
    spans = [
        math.log(one.interval()[1] / one.interval()[0])
        for one in (fit_jointly(problem, far), fit_jointly(problem, near))
    ]
    assert spans[1] < 0.8 * spans[0]


def test_a_rate_far_too_low_is_no_divergence():
    """Losses of short runs with Muon: the lowest rates end over a nat above the best."""
    target = Rung(name="4x128-400", parameters=8e5, tokens=4e5, batch_tokens=1024, usd=1.0)
    rungs = (
        Rung(name="2x32-50", parameters=2.5e4, tokens=5e4, batch_tokens=1024, usd=0.1),
        Rung(name="2x64-100", parameters=1e5, tokens=1e5, batch_tokens=1024, usd=0.2),
    )
    problem = Problem(
        target=target, rungs=rungs, lowest=1e-5, highest=1.0, priors=priors_for(target, centred_law(target, 5e-3))
    )
    short = {0.00164: 7.93, 0.0131: 6.66, 0.0263: 6.45, 0.0526: 6.327, 0.105: 6.324, 0.149: 6.38}
    longer = {0.00138: 7.01, 0.0111: 5.938, 0.0221: 5.893, 0.0442: 5.921}
    history = [
        Observation(Trial(rung.name, rate), loss, rung.usd)
        for rung, losses in zip(rungs, (short, longer), strict=True)
        for rate, loss in losses.items()
    ]
    fit = fit_jointly(problem, history)
    assert [curve.optimum for curve in fit.curves] == pytest.approx([0.08, 0.025], rel=0.4)


def test_losses_far_from_the_expected_rate_are_not_explained_by_one_below_all_of_them():
    """Far below all rates a U with exponential arms is too high for floating point: its differences are rounding."""
    problem = Problem(
        target=Rung(name="target", parameters=1e5, tokens=16384, batch_tokens=256, usd=1.0),
        rungs=(Rung(name="half", parameters=1e5, tokens=8192, batch_tokens=256, usd=0.5),),
        lowest=1e-7,
        highest=0.1,
        priors=Priors(centred_law(None, 1e-4), offset=0.8),
    )
    losses = {0.005524: 3.5156, 0.01105: 3.4132, 0.0221: 3.4059}
    fit = fit_jointly(problem, [Observation(Trial("half", rate), loss, 0.5) for rate, loss in losses.items()])
    low, high = fit.interval()
    assert 1e-5 < low < fit.best_rate() < high and high > 5e-3
