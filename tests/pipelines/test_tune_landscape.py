"""Whole sweeps over made-up losses: several settings in turn, where the best value of one depends on the other."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import pytest

from skytrain.config import Config, ConfigError, SkytrainError
from skytrain.pipelines import tune as tuning_story
from skytrain.pipelines.tune import tune
from skytrain.runs import Silent, boot_clock
from skytrain.storage import open_store, read_object
from skytrain.tuning import Ledger, SweepStore, TrialResult, plan_sweep, shape_named, trial_config, tune_here
from skytrain.tuning.ledger import BudgetError, Entry
from tests.pipelines.test_tune import SWEEP
from tests.support.tiny import tiny_config

pytestmark = pytest.mark.usefixtures("young_process")

BUDGET = 3.0
ONE_AXIS = ("tune.expected=null", "optimizer.lr=0.01", "optimizer.weight_decay=0.1", f"budget.usd={BUDGET}")


def loss_of(config: Config) -> float:
    """A valley that is oblique to all axes: its bottom is not reached by one search along each."""
    rate, decay = math.log(config.optimizer.lr / 0.04), math.log(config.optimizer.weight_decay / 0.0125)
    batch = math.log(config.trainer.batch_tokens / 512)
    warmup = math.log(config.lr_schedule.warmup_steps / config.trainer.steps / 0.5)
    return 3 + 0.05 * (rate + decay) ** 2 + 0.02 * (rate - decay) ** 2 + 0.05 * (batch - warmup) ** 2 + 0.02 * batch**2


class Landscape:
    """In the place of LocalRunner; remembers the runs that it was asked for."""

    ran: list[Config]
    interrupted: str = ""  # the sweep whose third trial is interrupted, once

    def __init__(self, sweep, shapes, price, reporter) -> None:
        self._sweep, self._shapes, self._price = sweep.name, shapes, price

    def run(self, number, trial, limit_usd) -> TrialResult:
        if self._sweep == Landscape.interrupted and number == 3:
            Landscape.interrupted = ""
            raise KeyboardInterrupt
        config = trial_config(shape_named(self._shapes, trial.rung), trial, f"{self._sweep}-{number:03d}")
        Landscape.ran.append(config)
        return TrialResult(loss_of(config), self._price.charged(1.0), 1.0, {})


@pytest.fixture(autouse=True)
def landscape(monkeypatch):
    estimate = tuning_story.StepEstimate(step_seconds=0.05, first_seconds=0.2, start_seconds=10.0)
    monkeypatch.setattr("skytrain.pipelines.tune.dry_run", lambda config, reporter: estimate)
    monkeypatch.setattr("skytrain.pipelines.tune.LocalRunner", Landscape)
    monkeypatch.setattr("skytrain.pipelines.tune.write_sweep_report", lambda *_: None)  # of every turn
    Landscape.ran, Landscape.interrupted = [], ""


def test_a_second_round_searches_each_axis_where_the_others_have_moved_to_also_after_an_interruption(root):
    config = tiny_config(root, *SWEEP, *ONE_AXIS, "tune.name=two", "tune.axes=[lr,weight_decay]")
    Landscape.interrupted = "two-3-lr"
    with pytest.raises(tuning_story.SweepInterrupted):
        tune(config, Silent())
    store = open_store(str(root))
    before = {name: SweepStore(store, name).answer() for name in ("two-1-lr", "two-2-weight_decay")}
    tuned = tune(config, Silent())
    names = store.folders("sweeps")
    assert names[:4] == ["two-1-lr", "two-2-weight_decay", "two-3-lr", "two-4-weight_decay"]
    assert {name: SweepStore(store, name).answer() for name in before} == before  # begun with, so they stay
    third = [one for one in Landscape.ran if one.run.startswith("two-3-lr")]
    assert {one.optimizer.weight_decay for one in third} == {before["two-2-weight_decay"].rate}
    assert len({one.run for one in Landscape.ran}) == len(Landscape.ran)  # no trial twice
    words = dict(word.split("=") for word in tuned.final_overrides.split())
    reached = tiny_config(root, *SWEEP, *(f"{key}={value}" for key, value in words.items()))
    first_round = (before["two-1-lr"].rate, before["two-2-weight_decay"].rate)
    after_one = tiny_config(root, *SWEEP, f"optimizer.lr={first_round[0]}", f"optimizer.weight_decay={first_round[1]}")
    assert loss_of(reached) < loss_of(after_one)
    spent = sum(Ledger(store, f"sweeps/{name}", BUDGET).spent_usd for name in names)
    assert spent + tuned.conclusion.final_usd <= BUDGET and len(tuned.turns) == len(names)


def test_batch_and_warmup_are_tuned_together_and_every_trial_trains_on_the_same_tokens(root):
    config = tiny_config(
        root, *SWEEP, *ONE_AXIS, "tune.name=bw", "tune.axes=[batch_tokens,warmup]", "tune.horizons=[1]"
    )
    tuned = tune(config, Silent())
    tokens = config.trainer.steps * config.trainer.batch_tokens * config.tune.horizons[0]
    for one in Landscape.ran:
        unit = one.trainer.batch_tokens
        assert abs(one.trainer.steps * unit - tokens) <= unit and one.lr_schedule.warmup_steps <= one.trainer.steps
    assert len({one.trainer.batch_tokens for one in Landscape.ran}) > 3
    words = dict(word.split("=") for word in tuned.final_overrides.split())
    assert set(words) == {"trainer.batch_tokens", "trainer.steps", "lr_schedule.warmup_steps"}
    whole = config.trainer.steps * config.trainer.batch_tokens
    reached = int(words["trainer.batch_tokens"]) * int(words["trainer.steps"])
    assert abs(reached - whole) <= int(words["trainer.batch_tokens"])
    assert 1 <= int(words["lr_schedule.warmup_steps"]) <= int(words["trainer.steps"])


def test_a_dry_run_of_several_axes_shows_the_first_with_its_share_of_the_dollars(root):
    config = tiny_config(root, *SWEEP, *ONE_AXIS, "tune.axes=[warmup,lr]")
    schedule = plan_sweep(config, Silent(), tuning_story.dry_run)
    assert schedule.axes == ("warmup", "lr")
    assert sum(one.usd for one in schedule.trials) <= (BUDGET - schedule.final_usd) / 2
    with pytest.raises(ConfigError, match=r"tune.lowest: is a value of one axis, and tune.axes names several"):
        plan_sweep(
            tiny_config(root, *SWEEP, *ONE_AXIS, "tune.axes=[lr,warmup]", "tune.lowest=0.001"),
            Silent(),
            tuning_story.dry_run,
        )


def test_a_sweep_that_cannot_pay_its_own_restart_says_what_is_missing_and_charges_nothing(root):
    config = tiny_config(root, *SWEEP, "tune.name=poor", "budget.usd=2")
    tuned = tune(config, Silent())
    store = open_store(str(root))
    left = SweepStore(store, "poor").decisions()[-1]
    store.delete(f"sweeps/poor/trials/{left.number:03d}.json")  # as if it had been killed in its last trial
    ledger = Ledger(store, "sweeps/poor", 2.0)
    ledger.charge("overhead-lost", ledger.left_usd + left.most_usd - left.usd)  # nor has the trial's limit room for it
    spent = Ledger(store, "sweeps/poor", 2.0).spent_usd
    with pytest.raises(
        BudgetError, match=r"has \$0.0000 left, and starting again takes .*\n.*continues it is budget.usd=2"
    ):
        tune(config, Silent())
    assert Ledger(store, "sweeps/poor", 2.0).spent_usd == pytest.approx(spent)
    more = tune(replace(config, budget=replace(config.budget, usd=5.0)), Silent())
    assert len(more.history) >= len(tuned.history)


def test_the_least_that_a_refusal_names_works_and_asking_again_costs_nothing(root):
    config = tiny_config(
        root, *SWEEP, "tune.name=least", "tune.strategy=ladder", "tune.usd_per_hour=360", "budget.usd=10"
    )
    store = open_store(str(root))

    def refused() -> float:
        with pytest.raises(BudgetError, match="the least that works") as error:
            tune_here(config, Silent(), tuning_story.sweep_tools(), since=boot_clock() - 5)
        return float(re.search(r"budget.usd=([\d.]+);", str(error.value))[1])

    refused()  # and charged for what it measured
    spent = Ledger(store, "sweeps/least", 10.0).spent_usd
    least = refused()
    assert Ledger(store, "sweeps/least", 10.0).spent_usd == spent
    enough = replace(config, budget=replace(config.budget, usd=least))
    assert tune_here(enough, Silent(), tuning_story.sweep_tools(), since=boot_clock() - 5).history
    assert sum(one.usd for one in Ledger(store, "sweeps/least", least).entries) <= least


def test_what_a_killed_process_had_reserved_buys_trials_when_the_sweep_is_continued(root, monkeypatch):
    config = tiny_config(root, *SWEEP, "tune.name=killed", "budget.usd=2")
    store = open_store(str(root))

    def killed(table, progress):
        if progress.number == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("skytrain.tuning.machine.LiveTable.finished", killed)
        patch.setattr("skytrain.tuning.hosts.SweepHost.leave", lambda host, ledger, state: None)
        with pytest.raises(SkytrainError, match="was interrupted"):
            tune(config, Silent())
    (beat,) = store.list("sweeps/killed/workers/")
    session = read_object(store, beat.key)
    store.write(beat.key, json.dumps({**session, "process": "999999999-1"}).encode())
    ledger, entry = Ledger(store, "sweeps/killed", 2.0), f"overhead-{session['name']}"
    ledger.replace(Entry(entry, ledger.usd(entry) + ledger.left_usd))  # as beside a long trial in another slot
    assert len(tune(config, Silent()).history) > 2
    assert Ledger(store, "sweeps/killed", 2.0).entry(entry).charged_usd is not None
    assert not list(store.list("sweeps/killed/workers/"))
