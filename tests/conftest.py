"""Fixtures that the tests of several packages share."""

from collections.abc import Iterator

import pytest

pytest_plugins = [
    "tests.support.limits",
    "tests.support.signals",
    "tests.support.garbage",
    "tests.support.s3",
    "tests.support.cluster",
]


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing is left in the cache of whoever runs the tests, and nothing there can decide one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
