"""Signals in tests: none leaves a handler behind, and those that send signals find them as a terminal's shell leaves them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


@pytest.fixture(autouse=True)
def same_signal_handlers() -> Iterator[None]:
    """A handler that a test leaves behind decides later tests; an ignored signal is ignored by their processes, too."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    left = {number for number in SIGNALS if signal.getsignal(number) != before[number]}
    for number in left:
        signal.signal(number, before[number])
    assert not left, f"the test left other handlers of {', '.join(sorted(each.name for each in left))}"


@pytest.fixture
def default_signals() -> Iterator[None]:
    """Let signals act as usual during a test, also on the processes that it starts.

    `nohup` starts the tests with SIGHUP ignored, a shell's background job with SIGINT ignored, and some schedulers
    with others; programs inherit that. Other tests keep it, since whoever ignores a signal wants the tests to go on.
    """
    with signals_reset():
        yield


@contextmanager
def signals_reset() -> Iterator[None]:
    usual = {each: signal.default_int_handler if each == signal.SIGINT else signal.SIG_DFL for each in SIGNALS}
    former = {each: signal.signal(each, usual[each]) for each in SIGNALS}
    blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for each in SIGNALS:
            # Another handler was left behind by the test: `same_signal_handlers` reports it.
            if signal.getsignal(each) == usual[each]:
                signal.signal(each, former[each])
