"""`skytrain tune` on real runs of a tiny model."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from skytrain.config import ConfigError, SkytrainError
from skytrain.pipelines import tune as tuning_story
from skytrain.pipelines.train import train
from skytrain.pipelines.tune import tune
from skytrain.runs import Silent, load_run, read_metrics
from skytrain.storage import open_store
from skytrain.tuning import HourlyPrice, Ledger, SweepStore, Trial, compare_sweeps, plan_sweep, trial_config
from skytrain.tuning.costs import priced_problem
from skytrain.tuning.ledger import BudgetError
from skytrain.tuning.sweeps import Decision
from skytrain.tuning.trials import target_shape, trial_shapes
from tests.support.tiny import tiny_config

pytestmark = pytest.mark.usefixtures("young_process")

SWEEP = (
    "trainer.steps=48",
    "trainer.checkpoint_every=null",
    "lr_schedule.warmup_steps=12",
    "tune.name=s",
    "tune.strategy=grid",
    "tune.usd_per_hour=3.6",  # a tenth of a cent a second
    "tune.shortest=4",
    "tune.horizons=[0.125]",
    "tune.sizes=[1x16]",
    "tune.expected=0.01",
)
REAL_DRY_RUN = tuning_story.dry_run


@pytest.fixture(autouse=True)
def quick_estimates(monkeypatch):
    """Measuring twenty steps takes longer than the trials of these tests."""
    estimate = tuning_story.StepEstimate(step_seconds=0.05, first_seconds=0.2, start_seconds=10.0)
    monkeypatch.setattr("skytrain.pipelines.tune.dry_run", lambda config, reporter: estimate)


def test_a_killed_sweep_continues_with_the_same_command_and_pays_no_trial_twice(root, monkeypatch):
    config = tiny_config(root, *SWEEP, "budget.usd=2")
    calls = []

    def killed_in_the_third(config, reporter, start):
        calls.append(config.run)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return train(config, reporter, start)

    monkeypatch.setattr("skytrain.pipelines.train.train", killed_in_the_third)
    with pytest.raises(tuning_story.SweepInterrupted, match="the same command continues it"):
        tune(config, Silent())
    tuned = tune(config, Silent())
    store = open_store(str(root))
    assert calls[:4] == ["s-001", "s-002", "s-003", "s-003"] and len(calls) == len(set(calls)) + 1
    ledger = Ledger(store, "sweeps/s", 2.0)
    trials = [entry for entry in ledger.entries if entry.what.startswith("trial")]
    assert len(trials) == len(tuned.history) >= 5
    assert all(entry.charged_usd is not None for entry in trials)
    assert ledger.spent_usd + tuned.conclusion.final_usd <= 2.0
    schedule = load_run(store, "s-001").config
    assert (schedule["trainer"]["steps"], schedule["lr_schedule"]["warmup_steps"]) == (6, 2)  # its own, complete
    assert schedule["model"]["width"] in (16, 32) and schedule["seed"] == config.seed
    assert len(tuned.conclusion.lines()) == 3 and "optimizer.lr=" in tuned.final_overrides
    assert {one.strategy for one in tuned.others} >= {"ladder", "greedy", "tpe"}
    assert "answer" in [row[0] for row in compare_sweeps(config, "s", "s")]
    written = {stat.key: stat.modified for stat in store.list("sweeps/s/ledger/")}
    again = tune(config, Silent())  # there is nothing left to buy: reading the answer is free
    assert again.conclusion.answer == tuned.conclusion.answer and len(calls) == len(set(calls)) + 1
    assert {stat.key: stat.modified for stat in store.list("sweeps/s/ledger/")} == written


def test_a_trial_that_diverges_is_charged_and_ends_early(root):
    config = tiny_config(
        root, *SWEEP, "tune.name=d", "budget.usd=2", "tune.expected=2e5", "tune.lowest=1e5", "tune.highest=4e5"
    )
    with pytest.raises(BudgetError, match="trials diverged, down to"):
        tune(config, Silent())
    found = SweepStore(open_store(str(root)), "d").history()
    assert found and all(one.diverged and one.usd > 0 for one in found.values())


def test_a_trial_on_a_trunk_equals_one_from_scratch_and_pays_only_the_rest(root):
    words = ("lr_schedule=wsd", "lr_schedule.warmup_steps=12", "tune.trunk=true", "tune.horizons=[0.25,0.5]")
    config = tiny_config(root, *SWEEP, *words, "tune.name=w", "trainer.device=cpu")
    store, shapes = open_store(str(root)), trial_shapes(config)
    runner = tuning_story.LocalRunner(SweepStore(store, "w"), shapes, HourlyPrice(3.6, 0.1), Silent())
    sweep = SweepStore(store, "w")
    for number, rung in enumerate(("1x16-12", "1x16-24"), 1):
        sweep.decide(Decision(number, Trial(rung, 0.01), 1.0, "halving"))
        runner.run(number, Trial(rung, 0.01), 1.0)
    assert load_run(store, "w-002").started_from == "w-001@10"  # the decay is a fifth of the steps
    long = next(shape for shape in shapes if shape.name == "1x16-24")
    alone = replace(trial_config(long, Trial("1x16-24", 0.01), "alone"), tune=replace(config.tune, trunk=False))
    train(alone, Silent())
    losses = {
        run: {
            (one["step"], name): one[name]
            for one in read_metrics(store, run)
            for name in ("train/loss", "val/loss", "train/lr")
            if name in one and one["step"] > 10
        }
        for run in ("w-002", "alone")
    }
    assert losses["w-002"] == losses["alone"] and (24, "val/loss") in losses["alone"]
    with pytest.raises(ConfigError, match=r"tune.trunk: lr_schedule=cosine has no constant part"):
        trial_shapes(tiny_config(root, *SWEEP, "tune.trunk=true", "lr_schedule=cosine"))


@pytest.mark.slow
def test_two_axes_share_a_budget_and_each_turn_starts_where_the_others_are(root, monkeypatch):
    monkeypatch.setattr("skytrain.tuning.axes.MOST_ROUNDS", 1)  # as if the second round had no money
    words = ("tune.name=both", "tune.expected=null", "optimizer.lr=0.01", "budget.usd=3", "tune.axes=[lr,weight_decay]")
    config = tiny_config(root, *SWEEP, *words)
    tuned = tune(config, Silent())
    store = open_store(str(root))
    sweeps = store.folders("sweeps")
    assert sweeps[:2] == ["both-1-lr", "both-2-weight_decay"] and len(tuned.turns) == len(sweeps)
    first = SweepStore(store, "both-1-lr").answer()
    second = SweepStore(store, "both-2-weight_decay")
    assert load_run(store, "both-2-weight_decay-001").config["optimizer"]["lr"] == pytest.approx(first.rate)
    spent = sum(Ledger(store, f"sweeps/{name}", 3.0).spent_usd for name in sweeps)
    assert spent + tuned.conclusion.final_usd <= 3.0 and second.history()
    assert "optimizer.lr=" in tuned.final_overrides and "optimizer.weight_decay=" in tuned.final_overrides
    with pytest.raises(ConfigError, match=r"tune.axes: 'beta' cannot be tuned"):
        tune(tiny_config(root, *SWEEP, "budget.usd=3", "tune.axes=[beta]"), Silent())


@pytest.mark.parametrize(
    "words, message",
    [
        (("tune.usd_per_hour=0", "budget.usd=1"), "tune.usd_per_hour: is 0, and a search without a price has no limit"),
        (("tune.usd_per_hour=1",), "budget.usd: is not set"),
        (("budget.usd=1", "tune.usd_per_hour=null"), "tune.usd_per_hour: the price of this machine is unknown"),
        (("budget.usd=1", "tune.sizes=[big]"), "tune.sizes: 'big' is not LAYERSxWIDTH"),
        (("budget.usd=1", "tune.sizes=[1x17]"), "tune.sizes: the width 17 is not a multiple of the heads' "),
        (
            ("budget.usd=1", "tune.shortest=40", "tune.horizons=[0.1]"),
            "tune.horizons: .* are all below tune.shortest=40",
        ),
        (("budget.usd=1", "tune.strategy=latter"), "tune.strategy: 'latter' is not a strategy"),
        (("budget.usd=1", "tune.lowest=1", "tune.highest=0.1"), "tune.lowest: 1 is not below tune.highest=0.1"),
        (("budget.usd=1", "tune.steps=[0,12]"), "tune.steps: 0 is not a number of steps"),
        (("budget.usd=1", "tune.steps=[12,48]"), "tune.steps: 48 is not below the target's 48 steps"),
        (("budget.usd=1", "tune.sizes=[4x64]"), "tune.sizes: 4x64 is not smaller than the target's 2x32"),
        (("budget.usd=1", "lr_schedule.warmup_steps=48"), "lr_schedule.warmup_steps: 48 is not below the run's 48"),
        (("budget.usd=1", "tune.expected=1e9"), "tune.expected: 1e[+]09 is not a value that lr can have"),
        (("budget.usd=1", "tune.expected=1e-30"), "tune.expected: 1e-30 is not a value that lr can have"),
        (("budget.usd=1", "tune.final_from_step=48"), "tune.final_from_step: 48 is not below the run's 48 steps"),
    ],
)
def test_bad_settings_are_one_message_before_anything_is_paid(root, words, message, monkeypatch):
    monkeypatch.setattr("skytrain.pipelines.tune.dry_run", None)  # nothing is measured either
    config = tiny_config(root, *SWEEP, "tune.name=bad", *words)
    with pytest.raises(SkytrainError, match=message) as caught:
        tune(config, Silent())
    assert caught.value.exit_code == 2
    assert not open_store(str(root)).list("sweeps/bad/trials/")


def test_a_process_that_is_killed_while_it_loads_torch_is_charged(root, monkeypatch):
    """Its heartbeat is there before."""

    def killed():
        (record,) = open_store(str(root)).list("sweeps/loads/workers/")
        raise RuntimeError(record.key)

    monkeypatch.setattr("skytrain.pipelines.tune.load_training", killed)
    with pytest.raises(RuntimeError, match="sweeps/loads/workers/"):
        tune(tiny_config(root, *SWEEP, "tune.name=loads", "budget.usd=2"), Silent())
    found = subprocess.run(
        [sys.executable, "-c", "import sys, skytrain.pipelines.tune; print('torch' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == "False\n"


def test_a_signal_while_steps_are_measured_ends_the_sweep_cleanly_and_charges_the_time(
    root, monkeypatch, default_signals
):
    class Signalling(Silent):
        def progress(self, stage, done, total, detail="", seconds_left=None):
            if stage == "measure":
                os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("skytrain.pipelines.tune.dry_run", REAL_DRY_RUN)
    config = tiny_config(root, *SWEEP, "tune.name=term", "budget.usd=2")
    with pytest.raises(tuning_story.SweepInterrupted, match="the same command continues it"):
        tune(config, Signalling())
    store = open_store(str(root))
    assert not list(store.list("sweeps/term/workers/"))  # no heartbeat of a process that has left
    (entry,) = SweepStore(store, "term").entries()
    assert entry.what.startswith("overhead-") and entry.charged_usd > 0


def test_a_trial_that_its_limit_stops_does_not_advise_to_raise_the_budget_of_a_run():
    told = []

    class Telling(Silent):
        def note(self, text):
            told.append(text)

    trial = tuning_story.TrialReporter(Telling(), 8)
    trial.note("budget: the run will cost $0.05: saving at step 20, then stopping\n  raise budget.usd and run it again")
    assert told == ["trial 8: budget: the run will cost $0.05: saving at step 20, then stopping"]


def test_no_model_is_measured_once_the_budget_is_used(root, monkeypatch):
    """Measuring every model of a sweep of one cent on an expensive machine has cost dollars."""
    measured = []
    quick = tuning_story.dry_run

    def expensive(config, reporter):
        measured.append(config.model.name)
        store = open_store(str(root))
        Ledger(store, "sweeps/cent", 1000.0).charge("overhead-other", 999.0)  # as a killed process
        return quick(config, reporter)

    monkeypatch.setattr("skytrain.pipelines.tune.dry_run", expensive)
    with pytest.raises(
        BudgetError, match=r"does not pay for measuring the models' steps: \$999\.\d+ are spent\n.*--dry-run"
    ):
        tune(tiny_config(root, *SWEEP, "tune.name=cent", "budget.usd=999"), Silent())
    assert len(measured) == 1  # the first, of two models and a warm-up
    (entry,) = (one for one in SweepStore(open_store(str(root)), "cent").entries() if one.what != "overhead-other")
    assert entry.charged_usd is not None


def test_a_dry_run_lists_trials_within_the_budget_and_spends_nothing(root):
    config = tiny_config(root, *SWEEP, "tune.name=dry", "budget.usd=2", "tune.strategy=ladder")
    schedule = plan_sweep(config, Silent(), tuning_story.dry_run)
    assert schedule.trials and sum(one.usd for one in schedule.trials) + schedule.final_usd <= 2.0
    assert not open_store(str(root)).list("sweeps/dry/")
    with pytest.raises(BudgetError, match="the least that works is budget"):
        plan_sweep(tiny_config(root, *SWEEP, "budget.usd=0.001"), Silent(), tuning_story.dry_run)


def test_a_dry_run_refuses_what_the_sweep_would_refuse_on_this_machine(root):
    with pytest.raises(ConfigError, match=r"tune.parallel: 4096 trials at the same time need as many cores"):
        plan_sweep(tiny_config(root, *SWEEP, "budget.usd=2", "tune.parallel=4096"), Silent())
    rented = ("tune.instance=g5.xlarge", "tune.parallel=2")
    with pytest.raises(ConfigError, match=r"need as many GPUs, and g5\.xlarge has 1\n  try tune.parallel=1"):
        plan_sweep(tiny_config(root, *SWEEP, "budget.usd=2", *rented), Silent())


def test_a_look_without_measuring_guesses_and_uses_what_the_sweep_has_measured(root):
    config = tiny_config(root, *SWEEP, "tune.name=look", "budget.usd=2", "tune.strategy=ladder")
    schedule = plan_sweep(config, Silent())
    assert schedule.trials and schedule.source.startswith("guessed") and 0 < schedule.final_usd < 2
    estimate = {"step_seconds": 0.01, "first_seconds": 0.2, "start_seconds": 3.0}
    shapes = [*trial_shapes(config), target_shape(config)]
    names = {f"{one.config.model.name}-{one.config.trainer.batch_tokens}" for one in shapes}
    SweepStore(open_store(str(root)), "look").save("estimates", dict.fromkeys(names, estimate))
    assert plan_sweep(config, Silent()).source == "measured on this machine"


def test_what_is_reserved_for_the_final_run_covers_what_its_budget_keeps_back_for_the_last_validation(root):
    config = tiny_config(root, *SWEEP, "budget.usd=2", "trainer.validate_tokens=4K", "budget.margin=30s")
    price, shape = HourlyPrice(3.6, 0.0), target_shape(config)
    estimate = tuning_story.StepEstimate(step_seconds=0.05, first_seconds=0.2, start_seconds=10.0)
    shapes = trial_shapes(config)
    estimates = {f"{one.config.model.name}-{one.config.trainer.batch_tokens}": estimate for one in (*shapes, shape)}
    _, final_usd = priced_problem(config, shapes, estimates, price)
    run = estimate.seconds(config, shape.parameters)
    held = 30 + 1.5 * (0.05 * 4096 / config.trainer.batch_tokens + 0.05 + 0.5)  # as BudgetWatch counts it
    assert final_usd >= price.usd(run + held)
    resumed = replace(config, tune=replace(config.tune, final_from_step=47))
    assert price.usd(30 + 10) < priced_problem(resumed, shapes, estimates, price)[1] < final_usd  # starting is no less


def test_an_instance_type_is_planned_for_by_the_planner(root):
    words = ("budget.usd=100", "tune.instance=g5.xlarge", "tune.usd_per_hour=1.5", "trainer.device=auto")
    schedule = plan_sweep(tiny_config(root, *SWEEP, *words), Silent())
    assert schedule.source == "predicted for g5.xlarge" and schedule.final_usd > 0
    with pytest.raises((ConfigError, SkytrainError), match="g5"):
        plan_sweep(tiny_config(root, *SWEEP, *words, "tune.instance=g5.huge"), Silent())
