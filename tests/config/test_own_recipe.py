"""Recipes of the user's own, and hints for those who know other tools."""

from __future__ import annotations

from pathlib import Path

import pytest

from skytrain.config import ConfigError, SkytrainError, compose
from skytrain.config.other_tools import HERE


@pytest.mark.parametrize("header", ["", "# @package _global_\n"])
def test_a_file_in_the_folder_recipe_may_set_anything(
    header: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "small_model.yaml").write_text(
        f"{header}defaults:\n  - override /optimizer: muon\ntrainer:\n  steps: 7\nmodel:\n  layers: 2\n"
    )
    composed = compose(["recipe=small_model", "model.heads=4"])
    assert composed.config.trainer.steps == 7 and composed.config.trainer.tokens is None
    assert composed.config.optimizer.name == "muon"
    assert composed.origins["trainer.steps"] == "recipe/small_model.yaml"


def test_a_wrong_setting_in_an_own_recipe_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "wrong.yaml").write_text("trainer:\n  stepz: 7\n")
    with pytest.raises(ConfigError, match=r"trainer\.stepz"):
        compose(["recipe=wrong"])


@pytest.mark.parametrize("word", ["trainer.batch_size=4", "parallel.strategy=ddp", "n_layer=4", "data.source.paths=X"])
def test_words_of_other_tools_are_translated(word: str) -> None:
    key = word.partition("=")[0]
    with pytest.raises(ConfigError) as refusal:
        compose([word])
    assert (HERE.get(key) or HERE[key.rpartition(".")[2]]) in str(refusal.value)


def test_the_translations_name_settings_that_exist() -> None:
    known = compose().origins
    for text in HERE.values():
        for word in text.replace(",", " ").split():
            key = word.partition("=")[0]
            if "=" in word and "." in key and key != "data.source.paths":
                assert key in known, word


def test_several_values_point_to_tune() -> None:
    with pytest.raises(SkytrainError, match="skytrain tune"):
        compose(["optimizer.lr=1e-3,3e-4"])
