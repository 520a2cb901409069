"""What `skytrain tune` prints at its end, and which names it takes."""

from __future__ import annotations

import shlex

import pytest

from skytrain.cli.tune import _answer_text, run_command
from skytrain.config import ConfigError, compose
from skytrain.pipelines.tune import TunedSweep
from skytrain.tuning import Conclusion, Problem, Rung, sweep_name
from skytrain.tuning.conclusions import SweepMoney
from skytrain.tuning.laws import priors_for
from skytrain.tuning.problem import Answer


def test_the_final_run_is_limited_to_its_reserve_at_the_price_of_the_sweep():
    rung = Rung(name="target", parameters=1e6, tokens=1e6, batch_tokens=1e4, usd=1.0)
    problem = Problem(target=rung, rungs=(), lowest=1e-5, highest=1.0, priors=priors_for(rung, lambda one: -5.0))
    conclusion = Conclusion(
        answer=Answer(0.01, why="prior only"),
        axis="lr",
        trials=0,
        money=SweepMoney(budget_usd=2.0, trials_usd=0.015, overhead_usd=0.005, final_usd=0.01172),
        tokens_usd=None,
        warnings=(),
    )
    tuned = TunedSweep(
        name="s",
        url="file:///s",
        problem=problem,
        history=[],
        conclusion=conclusion,
        others=[],
        final_overrides="optimizer.lr=0.01",
        from_step=0,
    )
    words = ["store.root=/my folder", "trainer.loggers=[]", "tune.usd_per_hour=3.6", "budget.usd=2"]
    text = _answer_text(tuned, words, 3.6)
    command = next(line for line in text.splitlines() if "skytrain train" in line)
    assert shlex.split(command)[2:] == [
        "store.root=/my folder",
        "trainer.loggers=[]",
        "optimizer.lr=0.01",
        "run=s-final",
        "budget.usd=0.0118",
        "budget.usd_per_hour=3.6",
    ]


@pytest.mark.parametrize("name", ["a b", "a/b", "../x", ".", "x" * 101, "$(ls)"])
def test_a_name_that_cannot_be_part_of_runs_and_commands_is_refused_before_anything_is_measured(name):
    with pytest.raises(ConfigError, match=r"tune.name: .* cannot name a sweep"):
        sweep_name(compose([f"tune.name='{name}'"]).config)


def test_a_sweep_of_weights_that_are_not_here_is_planned_for_a_machine_and_not_timed_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"tune\.instance: meta-llama/Llama-3\.1-8B is not here"):
        run_command(["recipe=llama-3.1-8b-p4d", "budget.usd=3000"], dry_run=True)


def test_a_dry_run_says_what_the_search_would_leave_of_its_dollars(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run_command(["recipe=tune-hw5", "budget.usd=40"], dry_run=True)
    *_, last = capsys.readouterr().out.splitlines()
    assert last.startswith("$19.85 would be left: ") and last.endswith("no further one is worth its money.")
    # A grid has its rates, whatever another trial is worth.
    run_command(["recipe=tune-hw5", "budget.usd=100", "tune.strategy=grid"], dry_run=True)
    *_, last = capsys.readouterr().out.splitlines()
    assert last.endswith("grid asks for no further one that fits.")
