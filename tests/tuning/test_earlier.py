"""Earlier sweeps of a store: where a new search starts, and which records count."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from skytrain.config import compose
from skytrain.storage import DamagedRecord, open_store
from skytrain.tuning import Observation, SweepStore, Trial, sweep_name
from skytrain.tuning.earlier import EarlierSweep, find_earlier, recorded_earlier, with_earlier
from skytrain.tuning.joint import fit_jointly
from skytrain.tuning.problem import Answer, Search
from skytrain.tuning.setting_up import make_problem, sweep_spec
from skytrain.tuning.strategies.registry import find_strategy
from skytrain.tuning.sweeps import Decision
from skytrain.tuning.trials import target_shape, trial_shapes
from tests.tuning import simulated
from tests.tuning.simulated import Truth, loss_of


@pytest.fixture
def store(tmp_path):
    return open_store(str(tmp_path))


@pytest.fixture(scope="module")
def quickstart():
    return compose(["recipe=quickstart", "tune.earlier=true"]).config  # Muon, configured at 5e-3


def finish(store, config, name: str, low: float = 0.015, high: float = 0.03) -> None:
    sweep = SweepStore(store, name)
    sweep.open({"name": name})
    recorded_earlier(sweep, config)
    sweep.save_answer(Answer(rate=math.sqrt(low * high), low=low, high=high))


def searched(config, earlier):
    return make_problem(
        config, target_shape(config).rung(1.0), [one.rung(0.1) for one in trial_shapes(config)], earlier
    )


def answered(problem, truth: Truth, usd: float) -> Answer:
    ladder = find_strategy("ladder")
    history: list[Observation] = []
    left = usd
    while (trial := ladder.propose(Search(problem, tuple(history), left, usd))) is not None:
        cost = problem.rung(trial.rung).usd
        left -= cost
        history.append(Observation(trial, loss_of(truth, problem, trial, np.random.default_rng(len(history))), cost))
    return ladder.answer(Search(problem, tuple(history), left, usd))


def earlier_at(problem, rate: float, name: str = "a") -> EarlierSweep:
    target = problem.target
    return EarlierSweep(
        name=name,
        parameters=target.parameters / 4,
        tokens=target.tokens,
        batch_tokens=target.batch_tokens,
        low=rate / 1.3,
        high=rate * 1.3,
    )


def test_a_new_search_starts_nearer_to_what_finished_sweeps_of_its_store_found(store, quickstart):
    finish(store, quickstart, "first")
    finish(store, quickstart, "second", low=0.02, high=0.04)
    earlier = find_earlier(store, quickstart, "new")
    assert [one.name for one in earlier] == ["first", "second"]
    before, after = searched(quickstart, ()), searched(quickstart, earlier)
    assert before.expected_rate(before.target) == pytest.approx(5e-3)
    assert 0.012 < after.expected_rate(after.target) < 0.03
    assert after.priors.offset < before.priors.offset  # a value that was found, not one that somebody configured
    width = [math.log(high / low) for low, high in (fit_jointly(one, ()).interval() for one in (after, before))]
    assert math.log(2) < width[0]  # the beliefs before stay possible


def test_trials_decide_between_earlier_sweeps_and_the_law():
    base = simulated.make_problem()  # expects 2e-3
    far = 8e-3
    problem = replace(base, priors=with_earlier(base.priors, base.target, [earlier_at(base, far)]))
    agrees, disagrees = answered(problem, Truth(level=far), 0.6), answered(problem, Truth(level=1.5e-3), 0.6)
    assert "earlier sweeps of the store (a) count" in agrees.why
    few = [answered(one, Truth(level=far), 0.1).rate for one in (problem, base)]  # with many, trials need no help
    assert few[1] < few[0] < far
    assert disagrees.low < 1.5e-3 < disagrees.high and disagrees.rate < 3e-3
    weights = [float(one.why.rpartition("count ")[2].rstrip("%")) for one in (agrees, disagrees)]
    assert weights[0] > 60 and weights[1] < 40


@pytest.mark.parametrize("level", [1e-12, 1e12])
def test_an_answer_far_from_anything_expected_moves_nothing(level):
    problem = simulated.make_problem()
    assert with_earlier(problem.priors, problem.target, [earlier_at(problem, level)]) is problem.priors


def test_other_optimizers_parametrizations_and_unfinished_sweeps_do_not_count(store, quickstart):
    finish(store, compose(["recipe=quickstart", "optimizer=adamw", "tune.earlier=true"]).config, "adamw")
    finish(store, compose(["recipe=quickstart", "model.parametrization=mup", "model.base_width=64"]).config, "mup")
    sweep = SweepStore(store, "unfinished")
    sweep.open({"name": "unfinished"})
    recorded_earlier(sweep, quickstart)
    finish(store, quickstart, "own")
    SweepStore(store, "own").save_answer(Answer(rate=5e-3, low=4e-3, high=6e-3, own=False))
    finish(store, quickstart, "me")
    assert find_earlier(store, quickstart, "me") == ()


@pytest.mark.parametrize(
    "settings",
    [
        ["tune.earlier=false"],
        ["tune.earlier=true", "tune.expected=0.01"],
        ["tune.earlier=true", "tune.axis=weight_decay"],
    ],
)
def test_settings_that_say_where_a_search_starts_leave_earlier_sweeps_out(store, quickstart, settings):
    finish(store, quickstart, "first")
    assert find_earlier(store, compose(["recipe=quickstart", *settings]).config, "new") == ()


@pytest.mark.parametrize(
    "fields",
    [
        b"not json",
        b"[1, 2]",
        b'{"low": NaN, "high": 1.0, "own": true}',
        b'{"low": 0.01, "high": Infinity, "own": true}',
        b'{"low": -1, "high": 1, "own": true}',
        b'{"low": "0.01", "high": 0.02, "own": true}',
        b'{"low": true, "high": 2, "own": true}',
        b'{"low": 0.02, "high": 0.01, "own": true}',
        b'{"low": 1' + b"0" * 400 + b', "high": 1' + b"0" * 401 + b', "own": true}',
        b'{"low": 0.01, "high": 0.02, "own": "yes"}',
        b"[" * 100_000,
    ],
)
def test_damaged_answers_are_left_out_and_hide_no_other_sweep(store, quickstart, fields):
    finish(store, quickstart, "bad")
    finish(store, quickstart, "good")
    store.write("sweeps/bad/answer.json", fields)
    assert [one.name for one in find_earlier(store, quickstart, "new")] == ["good"]


@pytest.mark.parametrize("place", ["0", "-5", '"1e9"', "null", "NaN", "1e300", "{}"])
def test_damaged_targets_are_left_out_and_named(store, quickstart, place, caplog):
    finish(store, quickstart, "bad")
    record = json.loads(store.read("sweeps/bad/earlier.json"))
    text = json.dumps({**record, "target": {**record["target"], "tokens": "HERE"}}).replace('"HERE"', place)
    store.write("sweeps/bad/earlier.json", text.encode())
    assert find_earlier(store, quickstart, "new") == ()
    assert "sweep 'bad' does not count for this one" in caplog.text


def test_a_sweep_keeps_the_earlier_ones_that_it_began_with(store, quickstart):
    finish(store, quickstart, "first")
    sweep = SweepStore(store, "new")
    sweep.open({"name": "new"})
    began = recorded_earlier(sweep, quickstart)
    finish(store, quickstart, "second")
    store.delete("sweeps/first/answer.json")
    assert [one.name for one in began] == ["first"]
    assert recorded_earlier(SweepStore(store, "new"), quickstart) == began


def test_a_sweep_that_an_earlier_version_began_continues_without_them(store, quickstart):
    finish(store, quickstart, "first")
    sweep = SweepStore(store, "old")
    sweep.open({"name": "old"})
    sweep.decide(Decision(1, Trial("2x32-75", 5e-3), 0.1, "ladder"))
    assert recorded_earlier(sweep, quickstart) == ()


def test_a_damaged_record_of_the_sweep_itself_is_an_error(store, quickstart):
    sweep = SweepStore(store, "new")
    sweep.open({"name": "new"})
    recorded_earlier(sweep, quickstart)
    store.write("sweeps/new/earlier.json", b'{"sweeps": [{"name": "\x1b[2J", "low": 1}]}')
    with pytest.raises(DamagedRecord):
        recorded_earlier(sweep, quickstart)


def test_the_setting_changes_the_question_only_where_it_is_turned_on(quickstart):
    off = compose(["recipe=quickstart"]).config
    assert "earlier" not in sweep_spec(off, "t")["tune"]
    assert sweep_spec(off, "t") != sweep_spec(quickstart, "t")
    assert sweep_name(off) != sweep_name(quickstart)
