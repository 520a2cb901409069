"""A Hugging Face tokenizer from preparing to export, after its folder is gone."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from skytrain.config import Config, SkytrainError, compose
from skytrain.evaluation import Sampling
from skytrain.pipelines.data import inspect
from skytrain.pipelines.evaluate import LossRequest, evaluate
from skytrain.pipelines.export import ExportRequest, export
from skytrain.pipelines.generate import generate
from skytrain.pipelines.prepare import prepare
from skytrain.pipelines.train import train
from skytrain.runs import Silent
from skytrain.tokens import read_tokenizer_settings
from tests.support.hf_tokenizers import CHAT_TEMPLATE, TEXT, make_tokenizer_folder
from tests.support.tiny import TINY

SPELLED = "<|begin_of_text|> is only text"


class Notes(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)

    def table(self, title: str, rows: Sequence[tuple[str, str]]) -> None:
        self.lines += [f"{name} {value}" for name, value in rows]


def config_of(top: Path, *more: str) -> Config:
    overrides = [
        *(word for word in TINY if not word.startswith(("data", "tokenizer", "model"))),
        "data=text",
        f"data.source.paths='{top}/texts/*.txt'",
        "data.name=texts",
        "data.validation_fraction=0.3",
        "tokenizer=hf",
        f"tokenizer.name={top}/mine",
        "model=llama-micro",
        "model.max_length=64",
        f"store.root='{top}/store'",
        "trainer.steps=2",
        "lr_schedule.warmup_steps=1",
        "run=mine",
        "loader.separate_documents=true",
        *more,
    ]
    return compose(overrides, read_tokenizer=read_tokenizer_settings).config


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str], list[str]]:
    """A folder with a store that holds a trained run, and what prepare and train said. The tokenizer's folder is gone."""
    top = tmp_path_factory.mktemp("hf")
    make_tokenizer_folder("byte_level", top / "mine")
    (top / "texts").mkdir()
    for number in range(20):
        (top / "texts" / f"{number:02}.txt").write_text(f"{number} {SPELLED}. {TEXT[: 400 + number]}")
    prepared, run = Notes(), Notes()
    prepare(config_of(top), prepared)
    shutil.rmtree(top / "mine")
    train(config_of(top), run)
    return top, prepared.lines, run.lines


def test_the_token_that_begins_a_document_is_shown_and_written(trained: tuple[Path, list[str], list[str]]) -> None:
    top, prepared, run = trained
    begins = "a document begins with <|begin_of_text|> (377)"
    assert prepared[0].endswith(f"380 tokens, {begins}")
    assert any(line.startswith("tokenizer mine-") and line.endswith(begins) for line in run)
    (shard,) = (top / "store/tokens/texts").rglob("train/shard-00000.bin")
    tokens = np.fromfile(shard, np.uint16, offset=1024)
    ends = np.fromfile(shard.with_suffix(".idx"), np.uint64).astype(int)
    assert np.flatnonzero(tokens == 377).tolist() == [0, *ends[:-1].tolist()]


def test_a_sample_shows_the_text_of_a_document(trained: tuple[Path, list[str], list[str]]) -> None:
    found = inspect(config_of(trained[0]), None, "train", 1, True, Silent())
    assert SPELLED in found.samples[0].text and found.problems == []


def test_an_exported_folder_has_the_tokenizer_and_is_read_back(
    trained: tuple[Path, list[str], list[str]], tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    config = config_of(trained[0])
    export(config, ExportRequest("mine", tmp_path / "out", dtype="fp32"))
    theirs = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert theirs.chat_template == CHAT_TEMPLATE
    assert theirs("The store").input_ids[0] == 377
    greedy, sources = Sampling(temperature=0), ("mine", str(tmp_path / "out"))
    texts = ["".join(generate(config, source, "The store", greedy, max_tokens=8)) for source in sources]
    assert texts[0] == texts[1]
    losses = [evaluate(config, LossRequest(source), Silent())[1].loss for source in sources]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    # The folder's own tokenizer and window are found, whatever is configured.
    others = compose([]).config
    unnamed = dataclasses.replace(
        config, tokenizer=others.tokenizer, trainer=dataclasses.replace(config.trainer, sequence_length=4096)
    )
    assert evaluate(unnamed, LossRequest(sources[1], max_tokens="200"), Silent())[1].tokens > 0
    nowhere = dataclasses.replace(unnamed, data=others.data)
    with pytest.raises(SkytrainError, match=r"made with the tokenizer of .*out[\s\S]*tokenizer=hf tokenizer\.name="):
        evaluate(nowhere, LossRequest(sources[1]), Silent())
