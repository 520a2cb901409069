"""Whole sweeps on a simulated trainer, with kills, divergences and noisy times."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from skytrain.storage import open_store
from skytrain.tuning import Ledger, Observation, SweepStore, Trial
from skytrain.tuning.conclusions import SweepMoney, conclusion_of, other_answers
from skytrain.tuning.driver import SweepSetup, begin_sweep, read_state, run_sweep, run_trial, search_of, take
from skytrain.tuning.ledger import BudgetError
from skytrain.tuning.strategies.base import size_rungs
from skytrain.tuning.strategies.registry import find_strategy
from skytrain.tuning.sweeps import Decision
from tests.tuning.simulated import FailingStore, Killed, SimulatedRunner, Truth, make_problem

BUDGET, FINAL = 2.0, 1.1


def setup_of(store, runner, strategy="grid", name="s"):
    sweep = SweepStore(store, name)
    return SweepSetup(
        sweep=sweep,
        ledger=Ledger(store, sweep.folder, BUDGET),
        problem=runner.problem,
        strategy=find_strategy(strategy),
        runner=runner,
        final_usd=FINAL,
    )


def run_until_done(store, runner, strategy):
    """Starts the sweep again after every kill; the number of starts."""
    for start in range(1, 400):
        try:
            return run_sweep(setup_of(store, runner, strategy)), start
        except Killed:
            continue
    raise AssertionError("the sweep never ended")


def random_sweep(number: int, folder, strategies) -> None:
    """One sweep with kills against the same sweep without: same answer, no dollar too many, nothing lost."""
    rng = np.random.default_rng(number)
    strategy = strategies[number % len(strategies)]
    truth = Truth(level=10 ** rng.uniform(-3.3, -2.2), size=rng.uniform(-0.8, -0.2), wall=rng.uniform(0.8, 2.5))
    problem = make_problem(seed=number)
    plain = SimulatedRunner(truth, problem, np.random.default_rng(number))
    quiet = run_sweep(setup_of(open_store(str(folder / "plain")), plain, strategy))
    store = open_store(str(folder / "killed"))
    steady = SteadyTimes(plain, np.random.default_rng(number + 10_000))
    failing = FailingStore(store, np.random.default_rng(number + 20_000), 0.03)
    answer, _ = run_until_done(failing, steady, strategy)
    sweep = SweepStore(store, "s")
    ledger = Ledger(store, sweep.folder, BUDGET)
    billed = sum(steady.bill.values())
    assert billed + FINAL <= BUDGET + 1e-9, f"sweep {number} ({strategy}) overspent"
    assert ledger.spent_usd == pytest.approx(billed)
    assert set(sweep.history()) == {one.number for one in sweep.decisions()} == set(steady.bill), "a trial was lost"
    assert answer == quiet, f"sweep {number} ({strategy}) answers differently after a resume"


class SteadyTimes(SimulatedRunner):
    """Kills at random; a trial costs in the end what it costs without kills, as a resumed run does."""

    def __init__(self, plain: SimulatedRunner, rng) -> None:
        super().__init__(plain.truth, plain.problem, rng, kill_chance=0.25)
        self._costs, self.stopped = plain.bill, plain.stopped

    def run(self, number, trial, limit_usd):
        if self.rng.random() < self.kill_chance:
            self.bill[number] = min(self._costs.get(number, limit_usd), self.bill.get(number, 0.0) + 0.01)
            raise Killed
        known = SimulatedRunner(self.truth, self.problem, _Fixed())
        known.losses = self.losses
        result = known.run(number, trial, limit_usd)
        cost = self._costs.get(number, result.usd)
        self.bill[number] = cost
        return type(result)(None if number in self.stopped else result.loss, cost, cost * 3600, {})


class _Fixed:
    def lognormal(self, *_):
        return 1.0

    def random(self):
        return 1.0


def test_random_sweeps_with_kills_spend_within_budget_and_answer_the_same(tmp_path):
    for number in range(8):
        random_sweep(number, tmp_path / str(number), ("grid", "greedy", "halving", "random"))


@pytest.mark.slow
def test_two_hundred_random_sweeps_with_kills_divergences_and_noisy_times(tmp_path):
    strategies = (
        "ladder",
        "grid",
        "greedy",
        "hyperband",
        "model-scaling",
        "random",
        "data-scaling",
        "early-stopping+ladder",
    )
    for number in range(200):
        random_sweep(number, tmp_path / str(number), strategies)


def test_times_far_above_their_estimates_never_break_the_budget(tmp_path):
    for number in range(10):
        runner = SimulatedRunner(Truth(), make_problem(), _Slow(number))
        store = open_store(str(tmp_path / str(number)))
        run_sweep(setup_of(store, runner, "grid"))
        assert sum(runner.bill.values()) + FINAL <= BUDGET + 1e-9


class _Slow:
    """Every trial takes one to three times its estimate."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def lognormal(self, *_):
        return self._rng.uniform(1.0, 3.0)

    def random(self):
        return 1.0


