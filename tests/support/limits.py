"""A limit of time for every test: one that hangs fails, says where it hung, and leaves no process behind.

The limit is far above what a test needs, so that a busy machine does not decide. `@pytest.mark.limit(seconds)` sets
another one. Setting up, calling and tearing down each have the whole of it.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import pytest

from skytrain.jobs.lifeline import read_stat
from skytrain.jobs.processes import descendants

LIMIT_SECONDS = 900.0
SLOW_LIMIT_SECONDS = 3600.0
GRACE_SECONDS = 60.0  # for the main thread to come back to Python, where the test fails; else the process ends
START_TIME_FIELD = 19  # of /proc/PID/stat, after the command; in ticks since boot

# Of the terminal: pytest redirects file 2 while a test runs.
_terminal = os.dup(2)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "limit(seconds, grace): the time that a test may take at most")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    with _limited(item):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    with _limited(item):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    with _limited(item):
        return (yield)


@contextmanager
def _limited(item: pytest.Item) -> Iterator[None]:
    mark = item.get_closest_marker("limit")
    seconds = float(mark.args[0]) if mark else SLOW_LIMIT_SECONDS if item.get_closest_marker("slow") else LIMIT_SECONDS
    grace = float(mark.kwargs.get("grace", GRACE_SECONDS)) if mark else GRACE_SECONDS
    began = time.clock_gettime(time.CLOCK_BOOTTIME)

    def fail(number: int, frame: FrameType | None) -> None:
        faulthandler.dump_traceback()  # the other threads, too; pytest shows it with the failure
        _kill_since(began)
        pytest.fail(f"the test took longer than its limit of {seconds:g} s")

    def give_up() -> None:
        os.write(_terminal, f"\n{item.nodeid} took longer than {seconds:g} s and cannot be ended:\n".encode())
        faulthandler.dump_traceback(_terminal)
        _kill_since(began)
        os._exit(1)

    # A thread cannot act if compiled code holds the interpreter's lock; the third way, in C, can.
    watchdog = threading.Timer(seconds + grace, give_up)
    watchdog.daemon = True
    watchdog.start()
    faulthandler.dump_traceback_later(seconds + 2 * grace, exit=True, file=_terminal)
    former = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
        faulthandler.cancel_dump_traceback_later()
        watchdog.cancel()


def _kill_since(began: float) -> None:
    """Kill the processes that were started below this one since then: servers of the session stay."""
    tick = os.sysconf("SC_CLK_TCK")
    for pid in descendants(os.getpid()):
        with suppress(OSError):  # it has ended since
            if int(read_stat(pid)[START_TIME_FIELD]) / tick >= began - 1 / tick:
                os.kill(pid, signal.SIGKILL)
