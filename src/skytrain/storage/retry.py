"""The one retry policy: how often, how long to wait, and for what."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from .errors import StoreError

if TYPE_CHECKING:
    from obstore.store import RetryConfig


@dataclass(frozen=True)
class Retry:
    """Exponential waits with full jitter, so that a thousand workers do not come back at the same moment.

    The defaults wait about a minute in all: S3 answers 503 SlowDown while it splits a busy prefix.
    """

    attempts: int = 10
    first_wait_seconds: float = 0.1
    longest_wait_seconds: float = 15.0

    def wait_seconds(self, failures: int) -> float:
        return random.uniform(0, min(self.longest_wait_seconds, self.first_wait_seconds * 2**failures))

    def for_requests(self) -> RetryConfig:
        """The same policy for obstore, which repeats single requests: 5xx answers, resets, a part of an upload."""
        return {
            "max_retries": self.attempts - 1,
            "retry_timeout": timedelta(minutes=5),  # S3 refuses requests signed much earlier
            "backoff": {
                "init_backoff": timedelta(seconds=self.first_wait_seconds),
                "max_backoff": timedelta(seconds=self.longest_wait_seconds),
                "base": 2,
            },
        }


class Attempts:
    """Counts the failures of one operation; `failed` waits and returns, or raises when trying again is useless.

    `explain` turns an error into the StoreError that a user would see, and says whether it may pass.
    """

    def __init__(self, retry: Retry, explain: Callable[[Exception], tuple[StoreError, bool]]) -> None:
        self.retry, self.explain, self.failures = retry, explain, 0

    def failed(self, error: Exception) -> None:
        self.failures += 1
        explained, transient = self.explain(error)
        if not transient:
            raise explained from error
        if self.failures >= self.retry.attempts:
            raise explained.after(self.failures) from error
        time.sleep(self.retry.wait_seconds(self.failures))

    def progressed(self) -> None:
        """Something was gained: a long transfer may be cut more often than a short one."""
        self.failures = 0
