"""The request to stop a run: one object in its folder, which its processes read with each heartbeat.

A request names the newest attempt that it stops, so a run that is resumed later is not stopped by an old request.
Anything that restarts a run automatically (the supervisor after a crash, an agent for the next generation) first
checks that the previous attempt was not asked to stop.
"""

from __future__ import annotations

import getpass
import json
import platform
from dataclasses import asdict, dataclass

from ..storage import NotFound, Store, read_typed
from .attempts import now


@dataclass(frozen=True)
class StopRequest:
    """A request that stops attempt `attempt` and all before it."""

    attempt: int
    asked_by: str  # user@host
    asked_at: str

    @property
    def text(self) -> str:
        return f"`skytrain stop` by {self.asked_by}"


def ask_stop(store: Store, run: str, attempt: int) -> StopRequest:
    """Ask attempt `attempt` of the run to save a checkpoint and stop. Replaces an older request."""
    request = StopRequest(attempt, f"{user_name()}@{platform.node()}", now())
    store.write(stop_key(run), json.dumps(asdict(request)).encode())
    return request


def read_stop(store: Store, run: str) -> StopRequest | None:
    """Return the newest request to stop the run, or None: one small read."""
    try:
        return read_typed(store, stop_key(run), StopRequest)
    except NotFound:
        return None


def stop_asked(store: Store, run: str, attempt: int) -> StopRequest | None:
    """Return the request that stops this attempt, or None."""
    request = read_stop(store, run)
    return request if request is not None and request.attempt >= attempt else None


def stop_key(run: str) -> str:
    return f"runs/{run}/stop.json"


def user_name() -> str:
    """Return who runs this process."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in some containers
        return "unknown"
