"""The store as the supervisor uses it: the outcome of an attempt whose workers it killed, and requests to stop."""

from __future__ import annotations

from collections.abc import Callable

from ..config import INTERRUPTED, SkytrainError, StoreConfig
from ..runs import Cause, last_metrics, read_outcome, stop_asked, write_outcome
from ..storage import open_store
from .supervision import ClaimedAttempt

RECORD_SECONDS = 5.0  # for which the store is tried: the user waits for the command to end


def record_interruption(config: StoreConfig, claim: ClaimedAttempt, cause: str, tell: Callable[[str], None]) -> None:
    """Write the outcome, unless the workers or another node's supervisor have written it.

    Without an outcome, `status` takes the attempt for a lost machine.
    """
    try:
        store = open_store(config).hurried(RECORD_SECONDS)
        if read_outcome(store, claim.run, claim.number) is None:
            step = max(claim.step, last_metrics(store, claim.run).get("step", 0))
            write_outcome(store, claim.run, claim.number, INTERRUPTED, step, Cause(cause))
    except SkytrainError as error:
        tell(f"warning: the outcome of attempt {claim.number} was not recorded: {error}")


def was_asked_to_stop(config: StoreConfig, claim: ClaimedAttempt | None, tell: Callable[[str], None]) -> bool:
    """Return whether `skytrain stop` names the attempt that these workers made, so that it must not be restarted."""
    if claim is None:
        return False
    try:
        return stop_asked(open_store(config).hurried(RECORD_SECONDS), claim.run, claim.number) is not None
    except SkytrainError as error:
        tell(f"warning: whether the run is to be stopped is unknown: {error}")
        return False
