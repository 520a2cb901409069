"""Attempts at a run: each start of its processes is one attempt, and only the newest may add to the run.

An older attempt that was cut off may wake up and keep writing, and cannot be stopped. So a new attempt records the
step from which it resumes, and whatever an older attempt commits beyond that step is ignored.
"""

from __future__ import annotations

import contextlib
import json
import platform
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from ..config import EXIT_CODES, OUTCOMES, SUPERSEDED, SkytrainError, without_secrets
from ..storage import (
    NO_SHAPE,
    NotFound,
    Shape,
    Store,
    StoreError,
    StoreUnreachable,
    is_text,
    is_time,
    is_whole,
    maybe,
    read_object,
    record_of,
)

ATTEMPT: Shape = {
    "started_at": maybe(is_text),
    "host": maybe(is_text),
    "ranks_per_node": maybe(is_whole),
    "generation": maybe(is_whole),
}
OUTCOME: Shape = {
    "outcome": is_text,
    "cause": maybe(is_text),
    "host": maybe(is_text),
    "step": maybe(is_whole),
    "ended_at": is_time,
}
FAILURE: Shape = {"reason": is_text, "host": is_text, "failed_at": is_time}
FAILURE_SECONDS = 5.0  # limit on recording a failure, which the store itself may have caused


class Superseded(SkytrainError):
    """The error of an attempt that must stop because a newer one has started."""

    exit_code = EXIT_CODES[SUPERSEDED]

    def __init__(self, run: str, attempt: int, newest: int, newest_host: str) -> None:
        super().__init__(
            f"run {run!r}: attempt {newest} on {newest_host} has taken over from this one, attempt {attempt}, which stops\n"
            "  nothing was overwritten; two runs at once need two names: run=NAME"
        )


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def attempt_key(run: str, attempt: int) -> str:
    return f"runs/{run}/attempts/{attempt}"


def attempt_numbers(store: Store, run: str) -> list[int]:
    """Return the numbers of all attempts in ascending order."""
    return sorted(int(name) for name in store.folders(f"runs/{run}/attempts/") if name.isdecimal())


def claim_attempt(store: Store, run: str, check: Callable[[], None] = lambda: None, **facts: Any) -> int:
    """Claim the next attempt number atomically: concurrent callers never get the same one. Stores `facts` with it.

    `check` raises if this process may not claim any more. It is called after the newest number is read and before the
    next is claimed: a process that replaced this one needs that number too, so one of the two is refused.
    """
    body = json.dumps({"started_at": now(), "host": platform.node(), **facts}).encode()
    number = 1 + max(attempt_numbers(store, run), default=-1)
    while True:
        check()
        if store.create(f"{attempt_key(run, number)}/attempt.json", body):
            return number
        number += 1


def read_attempt(store: Store, run: str, attempt: int) -> dict[str, Any]:
    """Return what was recorded when the attempt was claimed: `started_at`, `host` and its facts."""
    return _read(store, run, attempt, "attempt.json", ATTEMPT)


def check_newest(store: Store, run: str, attempt: int) -> None:
    """Raise Superseded if there is a newer attempt."""
    newest = max(attempt_numbers(store, run), default=attempt)
    if newest > attempt:
        raise Superseded(run, attempt, newest, str(_read(store, run, newest, "attempt.json").get("host", "?")))


def record_resume(store: Store, run: str, attempt: int, step: int) -> None:
    """Record the step from which this attempt resumes, once and before any training.

    The record includes the steps of earlier attempts, so a reader needs only the newest record.
    """
    body = {"step": step, "before": read_fence(store, run).resumed}
    created = store.create(f"{attempt_key(run, attempt)}/resumed.json", json.dumps(body).encode())
    assert created, f"attempt {attempt} of {run} records twice where it resumes"


