"""`train data=synthetic` in an empty folder: the tokens are made on the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from skytrain.pipelines.train import train
from skytrain.runs import Silent
from skytrain.storage import open_store
from skytrain.tokens import NotPrepared, find_training_data
from tests.support.tiny import tiny_config


@pytest.mark.parametrize("tokenizer", [(), ("tokenizer=bpe-4k", "tokenizer.vocab_size=300", "model.vocab_size=300")])
def test_synthetic_tokens_are_made_where_they_are_missing(tmp_path: Path, tokenizer: tuple[str, ...]) -> None:
    config = tiny_config(tmp_path / "store", "run=at-once", "trainer.steps=3", *tokenizer)
    store = open_store(config.store)
    with pytest.raises(NotPrepared):
        find_training_data(store, config)
    assert train(config, Silent()).step == 3
    assert find_training_data(store, config).train.tokens
