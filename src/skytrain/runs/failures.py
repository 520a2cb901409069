"""Record the error that ended an attempt, so that `status` reports it at once instead of after a timeout."""

from __future__ import annotations

import contextlib
import json
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from ..config import EXIT_CODES, SUPERSEDED, SkytrainError
from ..storage import NotFound, Store, StoreError, StoreUnreachable
from .attempts import Cause, attempt_key, now, write_outcome
from .reading import DamagedRecord, read_object

FAILURE_SECONDS = 5.0  # timeout of the write: the store itself may be the cause of the failure


@dataclass(frozen=True)
class Failure:
    """The first error of an attempt, on any rank."""

    reason: str
    host: str
    failed_at: str


def _key(run: str, attempt: int) -> str:
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
        failure = Failure(str(error) or type(error).__name__, platform.node(), now())
        # Other ranks fail later, as a consequence of the first failure: only the first is recorded.
        if not isinstance(error, StoreUnreachable):  # the store has already timed out
            with contextlib.suppress(StoreError):  # the error itself matters more
                store.hurried(FAILURE_SECONDS).create(_key(run, attempt), json.dumps(asdict(failure)).encode())
        raise


def read_failure(store: Store, run: str, attempt: int) -> Failure | None:
    """Return the recorded failure; None if the attempt is running, ended in an orderly way or was killed."""
    try:
        return Failure(**read_object(store, _key(run, attempt)))
    except NotFound:
        return None
    except TypeError as error:
        raise DamagedRecord(store, _key(run, attempt), error) from None
