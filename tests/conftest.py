"""Fixtures that the tests of several packages share."""

import signal
from collections.abc import Iterator

import pytest

pytest_plugins = ["tests.support.s3", "tests.support.cluster"]


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing is left in the cache of whoever runs the tests, and nothing there can decide one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def same_signal_handlers() -> Iterator[None]:
    """A handler that a test leaves behind decides later tests; an ignored signal is ignored by their processes, too."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    left = {number for number in numbers if signal.getsignal(number) != before[number]}
    for number in left:
        signal.signal(number, before[number])
    assert not left, f"the test left other handlers of {', '.join(sorted(each.name for each in left))}"
