"""The Python API: the commands as functions, a run as an object, and the modules in a plain Lightning Trainer."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas
import pytest
import torch

import skytrain
from skytrain.config import Composed
from tests.support.tiny import TINY


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Composed:
    root = tmp_path_factory.mktemp("api")
    composed = skytrain.compose(*TINY, f"store.root='{root}'", "trainer.log_every=1", "trainer.checkpoint_every=10")
    skytrain.prepare(composed, quiet=True)
    return composed


@pytest.fixture(scope="module")
def run(base: Composed) -> skytrain.Run:
    return skytrain.train(base, quiet=True)


def test_composing_and_planning_load_no_torch() -> None:
    script = (
        "import sys, skytrain\n"
        "planned = skytrain.plan('recipe=gpt2-124m-pile', 'budget.usd=150', market='spot')\n"
        "assert planned.choice.market == 'spot' and planned.rows()[0]['hours'] > 0, planned.why\n"
        "assert not {'torch', 'lightning', 'pandas'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_plan_is_written_only_where_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    skytrain.plan("recipe=gpt2-124m-pile", "budget.usd=150")
    assert list(tmp_path.iterdir()) == []
    skytrain.plan("recipe=gpt2-124m-pile", "budget.usd=150", out="mine.json")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.json"]
    with pytest.raises(skytrain.SkytrainError, match=r"budget\.usd=0\.01 is too small"):
        skytrain.plan("recipe=gpt2-124m-pile", "budget.usd=0.01")


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"market": "Spot"}, "market 'Spot'"),
        ({"nodes": 0}, "0 nodes"),
        ({"nodes": -1}, "-1 nodes"),
        ({"deadline_hours": 0}, "deadline of 0 hours"),
        ({"deadline_hours": float("nan")}, "deadline of nan hours"),
    ],
)
def test_a_limit_of_a_plan_that_means_nothing_is_refused(limits: dict[str, Any], said: str) -> None:
    with pytest.raises(skytrain.SkytrainError, match=said):
        skytrain.plan("recipe=gpt2-124m-pile", "budget.usd=150", **limits)


def test_a_store_without_runs_has_no_names(tmp_path: Path) -> None:
    assert skytrain.list_runs(f"store.root='{tmp_path}/none'") == []


def test_later_words_win_and_what_is_no_setting_is_named() -> None:
    base = skytrain.compose(*TINY)
    assert skytrain.compose(base, "trainer.steps=7").config.trainer.steps == 7
    assert base.config.trainer.steps == 20
    with pytest.raises(skytrain.SkytrainError, match="'quickstart' is not a setting"):
        skytrain.compose("quickstart")
    with pytest.raises(skytrain.SkytrainError, match=r"trainer\.steps"):
        skytrain.compose("trainer.step=7")


def test_groups_of_a_folder_stay_with_what_was_composed(tmp_path: Path) -> None:
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "mine.yaml").write_text("# @package _global_\ntrainer:\n  steps: 33\n")
    for folders in (tmp_path, str(tmp_path), [tmp_path]):
        base = skytrain.compose("recipe=mine", config_dirs=folders)
        assert skytrain.compose(base, "seed=2").config.trainer.steps == 33


def test_a_script_may_prepare_on_its_first_line(tmp_path: Path) -> None:
    """Workers do not run the script again, which would prepare in each of them."""
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(f"The document {name} is long enough to be kept. " * 20)
    script = tmp_path / "script.py"
    script.write_text(
        "import skytrain\n"
        "print('once', flush=True)\n"
        "words = ('data=text', \"data.source.paths='*.txt'\", 'data.workers=2', 'data.validation_fraction=0')\n"
        "prepared = skytrain.prepare(*words, 'tokenizer=bytes', quiet=True)\n"
        "print(prepared.train.documents)\n"
    )
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["once", "2"], done.stderr[-2000:]


def test_the_same_call_again_finds_the_run_finished(base: Composed, run: skytrain.Run, capsys) -> None:
    again = skytrain.train(base)
    assert again.url == run.url
    assert "nothing to do" in capsys.readouterr().err
    assert skytrain.list_runs(base) == [run.name]
    assert skytrain.load_run(None, base).url == run.url


def test_metrics_are_a_table_by_step(run: skytrain.Run) -> None:
    table = run.metrics()
    assert list(table.index) == list(range(1, 21))
    assert table["train/loss"].iloc[-1] < table["train/loss"].iloc[0]
    assert list(table["val/loss"].dropna().index) == [10, 20]
    assert run.status().state == "done"


def test_the_model_of_a_checkpoint_computes_the_loss_that_was_recorded(run: skytrain.Run) -> None:
    assert [each.step for each in run.checkpoints()] == [10, 20]
    table = run.metrics()
    for step in (10, 20):
        assert run.checkpoint(step).step == step
        assert run.evaluate(step, tokens=512).loss == pytest.approx(table["val/loss"][step], abs=1e-4)
    model = run.model(10)
    assert not model.training
    assert model(torch.zeros(1, 8, dtype=torch.long)).shape[:2] == (1, 8)
    with pytest.raises(skytrain.SkytrainError, match="15"):
        run.checkpoint(15)


def test_the_same_seed_generates_the_same_text(run: skytrain.Run) -> None:
    text = run.generate("ab", max_tokens=8)
    assert text == skytrain.generate("ab", run.name, run.composed, max_tokens=8)
    assert text != (other := skytrain.generate("ab", run.name, run.composed, max_tokens=8, seed=5))
    assert other == run.generate("ab", max_tokens=8, seed=5)


def test_tasks_are_scored_by_their_names(run: skytrain.Run, tmp_path: Path) -> None:
    items = [{"context": "a cat is an", "choices": ["animal", "number"], "label": 0}]
    (path := tmp_path / "mine.jsonl").write_text("".join(json.dumps(each) + "\n" for each in items))
    (results,) = skytrain.evaluate_tasks(run.name, tasks=[str(path)], settings=[run.composed])
    assert len(results.results) == 1
    with pytest.raises(skytrain.SkytrainError, match="helaswag"):
        skytrain.evaluate_tasks(run.name, tasks=["helaswag"], settings=[run.composed])


def test_what_no_command_line_checked_is_refused(base: Composed, run: skytrain.Run) -> None:
    with pytest.raises(skytrain.SkytrainError, match="processes=0"):
        skytrain.train(base, processes=0)
    with pytest.raises(skytrain.SkytrainError, match="precision 'fp16'"):
        skytrain.evaluate(run.name, base, precision="fp16")


def test_the_tokenizer_of_a_run_encodes_and_decodes(run: skytrain.Run) -> None:
    tokenizer = run.tokenizer()
    ids = tokenizer.encode_prompt("Return the")
    assert tokenizer.decode([each for each in ids if each != tokenizer.eot]) == "Return the"


def test_an_exported_folder_is_the_same_model(run: skytrain.Run, tmp_path: Path) -> None:
    folder = run.export(tmp_path / "out")
    assert (folder / "config.json").is_file()
    assert skytrain.evaluate(str(folder), run.composed, tokens=512).loss == pytest.approx(
        run.evaluate(tokens=512).loss, abs=0.02
    )
    with pytest.raises(skytrain.SkytrainError, match="out"):
        run.export(folder)


def test_a_plain_lightning_trainer_takes_the_same_steps(base: Composed, run: skytrain.Run) -> None:
    import lightning

    losses: list[float] = []

    class Losses(lightning.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_index) -> None:
            losses.append(float(outputs["loss"]) * trainer.accumulate_grad_batches)

    options = skytrain.trainer_options(base)
    trainer = lightning.Trainer(
        **options,
        callbacks=[Losses()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(skytrain.lightning_module(base), datamodule=skytrain.data_module(base))
    each = options["accumulate_grad_batches"]
    means = torch.tensor(losses).view(-1, each).mean(1)
    expected = torch.tensor(run.metrics()["train/loss"].to_numpy(dtype="float32"))
    assert len(means) == 20
    torch.testing.assert_close(means, expected, rtol=1e-4, atol=1e-4)


def test_a_plain_lightning_trainer_has_the_losses_for_its_loggers_and_callbacks(
    base: Composed, run: skytrain.Run, tmp_path: Path
) -> None:
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.loggers import CSVLogger

    options = skytrain.trainer_options(base)
    best = ModelCheckpoint(tmp_path, monitor="val/loss", filename="best")
    trainer = lightning.Trainer(
        **options,
        callbacks=[best],
        logger=CSVLogger(tmp_path, version=0),
        log_every_n_steps=1,
        val_check_interval=10 * options["accumulate_grad_batches"],
        check_val_every_n_epoch=None,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module, data = skytrain.lightning_module(base), skytrain.data_module(base)
    trainer.fit(module, datamodule=data)
    recorded = run.metrics()
    logged = pandas.read_csv(tmp_path / "lightning_logs" / "version_0" / "metrics.csv")
    torch.testing.assert_close(
        torch.tensor(logged["train/loss"].dropna().to_numpy(dtype="float32")),
        torch.tensor(recorded["train/loss"].to_numpy(dtype="float32")),
        rtol=1e-4,
        atol=1e-4,
    )
    expected = recorded["val/loss"].dropna()
    assert list(logged["val/loss"].dropna()) == pytest.approx(list(expected), abs=1e-4)
    assert float(best.best_model_score) == pytest.approx(expected.min(), abs=1e-4)
    (measured,) = trainer.validate(module, datamodule=data, verbose=False)
    assert measured["val/loss"] == pytest.approx(expected.iloc[-1], abs=1e-4)


def test_a_trainer_of_devices_that_do_not_divide_the_batch_is_refused(base: Composed) -> None:
    assert skytrain.trainer_options(base, devices=2)["accumulate_grad_batches"] == 1
    for devices, said in ((3, "3 devices"), (0, "devices=0")):
        with pytest.raises(skytrain.SkytrainError, match=said):
            skytrain.trainer_options(base, devices=devices)
    with pytest.raises(skytrain.SkytrainError, match="micro_batch"):
        skytrain.data_module(base, "trainer.micro_batch=auto")


def test_a_sweep_answers_with_a_rate(base: Composed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skytrain.tuning.machine._process_age", lambda: 36_000.0)  # as of a notebook
    began = time.monotonic()
    tuned = skytrain.tune(
        base,
        "tune.strategy=literature",
        "budget.usd=1",
        "tune.usd_per_hour=1",
        "tune.shortest=2",
        "run=sweep",
        quiet=True,
    )
    assert tuned.conclusion.answer.rate > 0
    # Not the notebook's ten hours. The end of this process is charged as long as heartbeats were late, 10 s at most.
    assert tuned.conclusion.money.spent_usd <= (time.monotonic() - began + 10) / 3600


def test_every_public_name_is_typed_and_documented() -> None:
    for name in skytrain.__all__:
        value = getattr(skytrain, name)
        assert inspect.getdoc(value), name
        if inspect.isfunction(value):
            signature = inspect.signature(value)
            assert signature.return_annotation is not inspect.Signature.empty, name
            assert all(each.annotation is not each.empty for each in signature.parameters.values()), name


@pytest.mark.slow
def test_several_processes_train_the_same_run(base: Composed, run: skytrain.Run) -> None:
    two = skytrain.train(base, "run=two", "parallel=ddp", processes=2, quiet=True)
    assert two.status().state == "done"
    assert two.metrics()["train/loss"].to_numpy() == pytest.approx(run.metrics()["train/loss"].to_numpy(), abs=1e-4)


@pytest.mark.slow
def test_a_job_that_cannot_start_says_why(base: Composed) -> None:
    with pytest.raises(skytrain.SkytrainError, match=r"(?s)exit code 2.*3 data-parallel ranks"):
        skytrain.train(base, "run=three", "parallel=ddp", processes=3, quiet=True)