def test_a_budget_below_the_final_run_and_one_trial_names_the_least_that_works(tmp_path):
    runner = SimulatedRunner(Truth(), make_problem(), np.random.default_rng(0))
    sweep = SweepStore(open_store(str(tmp_path)), "s")
    ledger = Ledger(sweep.store, sweep.folder, 1.0)
    with pytest.raises(BudgetError, match=r"the least that works is budget.usd=1.11"):
        run_sweep(
            SweepSetup(
                sweep=sweep,
                ledger=ledger,
                problem=runner.problem,
                strategy=find_strategy("grid"),
                runner=runner,
                final_usd=FINAL,
            )
        )
    assert not runner.bill and BudgetError.exit_code == 6


def test_when_all_trials_diverge_there_is_no_answer_and_nothing_is_lost(tmp_path):
    runner = SimulatedRunner(Truth(wall=-10.0), make_problem(), np.random.default_rng(0))
    store = open_store(str(tmp_path))
    with pytest.raises(BudgetError, match="trials diverged"):
        run_sweep(setup_of(store, runner))
    assert len(SweepStore(store, "s").history()) == len(runner.bill) > 3


def test_an_optimum_at_the_edge_of_the_allowed_rates_is_told(tmp_path):
    problem = replace(make_problem(), highest=1.5e-3)
    runner = SimulatedRunner(Truth(level=1e-2), problem, np.random.default_rng(0))
    store = open_store(str(tmp_path))
    answer = run_sweep(setup_of(store, runner))
    history = list(SweepStore(store, "s").history().values())
    conclusion = conclusion_of(problem, history, answer, "lr", SweepMoney(BUDGET, 0.4, 0.1, FINAL))
    assert any("at the edge of what tune.highest allows" in line for line in conclusion.warnings)


def test_the_reserve_of_the_final_run_grows_with_what_trials_take_over_their_measured_steps(tmp_path):
    problem = make_problem()
    rungs = tuple(replace(rung, steps_usd=0.8 * rung.usd, around_usd=0.1 * rung.usd) for rung in problem.rungs)
    problem = replace(problem, rungs=rungs)
    setup = setup_of(open_store(str(tmp_path)), SimulatedRunner(Truth(), problem, np.random.default_rng(0)))
    begin_sweep(setup)
    rung = setup.problem.rungs[0]

    def revised(number: int, usd: float) -> float:
        setup.sweep.decide(Decision(number, Trial(rung.name, 1e-3 * number), rung.usd, "grid"))
        setup.sweep.finish(number, Observation(Trial(rung.name, 1e-3 * number), 3.0, usd))
        read_state(setup)
        return setup.ledger.usd("final")

    assert revised(1, 0.7 * rung.probable_usd) == pytest.approx(FINAL)  # never less than estimated
    assert revised(2, 1.5 * rung.probable_usd) == pytest.approx(1.1 * FINAL)
    assert revised(3, 1.5 * rung.probable_usd) == pytest.approx(1.5 * FINAL)


def test_what_was_expected_anyway_is_not_listed_as_a_strategys_own_answer(tmp_path):
    setup = setup_of(open_store(str(tmp_path)), SimulatedRunner(Truth(), make_problem(), np.random.default_rng(0)))
    run_sweep(setup)
    history = list(setup.sweep.history().values())
    names = {one.strategy for one in other_answers(search_of(setup, history))}
    assert {"grid", "ladder"} <= names and "model-scaling" not in names  # no trial of a smaller model was bought


def test_the_best_rate_of_one_size_is_not_listed_as_a_projection_over_sizes(tmp_path):
    problem = make_problem()
    setup = setup_of(open_store(str(tmp_path)), SimulatedRunner(Truth(), problem, np.random.default_rng(0)))
    small = size_rungs(problem)[0]
    history = [Observation(Trial(small.name, rate), loss, small.usd) for rate, loss in ((1e-3, 3.1), (2e-3, 3.0))]
    names = {one.strategy for one in other_answers(search_of(setup, history))}
    assert "ladder" in names and "model-scaling" not in names


