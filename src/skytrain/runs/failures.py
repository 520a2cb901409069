"""Attempts that ended with an error: what it was, so that `status` says so at once and need not wait for silence."""

from __future__ import annotations

import contextlib
import json
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from ..storage import NotFound, Store, StoreError, StoreUnreachable
from .attempts import Cause, Superseded, attempt_key, now, write_outcome
from .exits import SUPERSEDED
from .reading import DamagedRecord, read_object

FAILURE_SECONDS = 5.0  # that a store which may be the cause of the failure is waited for


@dataclass(frozen=True)
class Failure:
    """The first error of an attempt, of whichever rank."""

    reason: str
    host: str
    failed_at: str


def _key(run: str, attempt: int) -> str:
    return f"{attempt_key(run, attempt)}/failure.json"


@contextlib.contextmanager
def failures_recorded(store: Store, run: str, attempt: int) -> Iterator[None]:
    """Writes down the error that ends this block. A process that is killed writes nothing, and its run goes stale."""
    try:
        yield
    except Superseded as error:
        with contextlib.suppress(StoreError):
            cause = Cause(str(error).partition("\n")[0])
            write_outcome(store.hurried(FAILURE_SECONDS), run, attempt, SUPERSEDED, None, cause)
        raise
    except Exception as error:
        failure = Failure(str(error) or type(error).__name__, platform.node(), now())
        # Other ranks fail because of the first one, and later: only the first is kept.
        if not isinstance(error, StoreUnreachable):  # it was waited for long enough
            with contextlib.suppress(StoreError):  # the error itself matters more
                store.hurried(FAILURE_SECONDS).create(_key(run, attempt), json.dumps(asdict(failure)).encode())
        raise


def read_failure(store: Store, run: str, attempt: int) -> Failure | None:
    """None for an attempt that runs, ended on purpose, or was killed."""
    try:
        return Failure(**read_object(store, _key(run, attempt)))
    except NotFound:
        return None
    except TypeError as error:
        raise DamagedRecord(store, _key(run, attempt), error) from None
