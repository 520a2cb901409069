from pathlib import Path

import pytest

from skytrain.pipelines.prepare import prepare
from skytrain.runs import Silent
from tests.support.tiny import tiny_config


@pytest.fixture(scope="session")
def prepared_root(tmp_path_factory) -> Path:
    """A store with the tiny data set in it; tests copy it, so that none sees another's runs."""
    root = tmp_path_factory.mktemp("prepared")
    prepare(tiny_config(root), Silent())
    return root


@pytest.fixture
def root(prepared_root, tmp_path) -> Path:
    import shutil

    return Path(shutil.copytree(prepared_root, tmp_path / "store"))


@pytest.fixture
def young_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep pays for its process from its start, and a process of tests may be many minutes old."""
    monkeypatch.setattr("skytrain.tuning.machine._process_age", lambda: 2.0)
