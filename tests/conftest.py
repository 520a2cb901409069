"""Fixtures that the tests of several packages share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# No example has a time limit: how long one takes is up to whatever else the machine does.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

pytest_plugins = [
    "tests.support.limits",
    "tests.support.signals",
    "tests.support.garbage",
    "tests.support.s3",
    "tests.support.cluster",
]

# Those that take longest are begun first, so that the processes of `make test` end at about the same time.
LONG_FILES = (
    "parallel/test_equivalence.py",
    "cli/test_cli.py",
    "parallel/test_deepspeed.py",
    "parallel/test_resume.py",
    "pipelines/test_supervised_training.py",
    "pipelines/test_train_resume.py",
    "pipelines/test_train.py",
    "pipelines/test_tune.py",
    "pipelines/test_loader.py",
    "pipelines/test_killed.py",
    "pipelines/test_quickstart.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {Path(__file__).parent / name: number for number, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing is left in the cache of whoever runs the tests, and nothing there can decide one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
