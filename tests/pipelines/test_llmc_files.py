"""Models in llm.c's files are generated with, evaluated and exported as they are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from skytrain.config import Config, SkytrainError
from skytrain.evaluation import Sampling
from skytrain.models import build_model, load_hf_folder, save_llmc
from skytrain.pipelines.evaluate import LossRequest, evaluate
from skytrain.pipelines.export import ExportRequest, export
from skytrain.pipelines.generate import generate
from skytrain.pipelines.prepare import prepare
from skytrain.runs import Silent
from tests.support.tiny import tiny_config


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    config = tiny_config(tmp_path_factory.mktemp("store"), "trainer.device=cpu")
    prepare(config, Silent())
    return config


@pytest.fixture(scope="module")
def file(config: Config, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("log124M") / "model_00004725.bin"
    save_llmc(build_model(config.model, seed=3), path)  # type: ignore[arg-type]
    return str(path)


def test_a_file_generates_what_its_export_generates(config: Config, file: str, tmp_path: Path) -> None:
    text = "".join(generate(config, file, "ab", Sampling(temperature=0), max_tokens=8))
    export(config, ExportRequest(file, tmp_path / "out", dtype="fp32"))
    assert text and text == "".join(
        generate(config, str(tmp_path / "out"), "ab", Sampling(temperature=0), max_tokens=8)
    )


def test_a_file_is_evaluated_on_the_configured_data(config: Config, file: str) -> None:
    label, report = evaluate(config, LossRequest(file), Silent())
    assert label == file and 4 < report.loss < 8  # new weights: about ln 257


def test_a_file_is_exported_to_hugging_face_with_the_configured_tokenizer(
    config: Config, file: str, tmp_path: Path
) -> None:
    export(config, ExportRequest(file, tmp_path / "out", dtype="fp32"))
    written = load_hf_folder(tmp_path / "out")
    for (name, value), other in zip(
        written.named_parameters(), build_model(config.model, seed=3).parameters(), strict=True
    ):
        assert torch.equal(value, other), name
    assert (tmp_path / "out/tokenizer.json").is_file()


def test_a_tokenizer_of_another_vocabulary_is_refused(file: str, tmp_path: Path) -> None:
    other = tiny_config(tmp_path, "tokenizer=gpt2", "model.vocab_size=50257", "trainer.device=cpu")
    with pytest.raises(SkytrainError, match=r"vocabulary of 257 tokens, tokenizer gpt2 one of 50,257"):
        generate(other, file, "ab", Sampling(), max_tokens=1)
