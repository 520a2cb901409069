"""What a loss costs: real runs of two settings, and the arithmetic of their curves."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from skytrain.cli.main import app
from skytrain.config import BatchSizes
from skytrain.pipelines import bench_loss as pipeline
from skytrain.pipelines.bench_loss import (
    Contender,
    LossBench,
    LossPoint,
    LossRun,
    bench_loss,
    loss_points,
    loss_rows,
    run_name,
    write_bench,
)
from skytrain.runs import Silent
from tests.support.tiny import tiny_config

pytestmark = pytest.mark.usefixtures("default_signals")


def configs(root, name, seeds, *words):
    plain = [tiny_config(root, *words, f"seed={seed}") for seed in seeds]
    return [replace(config, run=run_name(name, config)) for config in plain]


def test_settings_are_trained_with_each_seed_and_compared_at_the_first_ones_loss(root, tmp_path):
    few = ("trainer.steps=8", "trainer.validate_every=2")
    found = {
        "slow": configs(root, "slow", (1, 2), *few, "optimizer.lr=3e-4"),
        "fast": configs(root, "fast", (1,), *few),
    }
    bench = bench_loss(found, Silent(), usd_per_hour=3.6)
    slow, fast = bench.contenders
    assert [run.run[:-8] for run in slow.runs] == ["loss-slow-1-", "loss-slow-2-"]
    assert [point.tokens for point in slow.runs[0].points] == [512, 1024, 1536, 2048]
    assert bench.loss == max(run.points[-1].loss for run in slow.runs)
    assert slow.cost(bench.loss) is not None  # the first settings reach their own loss with every seed
    tokens, seconds = fast.cost(bench.loss)
    assert max(tokens) < 2048 and min(seconds) > 0
    files = write_bench(bench, tmp_path)
    assert {path.name for path in files} == {"results.json", "loss_by_seconds.svg", "loss_by_usd.svg"}
    assert json.loads((tmp_path / "results.json").read_text())["contenders"][1]["name"] == "fast"
    again = bench_loss(found, Silent(), loss=bench.loss)
    assert again.contenders == bench.contenders  # the runs are there already


def test_every_setting_that_decides_the_numbers_is_in_the_name_of_a_run(tmp_path):
    def name(tried, *words):
        return run_name(tried, tiny_config(tmp_path, "run=null", "seed=2", *words))

    usual = name("optimizer.lr=1e-3")
    assert usual.startswith("loss-optimizer.lr-1e-3-2-") and usual == name("optimizer.lr=1e-3")
    assert name("optimizer.lr=1e-3", "trainer.steps=9") != usual  # typed for all that are compared
    assert name("optimizer.lr=1e-3", "trainer.log_every=3") == usual
    assert name("").startswith("loss-2-")
    long = "trainer.batch_schedule=[{batch_tokens: 64K, until_tokens: 20M}] " * 5
    assert len(name(long)) < 130


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--try", "optimizer.lr='1e-3"], "--try optimizer.lr='1e-3: No closing quotation"),
        (["--try", "seed=4"], "seed=4: bench loss names its runs and trains the seeds 1 to N"),
        (["--try", "trainer.steps=3", "run=mine"], "run=mine: bench loss names its runs"),
    ],
)
def test_a_try_that_cannot_be_read_or_set_is_refused(words, problem):
    answer = CliRunner().invoke(app, ["bench", "loss", *words])
    assert answer.exit_code != 0 and problem in str(answer.exception)


def test_the_settings_of_a_try_win_over_those_of_all(monkeypatch):
    seen = {}
    monkeypatch.setattr(
        pipeline, "bench_loss", lambda configs, *_, **more: seen.update(configs) or LossBench((), 1.0, None)
    )
    words = [
        "recipe=quickstart",
        "optimizer.lr=1",
        "trainer.steps=50",
        "--try",
        "optimizer.lr=2",
        "--try",
        "",
        "--json",
    ]
    CliRunner().invoke(app, ["bench", "loss", *words], catch_exceptions=False)
    assert {name: each[0].optimizer.lr for name, each in seen.items()} == {"optimizer.lr=2": 2.0, "": 1.0}


def point(tokens, seconds, loss):
    return LossPoint(tokens, seconds, loss)


def test_what_a_loss_took_lies_between_the_validations_around_it():
    run = LossRun("r", 1, (point(100, 10.0, 4.0), point(200, 20.0, 2.0)))
    assert run.reached(3.0) == point(150, 15.0, 3.0)
    assert run.reached(5.0) == point(100, 10.0, 4.0)
    assert run.reached(1.9) is None


def test_the_first_steps_do_not_count_for_longer_than_the_others():
    records = [{"step": 1, "perf/step_ms": 90_000.0}, *({"step": n, "perf/step_ms": 100.0} for n in range(2, 11))]
    points = loss_points([{"step": 0, "val/loss": 9.0}, *records, {"step": 10, "val/loss": 3.0}], BatchSizes(64))
    assert points == [point(640, pytest.approx(1.0), 3.0)]


def test_the_table_has_means_with_intervals_and_says_what_was_not_reached():
    def runs(*seconds):
        return tuple(LossRun("r", n, (point(1_000_000, each, 2.0),)) for n, each in enumerate(seconds))

    short = Contender("never", (LossRun("r", 1, (point(10, 1.0, 3.0),)),))
    bench = LossBench((Contender("base", runs(3500.0, 3700.0)), Contender("ours", runs(600.0, 600.0)), short), 2.5, 3.0)
    _, base, ours, never = loss_rows(bench)
    assert base[2:6] == ("2.0000 ± 0.0000", "1.00M", "60.000 ± 21.183", "3.0000 ± 1.0592")
    assert ours[-1] == "6.00"
    assert never[3] == "not reached"
