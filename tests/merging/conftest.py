from pathlib import Path

import pytest

from skytrain.pipelines.prepare import prepare
from skytrain.pipelines.train import train
from skytrain.runs import Silent, Start
from tests.support.tiny import tiny_config

SHORT = ("trainer.steps=4", "trainer.checkpoint_every=2", "trainer.keep_checkpoints=8", "trainer.validate_every=null")


@pytest.fixture(scope="session")
def forest(tmp_path_factory) -> Path:
    """A store with a seed run, two experts that branch off at its step 2, and a run of its own."""
    root = tmp_path_factory.mktemp("forest")
    prepare(tiny_config(root), Silent())
    train(tiny_config(root, "run=seed", *SHORT), Silent())
    train(tiny_config(root, "run=one", *SHORT, "seed=1"), Silent(), Start("seed@2"))
    train(tiny_config(root, "run=two", *SHORT, "seed=2", "optimizer.lr=2e-3"), Silent(), Start("seed@2"))
    train(tiny_config(root, "run=stranger", *SHORT, "seed=7"), Silent())
    return root
