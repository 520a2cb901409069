"""Garbage collection that leaves out what the imports have made: scanning it took a third of the tests' time.

A training collects before its first step, sets all that lives aside (`gc.freeze`) and gives it back at its end, which
would also give back what is set aside here. So it may not, unless a test uses `real_freezing`.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

_freeze = gc.freeze
_unfreeze = gc.unfreeze


def pytest_collection_finish(session: pytest.Session) -> None:
    _set_imports_aside()


def pytest_unconfigure(config: pytest.Config) -> None:
    _unfreeze()  # extensions report what still lives when Python ends


@pytest.fixture
def real_freezing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    _unfreeze()
    with monkeypatch.context() as patch:
        patch.setattr(gc, "freeze", _freeze)
        patch.setattr(gc, "unfreeze", _unfreeze)
        yield
    _set_imports_aside()


def _set_imports_aside() -> None:
    gc.collect()
    _freeze()
    gc.freeze = gc.unfreeze = _nothing


def _nothing() -> None:
    return
