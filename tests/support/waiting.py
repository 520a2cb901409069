"""Waiting for a condition, and never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_SECONDS = 120.0  # far above what a quiet machine needs


def wait_until(done: Callable[[], object], seconds: float = PATIENCE_SECONDS, tell: Callable[[], str] = str) -> float:
    """Return how long it took until `done()` was true; fail with `tell()` after `seconds`."""
    began = time.monotonic()
    while not done():
        assert time.monotonic() - began < seconds, f"not within {seconds:g} s\n{tell()}"
        time.sleep(0.01)
    return time.monotonic() - began
