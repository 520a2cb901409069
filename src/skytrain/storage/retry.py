"""The one retry policy: how long to keep trying, and how long to wait in between."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from .errors import AccessDenied, NoResponse, StoreError

if TYPE_CHECKING:
    from obstore.store import RetryConfig

REPORT_SECONDS = 10.0  # of failures, after which a log line says what is being waited for
FIRST_RESPONSE_SECONDS = 60.0  # for a server that has never responded: most likely its address is wrong
NEVER_RESPONDED_HINT = (
    "nothing has ever responded at this endpoint: check AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL (or endpoint_url of "
    "the AWS profile), AWS_REGION and the network; store.patience is for a store that responded before"
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Retry:
    """How long to keep trying, counted from the first failure in a row, and the waits in between.

    Waits grow exponentially with full jitter, so that a thousand workers do not come back at the same moment.
    """

    seconds: float = 60.0
    first_wait_seconds: float = 0.1
    longest_wait_seconds: float = 15.0

    def wait_seconds(self, failures: int) -> float:
        # The exponent is bounded: an outage of days must not overflow it.
        return random.uniform(0, min(self.longest_wait_seconds, self.first_wait_seconds * 2 ** min(failures, 30)))

    def for_requests(self) -> RetryConfig:
        """Quick retries for obstore, so that a short failure of one part does not start a whole upload again.

        obstore draws each wait from [first wait, base x the wait before], whatever `max_backoff` allows: with base 2
        the waits do not grow on average, and nine retries took 1.3 to 3.6 s. Base 4 grows, to about 5 s over these
        four. Longer outages are for `Patience`, which every operation of the store goes through.
        """
        return {
            "max_retries": 4,
            "retry_timeout": timedelta(minutes=5),  # S3 refuses requests signed much earlier
            "backoff": {
                "init_backoff": timedelta(seconds=self.first_wait_seconds),
                "max_backoff": timedelta(seconds=self.longest_wait_seconds),
                "base": 4,
            },
        }


class Patience:
    """Counts the failures in a row of one piece of work, and the time since the first of them."""

    def __init__(self, retry: Retry) -> None:
        self._retry, self._failures, self._since = retry, 0, 0.0

    @property
    def failing(self) -> bool:
        return self._failures > 0

    @property
    def seconds(self) -> float:
        """Since the first failure in a row."""
        return time.monotonic() - self._since if self.failing else 0.0

    def failed(self, limit_seconds: float | None = None) -> float | None:
        """Seconds to wait before the next try; None when the time is up (the retry's, or `limit_seconds`)."""
        if not self.failing:
            self._since = time.monotonic()
        self._failures += 1
        left = (self._retry.seconds if limit_seconds is None else limit_seconds) - self.seconds
        return min(self._retry.wait_seconds(self._failures), left) if left > 0 else None

    def recovered(self) -> None:
        self._failures = 0


@dataclass
class ServerHistory:
    """What a server has done for this process; copies of a store share one, and spawned workers receive it."""

    responded: bool = False
    granted: set[str] = field(default_factory=set)  # permissions that an operation has succeeded with
    failing: set[str] = field(default_factory=set)  # permissions whose last operation has failed, and may be retried


class Attempts:
    """Tries of one store operation: `failed` waits and returns, or raises when trying again is useless.

    `explain` turns an error into the StoreError that a user would see, and says whether it may pass. A denial is
    taken for an outage (credentials being renewed, a policy being replaced) where `permission` was granted before;
    credentials that never worked are reported at once. A server that has never responded is given up early.
    """

    def __init__(
        self,
        retry: Retry,
        explain: Callable[[Exception], tuple[StoreError, bool]],
        history: ServerHistory,
        permission: str,
    ) -> None:
        self._explain, self._history, self._permission = explain, history, permission
        self._retry, self._patience, self._reported = retry, Patience(retry), False

    def succeeded(self) -> None:
        self._history.responded = True
        self._history.granted.add(self._permission)
        self._history.failing.discard(self._permission)

    def failed(self, error: Exception) -> None:
        explained, transient = self._explain(error)
        self._history.responded |= not isinstance(explained, NoResponse)
        granted = self._permission in self._history.granted
        if not transient and not (isinstance(explained, AccessDenied) and granted):
            raise explained from error
        self._history.failing.add(self._permission)
        limit_seconds = self._retry.seconds
        if not self._history.responded and limit_seconds > FIRST_RESPONSE_SECONDS:
            limit_seconds, explained.hint = FIRST_RESPONSE_SECONDS, NEVER_RESPONDED_HINT
        wait = self._patience.failed(limit_seconds)
        if wait is None:
            raise explained.after(self._patience.seconds) from error
        if self._patience.seconds >= REPORT_SECONDS and not self._reported:
            self._reported = True
            problem = str(explained).partition("\n")[0]
            logger.warning("%s\n  trying again for up to %.0f s", problem, limit_seconds)
        time.sleep(wait)

    def progressed(self) -> None:
        """Bytes arrived, so the time limit starts again: a long transfer may be cut more often than a short one."""
        self._patience.recovered()
