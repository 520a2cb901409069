"""Callbacks and loggers of the user's own, by the paths of their classes; what TensorBoard and W&B are told."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
from lightning.pytorch.loggers import Logger

from skytrain.checkpoints import committed_steps, load_model
from skytrain.cli.train import check_loggers
from skytrain.config import ConfigError, MissingExtra, compose, plugin_targets
from skytrain.pipelines.prepare import prepare
from skytrain.pipelines.train import train
from skytrain.runs import Silent, read_metrics
from skytrain.storage import open_store
from tests.support.tiny import tiny_config
from tests.support.waiting import wait_until

SEEN: list[Any] = []
STEPS = ("trainer.steps=2", "lr_schedule.warmup_steps=1", "trainer.validate_every=2")


class Counting(pl.Callback):
    """Notes each step, and the argument that it was made with."""

    def __init__(self, word: str) -> None:
        self.word = word

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        SEEN.append((self.word, trainer.global_step))


class Scaling(pl.Callback):
    """Changes the weights after each step by what it draws, and notes those that it leaves."""

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        for parameter in module.parameters():
            parameter.data.mul_(1 + 1e-3 * random.random())
        SEEN.append((trainer.global_step, sum(float(one.detach().sum()) for one in module.parameters())))


class Remembering(Logger):
    """Keeps what it is told."""

    @property
    def name(self) -> str:
        return "remembering"

    @property
    def version(self) -> str:
        return ""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        SEEN.append((step, dict(metrics)))

    def log_hyperparams(self, params: Any, *_: Any, **__: Any) -> None:
        SEEN.append(dict(params))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    prepare(tiny_config(tmp_path), Silent())
    SEEN.clear()
    return tmp_path


def test_own_callbacks_and_loggers_take_part(root: Path) -> None:
    own = ["{target: tests.training.test_own_callbacks.Counting, word: x}"]
    words = [f"trainer.callbacks=[{own[0]}]", "trainer.loggers=[tests.training.test_own_callbacks.Remembering]"]
    train(tiny_config(root, "run=own", *STEPS, *words), Silent())
    assert [one for one in SEEN if one == ("x", 1) or one == ("x", 2)]
    [settings] = [one for one in SEEN if isinstance(one, dict)]
    assert settings["trainer.steps"] == 2 and settings["model.width"] == 32 and "optimizer.lr" in settings
    told = {name for one in SEEN if isinstance(one, tuple) and isinstance(one[1], dict) for name in one[1]}
    assert {"train/loss", "val/loss", "val/perplexity"} <= told
    last = read_metrics(open_store(str(root)), "own")[-1]
    assert last["val/perplexity"] == pytest.approx(2.718281828 ** last["val/loss"])


def test_what_own_callbacks_do_in_a_step_is_in_its_checkpoint(root: Path) -> None:
    words = ("trainer.steps=4", "trainer.validate_every=2", "trainer.checkpoint_every=2")
    own = "trainer.callbacks=[tests.training.test_own_callbacks.Scaling]"
    train(tiny_config(root, "run=scaled", *words, own), Silent())
    first = dict(reversed(SEEN))  # of a step's micro-batches, the one that completes it
    for step in committed_steps(open_store(str(root)), "scaled"):
        saved = load_model(open_store(str(root)), f"scaled@{step}").model
        assert sum(float(one.detach().sum()) for one in saved.parameters()) == first[step]


def test_tensorboard_gets_the_settings(root: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(tiny_config(root, "run=board", *STEPS, "trainer.loggers=[tensorboard]"), Silent())
    events = EventAccumulator(str(root / "runs" / "board" / "tensorboard")).Reload()
    found = events.SummaryMetadata("_hparams_/session_start_info")
    assert b"optimizer.lr" in found.plugin_data.content


def test_classes_are_sent_to_machines_and_wrong_ones_are_refused(root: Path) -> None:
    words = ["trainer.callbacks=[{target: a.B}]", "trainer.loggers=[c.D, tensorboard]"]
    assert set(plugin_targets(compose(words).values)) == {"a.B", "c.D"}
    with pytest.raises(ConfigError, match="is not a Callback"):
        train(tiny_config(root, "run=wrong", *STEPS, "trainer.callbacks=[{target: pathlib.Path}]"), Silent())
    with pytest.raises(ConfigError, match="did you mean tensorboard"):
        compose(["trainer.loggers=[tensorbord]"])


def test_a_logger_without_its_package_is_found_before_ranks_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skytrain.cli.train.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="wandb"):
        check_loggers(compose(["trainer.loggers=[wandb]"]).config)


@pytest.mark.slow
def test_wandb_writes_project_group_tags_and_settings_offline(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason="pip install 'skytrain[wandb]'")
    monkeypatch.setenv("WANDB_SILENT", "true")
    named = ["wandb.project=stories", "wandb.group=sizes", "wandb.tags=[small]"]
    words = ["trainer.loggers=[wandb]", "wandb.mode=offline", *named]
    train(tiny_config(root, "run=watched", *STEPS, *words), Silent())
    wandb.finish()  # as the end of the process does
    [file] = root.rglob("run-watched.wandb")
    wanted = (b"watched", b"stories", b"sizes", b"small", b"optimizer.lr", b"train/loss", b"val/perplexity")
    wait_until(lambda: all(word in file.read_bytes() for word in wanted))  # its own process writes the file
