"""The outcome of an attempt whose workers the supervisor has killed; without one, `status` takes it for a lost machine."""

from __future__ import annotations

from collections.abc import Callable

from ..config import SkytrainError, StoreConfig
from ..runs import INTERRUPTED, Cause, last_metrics, read_outcome, write_outcome
from ..storage import open_store
from .supervision import ClaimedAttempt

RECORD_SECONDS = 5.0  # for which the store is tried: the user waits for the command to end


def record_interruption(config: StoreConfig, claim: ClaimedAttempt, cause: str, tell: Callable[[str], None]) -> None:
    """Writes the outcome, unless the workers or another node's supervisor have."""
    try:
        store = open_store(config).hurried(RECORD_SECONDS)
        if read_outcome(store, claim.run, claim.number) is None:
            step = max(claim.step, last_metrics(store, claim.run).get("step", 0))
            write_outcome(store, claim.run, claim.number, INTERRUPTED, step, Cause(cause))
    except SkytrainError as error:
        tell(f"warning: the outcome of attempt {claim.number} was not recorded: {error}")