def test_the_only_rate_of_a_rung_is_not_listed_as_the_minimum_that_a_strategy_found(tmp_path):
    problem = make_problem()
    setup = setup_of(open_store(str(tmp_path)), SimulatedRunner(Truth(), problem, np.random.default_rng(0)))
    history = [Observation(Trial(rung.name, 1e-3), 3.0, rung.usd) for rung in problem.rungs]
    assert {one.strategy for one in other_answers(search_of(setup, history))} == {"ladder"}
    history += [Observation(Trial(rung.name, 2e-3), 3.1, rung.usd) for rung in problem.rungs]
    names = {one.strategy for one in other_answers(search_of(setup, history))}
    assert {"grid", "halving", "model-scaling", "transfer"} <= names


def test_a_reserve_without_a_decision_is_taken_back_by_the_next_start(tmp_path):
    runner = SimulatedRunner(Truth(), make_problem(), np.random.default_rng(0))
    setup = setup_of(open_store(str(tmp_path)), runner)
    setup.ledger.reserve("trial-001", 0.85)  # killed here: the decision was never written
    run_sweep(setup)
    assert len(runner.bill) >= 5
    assert setup.ledger.spent_usd == pytest.approx(sum(runner.bill.values()))


def test_a_restart_that_nothing_was_left_for_is_paid_from_the_limit_of_the_trial_that_it_resumes(tmp_path, monkeypatch):
    runner = SimulatedRunner(Truth(), make_problem(), np.random.default_rng(0))
    setup, limits = setup_of(open_store(str(tmp_path)), runner), []
    monkeypatch.setattr(runner, "run", lambda number, trial, limit_usd: limits.append(limit_usd))
    begin_sweep(setup)
    taken = take(setup)
    run_trial(setup, taken)
    setup.ledger.charge("overhead-again", setup.ledger.left_usd + 0.01)
    run_trial(setup, taken)
    assert limits == [pytest.approx(taken.most_usd), pytest.approx(taken.most_usd - 0.01)]


def test_of_two_workers_that_decide_a_number_the_first_has_decided_it(tmp_path):
    sweep = SweepStore(open_store(str(tmp_path)), "s")
    assert sweep.decide(Decision(1, Trial("a", 1e-3), 0.1, "grid"))
    assert not sweep.decide(Decision(1, Trial("b", 1e-3), 0.1, "grid"))
    assert sweep.decisions()[0].trial.rung == "a"


def test_a_sweep_of_another_specification_is_refused_with_what_differs(tmp_path):
    sweep = SweepStore(open_store(str(tmp_path)), "s")
    sweep.open({"tokenizer": "bpe-1", "tune": {"strategy": "ladder"}})
    sweep.open({"tokenizer": "bpe-1", "tune": {"strategy": "ladder"}})
    with pytest.raises(ValueError, match="tokenizer: 'bpe-1' -> 'bpe-2'"):
        sweep.open({"tokenizer": "bpe-2", "tune": {"strategy": "ladder"}})


def test_a_sweep_that_was_refused_before_its_first_trial_may_be_corrected_under_its_name(tmp_path):
    store = open_store(str(tmp_path))
    sweep, ledger = SweepStore(store, "s"), Ledger(store, "sweeps/s", 10.0)
    sweep.open({"tune": {"sizes": None}})
    sweep.save("estimates", {})
    ledger.reserve("final", 9.9)
    ledger.charge("overhead-here", 0.05)
    sweep.open({"tune": {"sizes": ["1x16"]}}, idle=True)
    assert sweep.spec() == {"tune": {"sizes": ["1x16"]}} and sweep.load("estimates") is None
    assert [entry.what for entry in sweep.entries()] == ["overhead-here"]  # what was paid stays paid
    with pytest.raises(ValueError, match="exists with a different specification"):
        sweep.open({"tune": {"sizes": None}})  # another process measures its trials now
    sweep.decide(Decision(1, Trial("a", 1e-3), 0.1, "grid"))
    with pytest.raises(ValueError, match="exists with a different specification"):
        sweep.open({"tune": {"sizes": None}}, idle=True)


def test_losses_survive_the_store_also_those_that_are_no_numbers(tmp_path):
    sweep = SweepStore(open_store(str(tmp_path)), "s")
    for number, loss in enumerate((2.5, math.inf, math.nan), 1):
        sweep.finish(number, Observation(trial=Trial("a", 1e-3), loss=loss, usd=0.1, seconds=3.0, extra={"run": "x"}))
    found = [sweep.history()[number] for number in (1, 2, 3)]
    assert found[0].loss == 2.5 and found[1].diverged and not found[2].finite and not found[2].diverged
