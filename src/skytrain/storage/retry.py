"""The retry policy of all stores: the time limit and the backoff."""

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

REPORT_SECONDS = 10.0  # of continuous failure before a warning is logged
FIRST_RESPONSE_SECONDS = 60.0  # time limit for a server that has never responded: its address is probably wrong
FIRST_WRITE_SECONDS = 300.0  # for a server that has never accepted a write: it may be set up so that it never will
NEVER_WROTE_HINT = (
    "nothing has ever been written here by this process: the answer above may be about store.sse, store.kms_key, or the "
    "server's disks; store.patience is for a store that accepted a write before"
)
NEVER_RESPONDED_HINT = (
    "nothing has ever responded at this endpoint: check AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL (or endpoint_url of "
    "the AWS profile), AWS_REGION and the network; store.patience is for a store that responded before"
)

logger = logging.getLogger(__name__)


# Of its own: plug-ins may use Python's generator in training, which must not depend on retries.
_jitter = random.Random()


@dataclass(frozen=True)
class Retry:
    """A time limit, counted from the first of consecutive failures, and the waits between attempts.

    Waits grow exponentially with full jitter, so that a thousand workers do not retry at the same moment.
    """

    seconds: float = 60.0
    first_wait_seconds: float = 0.1
    longest_wait_seconds: float = 15.0

    def wait_seconds(self, failures: int) -> float:
        # The exponent is bounded: an outage of days must not overflow it.
        return _jitter.uniform(0, min(self.longest_wait_seconds, self.first_wait_seconds * 2 ** min(failures, 30)))

    def for_requests(self) -> RetryConfig:
        """Return settings for obstore's quick retries, so that a brief failure of one part does not restart an upload.

        obstore draws each wait from [first wait, base x previous wait], however large `max_backoff` is: with
        base 2 the waits do not grow on average, and nine retries took 1.3 to 3.6 s. With base 4 they grow, to about
        5 s over these four. `Patience`, which every store operation uses, handles longer outages.
        """
        return {
            "max_retries": 4,
            "retry_timeout": timedelta(minutes=5),  # S3 rejects requests with an old signature
            "backoff": {
                "init_backoff": timedelta(seconds=self.first_wait_seconds),
                "max_backoff": timedelta(seconds=self.longest_wait_seconds),
                "base": 4,
            },
        }


class Patience:
    """The consecutive failures of one task, and the time since the first of them."""

    def __init__(self, retry: Retry) -> None:
        self._retry = retry
        self._failures = 0
        self._since = 0.0

    @property
    def failing(self) -> bool:
        return self._failures > 0

    @property
    def seconds(self) -> float:
        """The seconds since the first of the current consecutive failures; 0 if there are none."""
        return time.monotonic() - self._since if self.failing else 0.0

    def failed(self, limit_seconds: float | None = None) -> float | None:
        """Record a failure and return the seconds to wait before the next attempt.

        Returns None once the time limit is exceeded: `limit_seconds` if given, else the retry policy's.
        """
        if not self.failing:
            self._since = time.monotonic()
        self._failures += 1
        left = (self._retry.seconds if limit_seconds is None else limit_seconds) - self.seconds
        return min(self._retry.wait_seconds(self._failures), left) if left > 0 else None

    def recovered(self) -> None:
        self._failures = 0


@dataclass
class ServerHistory:
    """The operations that a server has accepted so far, shared by views of a store and passed to spawned workers."""

    responded: bool = False
    granted: set[str] = field(default_factory=set)  # permissions with at least one successful operation
    failing: set[str] = field(default_factory=set)  # permissions whose last operation failed and may be retried


class Attempts:
    """The attempts of one store operation: `failed` waits before a retry, or raises if a retry is useless.

    `explain` converts an error into the StoreError shown to the user, and says whether it is transient. A denial is
    treated as an outage (credentials being renewed, a policy being replaced) if `permission` was granted before;
    credentials that never worked are reported at once. A server that has never responded gets a shorter limit, and so
    does one that has never accepted a write.
    """

    def __init__(
        self,
        retry: Retry,
        explain: Callable[[Exception], tuple[StoreError, bool]],
        history: ServerHistory,
        permission: str,
    ) -> None:
        self._explain = explain
        self._history = history
        self._permission = permission
        self._retry = retry
        self._patience = Patience(retry)
        self._reported = False

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
            limit_seconds = FIRST_RESPONSE_SECONDS
            explained.hint = NEVER_RESPONDED_HINT
        elif self._permission == "write" and not granted and limit_seconds > FIRST_WRITE_SECONDS:
            limit_seconds = FIRST_WRITE_SECONDS
            explained.hint = NEVER_WROTE_HINT
        wait = self._patience.failed(limit_seconds)
        if wait is None:
            raise explained.after(self._patience.seconds) from error
        if self._patience.seconds >= REPORT_SECONDS and not self._reported:
            self._reported = True
            problem = str(explained).partition("\n")[0]
            logger.warning("%s\n  trying again for up to %.0f s", problem, limit_seconds)
        time.sleep(wait)

    def progressed(self) -> None:
        """Restart the time limit because bytes arrived: a long transfer may be interrupted many times."""
        self._patience.recovered()
