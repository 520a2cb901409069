"""Training through every way to read tokens."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from skytrain.config import ConfigError, SkytrainError, forget_trust, trust
from skytrain.pipelines.evaluate import LossRequest, evaluate
from skytrain.pipelines.train import train
from skytrain.runs import Silent, load_run, read_metrics
from skytrain.storage import open_store
from tests.support.tiny import tiny_config

TWO = "loader.mixture=[{from_step: 0, weights: {a: 0.75, b: 0.25}}, {from_step: 5, weights: {a: 0.5, b: 0.5}}]"


def losses(root: Path, run: str) -> list[float]:
    return [record["train/loss"] for record in read_metrics(open_store(str(root)), run) if "train/loss" in record]


@pytest.fixture
def two_sets(root: Path) -> Path:
    """The data set under two more names."""
    (name,) = (path.name for path in (root / "tokens").iterdir())
    for copy in ("a", "b"):
        shutil.copytree(root / "tokens" / name, root / "tokens" / copy)
    return root


@pytest.mark.parametrize(
    "options",
    [
        ["loader.shuffle=blocks"],
        ["loader.packing=documents"],
        [TWO],
        [TWO, "loader.shuffle=blocks", "trainer.workers=1"],
    ],
)
def test_a_run_that_was_stopped_continues_with_the_losses_of_the_unbroken_one(
    two_sets: Path, options: list[str]
) -> None:
    train(tiny_config(two_sets, "run=whole", *options), Silent())
    train(tiny_config(two_sets, "run=parts", "trainer.stop_at_step=7", *options), Silent())
    train(tiny_config(two_sets, "run=parts", *options), Silent())
    assert len(losses(two_sets, "whole")) == 20 and losses(two_sets, "parts") == losses(two_sets, "whole")


def test_a_mixture_leaves_the_manifests_of_its_sources_in_the_record(two_sets: Path) -> None:
    trained = train(tiny_config(two_sets, TWO), Silent())
    record = load_run(open_store(str(two_sets)), trained.run)
    assert {prefix.split("/")[1] for prefix in record.data} >= {"a", "b"}


def test_the_time_spent_waiting_for_data_is_a_metric(root: Path) -> None:
    trained = train(tiny_config(root), Silent())
    waits = [
        record["perf/data_wait_ms"]
        for record in read_metrics(open_store(str(root)), trained.run)
        if "train/loss" in record
    ]
    assert len(waits) == 20 and min(waits) > 0


def test_llmc_files_train_as_the_shards_they_are(root: Path) -> None:
    shard = next(root.glob("tokens/*/*/*/train/shard-00000.bin"))
    files = [
        "loader=files",
        f"loader.files.train={shard.parent}/*.bin",
        f"loader.files.validation={shard.parents[1]}/validation/*.bin",
    ]
    train(tiny_config(root, "run=ours"), Silent())
    train(tiny_config(root, "run=files", *files), Silent())
    assert losses(root, "files") == losses(root, "ours")
    trust(files[1:])  # a record names these files, and so does the person
    for split in ("train", "validation"):  # what a run read is what it is measured on, whatever the settings now say
        mine, theirs = (evaluate(tiny_config(root), LossRequest(run, split), Silent())[1] for run in ("ours", "files"))
        assert theirs == mine
    forget_trust()


def test_a_split_that_the_files_do_not_have_is_named(root: Path) -> None:
    shard = next(root.glob("tokens/*/*/*/train/shard-00000.bin"))
    files = ["loader=files", f"loader.files.train={shard.parent}/*.bin", "trainer.validate_every=null"]
    train(tiny_config(root, "run=files", *files, "trainer.steps=3"), Silent())
    with pytest.raises(SkytrainError, match=r"loader\.files names no validation files"):
        evaluate(tiny_config(root), LossRequest("files"), Silent())


@pytest.mark.parametrize("packing", ["windows", "documents"])
def test_documents_kept_apart_change_what_is_learned_and_train(root: Path, packing: str) -> None:
    def curve(*options: str) -> list[float]:
        run = train(tiny_config(root, f"loader.packing={packing}", "model.max_length=64", *options), Silent()).run
        return [r["train/loss"] for r in read_metrics(open_store(str(root)), run) if "train/loss" in r]

    mixed, apart = curve(), curve("loader.separate_documents=true")
    assert apart[-1] < apart[0] - 0.3
    assert apart != mixed


def test_evaluate_sees_documents_as_training_did(root: Path) -> None:
    """The last val/loss and the loss of `evaluate` on the same tokens; without separation they would differ."""
    options = ("loader.separate_documents=true", "trainer.validate_tokens=512", "trainer.validate_every=20")
    for run, separate in (("apart", options), ("mixed", options[1:])):
        train(tiny_config(root, f"run={run}", *separate), Silent())
        validated = [r["val/loss"] for r in read_metrics(open_store(str(root)), run) if "val/loss" in r][-1]
        _, report = evaluate(tiny_config(root), LossRequest(run, max_tokens="512"), Silent())
        assert report.loss == pytest.approx(validated, abs=2e-6)


def test_the_loss_of_packed_documents_does_not_depend_on_the_micro_batch(root: Path) -> None:
    """Its windows have different numbers of targets, so a mean of micro-batches' means would."""
    for size in (1, 4):
        options = ("loader.packing=documents", "model.max_length=64", "trainer.batch_tokens=256")
        train(tiny_config(root, f"run=packed-{size}", f"trainer.micro_batch={size}", *options), Silent())
    assert losses(root, "packed-1") == pytest.approx(losses(root, "packed-4"), abs=5e-6)


def test_files_that_are_not_there_are_named(root: Path) -> None:
    with pytest.raises(SkytrainError, match=r"nothing matches nowhere/\*\.bin"):
        train(tiny_config(root, "loader=files", "loader.files.train=nowhere/*.bin"), Silent())


@pytest.mark.parametrize(
    ("mixture", "message"),
    [
        ("[{from_step: 0, weights: {a: 0.7, missing: 0.3}}]", "holds no data set 'missing' made with tokenizer"),
        ("[{from_step: 0, weights: {a: 0.7, b: 0}}]", "source 'b' of the mixture has weight 0"),
        ("[{from_step: 0, weights: {a: 0.7, b: much}}]", r"weights\.b: 'much' is not a number"),
        ("[{from_step: 0, weights: {a: 1}}]", "has 1 data set"),
        ("[{from_step: 3, weights: {a: 1, b: 1}}]", r"loader\.mixture\[0\]\.from_step: is 3"),
        (
            "[{from_step: 0, weights: {a: 1, b: 1}}, {from_step: 5, weights: {a: 1}}]",
            r"loader\.mixture\[1\]: has weights for a",
        ),
    ],
)
def test_a_mixture_that_cannot_be_is_refused(two_sets: Path, mixture: str, message: str) -> None:
    with pytest.raises((SkytrainError, ConfigError), match=message):
        train(tiny_config(two_sets, f"loader.mixture={mixture}"), Silent())