@dataclass(frozen=True)
class Fence:
    """The step from which each attempt of a run resumed."""

    resumed: dict[int, int]  # attempt -> step

    def admits(self, attempt: int, step: int) -> bool:
        """Return whether output of `attempt` at `step` belongs to the run: no later attempt resumed before it."""
        return all(step <= start for later, start in self.resumed.items() if later > attempt)


def read_fence(store: Store, run: str) -> Fence:
    """Read the fence that the newest attempt recorded.

    An attempt without a record has trained nothing and excludes nothing. Neither does an attempt that records its step
    after a newer attempt has started to train.
    """
    for number in reversed(attempt_numbers(store, run)):
        resumed = _read(store, run, number, "resumed.json")
        if resumed:
            with record_of(store, f"{attempt_key(run, number)}/resumed.json"):
                before = {int(earlier): int(step) for earlier, step in resumed["before"].items()}
                return Fence({**before, number: int(resumed["step"])})
    return Fence({})


@dataclass(frozen=True)
class Cause:
    """The reason why an attempt ended, as text, and the host."""

    text: str
    host: str = field(default_factory=platform.node)


def outcome_key(run: str, attempt: int) -> str:
    """Return the object that says how an attempt ended."""
    return f"{attempt_key(run, attempt)}/outcome.json"


def write_outcome(
    store: Store, run: str, attempt: int, outcome: str, step: int | None, cause: Cause | None = None
) -> None:
    """Record an orderly end: `done`, `stopped` (early, on request), `budget`, `interrupted` or `superseded`."""
    assert outcome in OUTCOMES, outcome
    cause = cause or Cause(outcome)
    body = {"outcome": outcome, "cause": cause.text, "host": cause.host, "step": step, "ended_at": now()}
    store.write(outcome_key(run, attempt), json.dumps(body).encode())


def read_outcome(store: Store, run: str, attempt: int) -> dict[str, Any] | None:
    """Return the recorded outcome; None while the attempt runs and after a crash."""
    return _read(store, run, attempt, "outcome.json", OUTCOME) or None


def _read(store: Store, run: str, attempt: int, name: str, shape: Shape = NO_SHAPE) -> dict[str, Any]:
    try:
        return read_object(store, f"{attempt_key(run, attempt)}/{name}", shape)
    except NotFound:
        return {}


@dataclass(frozen=True)
class Failure:
    """The first error of an attempt, on any rank."""

    reason: str
    host: str
    failed_at: str


def failure_key(run: str, attempt: int) -> str:
    return f"{attempt_key(run, attempt)}/failure.json"


@contextlib.contextmanager
def failures_recorded(store: Store, run: str, attempt: int) -> Iterator[None]:
    """Record the error that ends this block. A killed process records nothing, and its run becomes stale."""
    try:
        yield
    except Exception as error:
        # Noticed between two steps, or by the commit of a checkpoint, which raises its own error.
        if isinstance(error, SkytrainError) and error.exit_code == EXIT_CODES[SUPERSEDED]:
            with contextlib.suppress(StoreError):
                cause = Cause(str(error).partition("\n")[0])
                write_outcome(store.hurried(FAILURE_SECONDS), run, attempt, SUPERSEDED, None, cause)
            raise
        failure = Failure(without_secrets(str(error)) or type(error).__name__, platform.node(), now())
        # Other ranks fail later, as a consequence of the first failure: only the first is recorded.
        if not isinstance(error, StoreUnreachable):  # the store has already timed out
            with contextlib.suppress(StoreError):  # the error itself matters more
                store.hurried(FAILURE_SECONDS).create(failure_key(run, attempt), json.dumps(asdict(failure)).encode())
        raise


def read_failure(store: Store, run: str, attempt: int) -> Failure | None:
    """Return the recorded failure; None if the attempt is running, ended in an orderly way or was killed."""
    key = failure_key(run, attempt)
    try:
        with record_of(store, key):
            return Failure(**read_object(store, key, FAILURE))
    except NotFound:
        return None
