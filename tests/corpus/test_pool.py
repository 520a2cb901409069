"""Work on all cores: what was taken is finished."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from skytrain.corpus import ordered_threads


def test_a_signal_does_not_drop_tasks_that_were_taken() -> None:
    done: list[int] = []
    before = sys.getswitchinterval()

    def tasks() -> Iterator[int]:
        yield 1
        while not done:  # its thread is idle now, and waits for the next task
            pass
        sys.setswitchinterval(60)  # and does not get to run before the signal
        yield 2
        raise KeyboardInterrupt

    try:
        with pytest.raises(KeyboardInterrupt):
            list(ordered_threads(done.append, tasks(), 4))
    finally:
        sys.setswitchinterval(before)
    assert done == [1, 2]
